"""One problem of a job, and where it is: what every check of a job graph yields."""

from __future__ import annotations

from msgspec import Struct


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    message: str
    step: str | None = None
    field: str | None = None

    def __str__(self) -> str:
        place = f"step {self.step!r}" if self.step is not None else "job"
        where = f"{place}, field {self.field!r}" if self.field else place
        return f"{where}: {self.message}"

    @property
    def path(self) -> tuple[str, ...]:
        """The place in the job's document, as keys from its root."""
        head = ("steps", self.step) if self.step is not None else ()
        return (*head, self.field) if self.field else head
