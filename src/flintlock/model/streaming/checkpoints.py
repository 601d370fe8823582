"""The figures of a streaming query's batches, as they come with the progress of its task.

A message has all that is shown, so that a lost one, or a new leader, needs no other: the latest batches of the attempt,
and the batch that it continued after. A batch id counts from the first attempt of the query, so it is also the number
of batches that were committed before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct, structs

from flintlock.model.ids import TriggerId

MAX_BATCHES: Final = 10
"""The batches that one message has."""

MAX_OFFSET: Final = 1000
"""The length of the text of an offset; one of Kafka has each partition."""


class BatchFigures(Struct, frozen=True, kw_only=True):
    """One committed micro-batch, as Spark reports it."""

    batch: int
    started_ms: int
    duration_ms: int
    input_rows: int = 0
    state_rows: int = 0
    state_bytes: int = 0  # memory
    file_bytes: int = 0  # of the state's files; 0: its store does not say
    written_bytes: int = 0  # of them, what the batch has written; likewise
    offsets: tuple[str, ...] = ()  # where each source ends, as Spark writes it; of the latest batch only
    watermark: str = ""


class StateRescale(Struct, frozen=True, kw_only=True):
    """An operation for which the queries of a job are restarted: their state gets another number of partitions."""

    trigger_id: TriggerId
    partitions: int


class StateRescaled(Struct, frozen=True, kw_only=True):
    """What came of a rescale of one query. It runs either way: with `failure`, as it was."""

    trigger_id: TriggerId
    partitions: int = 0  # that its state has now; 0: it has none
    failure: str = ""


class QueryProgress(Struct, frozen=True, kw_only=True):
    """What one attempt of a query has committed."""

    checkpoint: str  # its directory
    restored: int | None = None  # the batch that it continued after; None: it started from the beginning
    started_ms: int = 0
    batches: tuple[BatchFigures, ...] = ()  # the latest, oldest first
    rescaled: StateRescaled | None = None  # by the operation that the attempt was started for
    gone_on: bool = False  # a batch after `restored` is committed, or in the sink; said when the attempt has failed


def brief_progress(progress: QueryProgress) -> QueryProgress:
    """Return what is stored of an ended attempt: where it began, and its last batch. The rest was for watching it."""
    return structs.replace(
        progress, batches=tuple(structs.replace(batch, offsets=()) for batch in progress.batches[-1:])
    )


def latest_batch(names: Iterable[str]) -> int | None:
    """Return the highest batch among the files of a log of Spark: `12`, `9.compact`; None if there is none."""
    batches = (name.removesuffix(".compact") for name in names)
    return max((int(batch) for batch in batches if batch.isdecimal()), default=None)
