"""How a streaming query is doing: the figures of its latest batch, and since when it falls behind.

They come with the progress of the task that runs the query: one query of a streaming graph, any number of a program.
A message has all that is shown, so that a lost one, or a new leader, needs no other.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct, structs

from flintlock.model.times import elapsed_ms

MAX_QUERIES: Final = 50
"""The queries of one task that are reported: the latest ones."""

MAX_PARTS: Final = 20
"""The sources, and the stateful operators, of one query that are reported."""

MAX_TEXT: Final = 300
"""The length of a description or an error."""

FALLS_BEHIND_MS: Final = 60_000
"""A query that has been behind for so long, without a break, is marked."""

REPORT_MS: Final = 10_000
"""How often a query that is behind says that its batch still runs."""

IDLE_MS: Final = 10_000
"""A query whose sources have had no rows for so long is idle, or for the interval of its trigger, if that is longer."""

_INTERVAL: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(milli|ms|sec|s|min|hour|h|day|d)\w*", re.IGNORECASE)
_UNIT_MS: Final = {
    "milli": 1, "ms": 1, "sec": 1000, "s": 1000, "min": 60_000, "hour": 3_600_000, "h": 3_600_000,
    "day": 86_400_000, "d": 86_400_000,
}  # fmt: skip


class SourceFigures(Struct, frozen=True, kw_only=True):
    """One source of a query in its latest batch."""

    description: str
    input_rows: int = 0
    input_rate: float = 0.0  # rows a second that arrived
    processed_rate: float = 0.0  # rows a second while the batch ran
    backlog: int | None = None  # offsets that the source has and the batch had not; None: the source does not say


class OperatorFigures(Struct, frozen=True, kw_only=True):
    """One stateful operator of a query in its latest batch."""

    name: str
    rows: int = 0
    updated_rows: int = 0
    memory: int = 0  # bytes
    late_rows: int = 0  # dropped, because they were later than the watermark allows


class QueryFigures(Struct, frozen=True, kw_only=True):
    """One query, by its latest batch."""

    name: str
    query_id: str = ""  # Spark's, the same after a restart from its checkpoint
    run_id: str = ""  # Spark's, of this start of it
    active: bool = True
    error: str = ""  # why it ended
    batch: int = -1  # -1: it has run none
    started_ms: int = 0  # of that batch
    interval_ms: int = 0  # of its trigger; 0: batches follow each other, or it is not known
    input_rows: int = 0
    input_rate: float = 0.0
    processed_rate: float = 0.0
    duration_ms: int = 0
    durations: dict[str, int] = {}  # the parts of it, by Spark's names
    watermark: str = ""
    sources: tuple[SourceFigures, ...] = ()
    operators: tuple[OperatorFigures, ...] = ()
    behind_since_ms: int = 0  # the start of the first batch since which it falls behind; 0: it does not
    running_since_ms: int = 0  # since when its runner has seen a batch run that is not committed yet; 0: none runs
    running_ms: int = 0  # for how long that batch had been running, when the runner said so last
    idle_since_ms: int = 0  # since when its sources have had no rows, and its rates are 0; 0: they have, or had lately

    @property
    def state_rows(self) -> int:
        """The rows of all of its state."""
        return sum(operator.rows for operator in self.operators)

    @property
    def state_bytes(self) -> int:
        """The memory that all of its state uses."""
        return sum(operator.memory for operator in self.operators)

    @property
    def late_rows(self) -> int:
        """The rows of the latest batch that were dropped because they were too late."""
        return sum(operator.late_rows for operator in self.operators)

    @property
    def backlog(self) -> int | None:
        """What waits in those of its sources that say so; None if none does."""
        known = [source.backlog for source in self.sources if source.backlog is not None]
        return sum(known) if known else None

    @property
    def behind_ms(self) -> int:
        """For how long it has been falling behind, up to the end of its latest batch, or as far as the next one ran."""
        if not self.behind_since_ms:
            return 0
        ended_ms = self.started_ms + self.duration_ms
        return elapsed_ms(self.behind_since_ms, max(ended_ms, self.running_since_ms + self.running_ms))

    @property
    def falls_behind(self) -> bool:
        """Whether it has been falling behind for long."""
        return self.active and self.behind_ms >= FALLS_BEHIND_MS


def since_behind(earlier: QueryFigures | None, latest: QueryFigures) -> int:
    """Return `behind_since_ms` of a batch, by those of the batch before it.

    A batch is behind if it took longer than the interval of its trigger, or left a backlog that is not smaller than
    the one that the batch before it had left.
    """
    late = 0 < latest.interval_ms < latest.duration_ms
    before, now = earlier.backlog if earlier is not None else None, latest.backlog
    growing = before is not None and now is not None and 0 < before <= now
    if not late and not growing:
        return 0
    return (earlier.behind_since_ms if earlier is not None else 0) or latest.started_ms


def with_running(known: QueryFigures, since_ms: int, running_ms: int) -> QueryFigures:
    """Return the figures of a query a batch of which runs, since then and for so long; `since_ms` 0: none runs.

    A batch that runs for longer than the interval of its trigger is behind, before it ends. The result is the same
    object if it is not worth a message: of a query that is not behind, only when a batch begins to run, and ends.
    """
    late = bool(since_ms) and 0 < known.interval_ms < running_ms
    behind_since_ms = known.behind_since_ms or (since_ms if late else 0)
    same = (since_ms, behind_since_ms) == (known.running_since_ms, known.behind_since_ms)
    if same and (not since_ms or not behind_since_ms or running_ms < known.running_ms + REPORT_MS):
        return known
    return structs.replace(
        known, running_since_ms=since_ms, running_ms=running_ms if since_ms else 0, behind_since_ms=behind_since_ms
    )


def without_data(known: QueryFigures, since_ms: int = 0, quiet_ms: int = 0) -> QueryFigures:
    """Return the figures of a query that has processed all that its sources have: it is not behind any more.

    `since_ms` and `quiet_ms`: since when, and for how long that has been so. After a while the query is idle: the rates
    of its latest batch are not those of now.
    """
    if known.running_since_ms or known.behind_since_ms:
        known = structs.replace(known, running_since_ms=0, running_ms=0, behind_since_ms=0)
    if known.idle_since_ms or quiet_ms < max(IDLE_MS, known.interval_ms):
        return known
    sources = tuple(structs.replace(each, input_rate=0.0, processed_rate=0.0) for each in known.sources)
    return structs.replace(known, idle_since_ms=since_ms, input_rate=0.0, processed_rate=0.0, sources=sources)


def interval_ms(text: str) -> int:
    """Return an interval in Spark's words, such as `1 minute 30 seconds`, in milliseconds; 0 if it has none."""
    return round(sum(float(number) * _UNIT_MS[unit.lower()] for number, unit in _INTERVAL.findall(text)))
