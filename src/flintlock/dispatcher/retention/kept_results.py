"""What stays of failed jobs, so that another job can continue where they failed: for how long, and how much of it.

A failed job that can be continued (`model/checking/rerun.py`) keeps its recorded progress and its blocking results.
Until they are removed its result is dirty, so whichever process leads then removes them; nothing else has to be stored.
A job that continues it (`JobGraph.reuses`) begins with copies of the records, under its own id, and reads the results
where they are:

    RESERVED  the earlier job keeps its results, and from now on they are in use
    before the JobMaster  the records are copied; a leader that dies meanwhile leaves some of them, and the next one
              adds the others
    running   an input that is not what its manifest says is a missing input, and its region runs again
    ended     the results are no longer in use

Results that are in use stay, whatever their age and size. Decisions and removals are in one thread without a pause in
between: a job is either refused, or finds the records.

Rejected: moving the results to the new job. A crash in between leaves them with neither, and two jobs may continue the
same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from msgspec import structs

from flintlock.dispatcher.retention.retention_clock import RetentionClock
from flintlock.model.checking.rerun import continuation_refusal
from flintlock.model.errors import Conflict
from flintlock.model.ids import InstanceId, JobId, TaskManagerId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobOutcome, JobSnapshot, KeptResults
from flintlock.model.regions import regions_of
from flintlock.model.tasks import RegionPhase, RegionRecord

#: So many failed jobs keep their results at most: each of them is a task of the Dispatcher, and a dirty result.
MAX_JOBS: Final = 1000

#: How often results that are due, but in use, are looked at.
_IN_USE_S: Final = 5.0
#: The longest wait: the retention clock may stand still for a while.
_LONGEST_WAIT_S: Final = 3600.0

_NOT_KEPT: Final = "run it again as a whole, without --from-failed"


def results_to_keep(outcome: JobOutcome, retention_s: float, job_retention_s: float) -> KeptResults | None:
    """Return what is kept of a job that has just ended; None if there is nothing that another one could use."""
    snapshot = outcome.snapshot
    if retention_s <= 0 or continuation_refusal(snapshot) is not None:
        return None
    own = f"/{snapshot.graph.job_id}"
    return KeptResults(
        until_ms=snapshot.ended_at_ms + round(min(retention_s, job_retention_s) * 1000),
        directories=tuple(path for path in outcome.scratch if path.rstrip("/").endswith(own)),
        bytes=_materialised_bytes(snapshot),
    )


def reused_records(
    graph: JobGraph, earlier: Iterable[RegionRecord], own: Iterable[RegionRecord], now_ms: int
) -> tuple[RegionRecord, ...]:
    """Return the records with which a job begins: of each region that finished in the earlier job, unless it has one.

    A region that was published, and only computed its blocking results again when its job failed, has finished. Results
    that are gone are found by their reader.
    """
    known = {record.region for record in own}
    materialises = {region.id: frozenset(region.materialises) for region in regions_of(graph)}
    return tuple(
        RegionRecord(
            job_id=graph.job_id,
            region=record.region,
            phase=RegionPhase.FINISHED,
            attempt=0,
            task_manager=TaskManagerId(""),
            instance=InstanceId(""),
            outcome=structs.replace(record.outcome, sinks=(), output_tail=b""),
            recorded_ms=now_ms,
            reused_from=record.reused_from or record.job_id,
        )
        for record in earlier
        if record.phase is not RegionPhase.ACCEPTED
        and record.outcome is not None
        and record.region not in known
        and materialises.get(record.region, frozenset({""})) <= record.outcome.materialised.keys()
    )


def no_longer_kept(job_id: JobId) -> Conflict:
    """Return the refusal of a job that would continue one whose results are not there."""
    return Conflict(
        f"the results of job {job_id} are not kept, or no longer (execution.failed-jobs.results-retention,"
        f" execution.failed-jobs.max-size): {_NOT_KEPT}"
    )


def _materialised_bytes(snapshot: JobSnapshot) -> int:
    latest = [(region, snapshot.current(region.id)) for region in snapshot.regions]
    return sum(
        output.bytes
        for region, execution in latest
        if execution is not None
        for output in execution.outputs
        if output.step in region.materialises
    )


@dataclass(slots=True)
class _Held:
    bytes: int
    until_ms: int
    released: asyncio.Event = field(default_factory=asyncio.Event)


class KeptResultsRegistry:
    """The failed jobs of one term that keep their results."""

    def __init__(self, clock: RetentionClock, max_bytes: int, in_use: Callable[[JobId], bool]) -> None:
        self._clock: Final = clock
        self._max_bytes: Final = max_bytes
        self._in_use: Final = in_use
        self._held: Final[dict[JobId, _Held]] = {}
        self._complete: Final = asyncio.Event()  # whether all jobs of earlier terms are registered; set by `open`
        self._ending = False  # set by `release_all`

    def open(self) -> None:
        """Allow removals: every job of earlier terms that uses results is registered now."""
        self._complete.set()

    def release_all(self) -> None:
        """Release all results, and those of jobs that fail from now on: the cluster ends."""
        self._ending = True
        for held in self._held.values():
            held.released.set()

    async def until_released(self, job_id: JobId, kept: KeptResults) -> None:
        """Return when the results of a job are to be removed: without a pause after the decision."""
        held = self._held[job_id] = _Held(kept.bytes, kept.until_ms)
        if self._ending:
            held.released.set()
        self._release_oldest()
        try:
            await self._complete.wait()
            while True:
                left_s = (kept.until_ms - self._clock.now_ms()) / 1000
                due = left_s <= 0 or held.released.is_set()
                if due and not self._in_use(job_id):
                    return
                if due:
                    await asyncio.sleep(_IN_USE_S)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, _LONGEST_WAIT_S)):
                        await held.released.wait()
        finally:
            del self._held[job_id]

    def _release_oldest(self) -> None:
        held = sorted(self._held.values(), key=lambda one: one.until_ms)
        total = sum(one.bytes for one in held)
        for number, oldest in enumerate(held):
            if total <= self._max_bytes and len(held) - number <= MAX_JOBS:
                return
            oldest.released.set()
            total -= oldest.bytes
