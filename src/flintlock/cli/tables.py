"""Aligned columns without a table library: `flintlock list` has to start fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from flintlock.client.display.text_width import padded, text_width
from flintlock.model.errors import Refused
from flintlock.model.quantities import duration_s

STATE_COLOURS: Final[Mapping[str, str]] = {
    "FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "FAILING": "red", "CANCELED": "yellow",
    "CANCELLING": "yellow", "CANCELING": "yellow", "RESTARTING": "yellow", "WAITING": "yellow",
}  # fmt: skip


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines under a head, every column as wide as its widest cell."""
    widths = [max(text_width(row[index]) for row in [head, *rows]) for index in range(len(head))]
    return [
        "  ".join(padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]


def coloured(line: str) -> str:
    """Colour the states in a line (click takes colours out again where no terminal is)."""
    for word in line.split():
        if word in STATE_COLOURS:
            return line.replace(word, click.style(word, fg=STATE_COLOURS[word]), 1)
    return line


def moment(ms: int) -> str:
    """Write a time as the local clock shows it; nothing for none."""
    return datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S") if ms > 0 else "-"


def duration(ms: int) -> str:
    """Write a duration so that its size is seen at once."""
    from flintlock.client.display.progress import elapsed_text

    return elapsed_text(ms / 1000)


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as users write them."""
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def moment_of(text: str, option: str) -> datetime:
    """Return the time that a user means: so long ago, or a date and time of the local clock. Raises Refused."""
    try:
        return datetime.now(UTC) - timedelta(seconds=duration_s(text))
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        message = f"{option}: {text!r} is neither a duration such as '2h' nor a time such as '2026-01-31 08:00'"
        raise Refused(message) from None


def seconds_of(text: str, option: str) -> float:
    """Return a duration that a user gives for an option. Raises Refused."""
    try:
        return duration_s(text)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None
