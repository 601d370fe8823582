"""One problem of a job, and where it is: what every check of a job graph yields; and how problems are reported.

A report is bounded, whatever the document: texts are abbreviated, and problems beyond `MAX_REPORTED` are only counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from msgspec import Struct

MAX_REPORTED: Final = 100
"""The problems that one report spells out."""

MAX_FOUND: Final = 10_000
"""The problems that are looked for; if there are more, a report says "at least"."""

MAX_MESSAGE: Final = 1_000
"""The length of what a report says about one problem."""

_MAX_NAME: Final = 128
_MAX_FIELD: Final = 300


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    message: str
    step: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = f"step {abbreviated(self.step, _MAX_NAME)!r}" if self.step is not None else "job"
        where = f"{place}, field {abbreviated(self.field, _MAX_FIELD)!r}" if self.field else place
        return f"{where}: {abbreviated(self.message, MAX_MESSAGE)}"

    @property
    def path(self) -> tuple[str, ...]:
        """The place in the job's document, as keys from its root."""
        head = ("steps", self.step) if self.step is not None else ()
        return (*head, self.field) if self.field else head


def abbreviated(text: str, at_most: int = _MAX_NAME) -> str:
    """Return a text for a message: its beginning, if it is long."""
    return text if len(text) <= at_most else text[: at_most - 1] + "…"


def reported(problems: Iterable[object]) -> tuple[str, ...]:
    """Return the lines of a report: the first problems, and how many more there are."""
    remaining = iter(problems)
    lines = [str(problem) for problem in islice(remaining, MAX_REPORTED)]
    more = sum(1 for _ in islice(remaining, MAX_FOUND - MAX_REPORTED))
    if more:
        many = f"at least {more}" if more == MAX_FOUND - MAX_REPORTED else str(more)
        lines.append(f"and {many} more problem{'s' if more > 1 else ''}")
    return tuple(lines)
