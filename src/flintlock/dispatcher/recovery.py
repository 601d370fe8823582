"""What a term begins with: read from the stores, and put right where it cannot be read.

Dirty results are read first: a job that has one has ended and is only cleaned up, whatever else is stored of it. The
other graphs are run on. What cannot be read is set aside, shown as FAILED with the reason, and the rest goes on; only
a store that cannot be listed at all is fatal.

A job that is archived but has no result has not ended: its leader died in between. It is run on, and its JobMaster
finds in its progress that nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher import core
from flintlock.dispatcher import log_events as events
from flintlock.dispatcher.snapshots import quarantined_snapshot, recorded_snapshot
from flintlock.dispatcher.tolerance import only_logged
from flintlock.ha.protocols import Stores
from flintlock.model.errors import Corrupt, Fenced, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobResult, JobSnapshot, JobSummary, StoredJob
from flintlock.model.tasks import RegionRecord

log: FilteringBoundLogger = structlog.get_logger()


class RecoveredJob(Struct, frozen=True, kw_only=True):
    """A job to be run on."""

    stored: StoredJob
    progress: tuple[RegionRecord, ...] = ()


class Recovery(Struct, frozen=True, kw_only=True):
    """What a term begins with. No job is both in `jobs` and in `dirty`."""

    jobs: tuple[RecoveredJob, ...] = ()
    dirty: tuple[JobResult, ...] = ()
    ended: tuple[JobSummary, ...] = ()


async def recover(stores: Stores, clock_ms: Callable[[], int]) -> Recovery:
    """Read what the term begins with. Raises only if a store cannot be listed or reached, or Fenced."""
    dirty = await stores.results.dirty()
    stored = await stores.graphs.ids()
    ended = {line.job_id: line for line in await stores.ended.summaries()}
    jobs: list[RecoveredJob] = []
    for job_id in core.graphs_to_recover(stored, dirty):
        if await _has_ended(stores, job_id, ended, clock_ms):
            continue
        job = await _recover_job(stores, job_id, ended, clock_ms)
        if job is not None:
            jobs.append(job)
    for result in dirty:
        if result.job_id not in ended:  # its own archive was never written: keep what the result tells
            ended[result.job_id] = await _archive(stores, recorded_snapshot(result))
    log.info(events.LEADER_RECOVERED, jobs=len(jobs), dirty=len(dirty), ended=len(ended))
    return Recovery(jobs=tuple(jobs), dirty=dirty, ended=tuple(ended.values()))


async def _has_ended(
    stores: Stores, job_id: JobId, ended: dict[JobId, JobSummary], clock_ms: Callable[[], int]
) -> bool:
    """Tell whether a graph without a readable dirty result belongs to a job that has ended, and put it away."""
    try:
        if await stores.results.get(job_id) is None:
            return False
    except Corrupt as error:  # it has ended; how, its archive may still tell
        if job_id not in ended:
            ended[job_id] = await _archive(stores, quarantined_snapshot(job_id, None, error.public, clock_ms()))
        await _set_aside(stores, job_id, error.public)
        return True
    log.warning(events.JOB_LEFTOVER, job_id=job_id)
    await stores.graphs.remove(job_id)
    return True


async def _recover_job(
    stores: Stores, job_id: JobId, ended: dict[JobId, JobSummary], clock_ms: Callable[[], int]
) -> RecoveredJob | None:
    """Return a job to run on. One that cannot be read is set aside, and enters `ended`."""
    stored: StoredJob | None = None
    try:
        stored = await stores.graphs.recover(job_id)
        _check_is(job_id, stored)
        return RecoveredJob(stored=stored, progress=await stores.progress.read(job_id))
    except (Fenced, Unavailable):
        raise
    except NotFound:  # removed since it was listed
        return None
    except Exception as error:  # noqa: BLE001 - one unreadable job, however it is unreadable, stops nobody else
        reason = error.public if isinstance(error, Corrupt) else repr(error)
        # Shown first, then set aside: a crash in between does both again.
        ended[job_id] = await _archive(stores, quarantined_snapshot(job_id, stored, reason, clock_ms()))
        await _set_aside(stores, job_id, reason)
        return None


def _check_is(job_id: JobId, stored: StoredJob) -> None:
    if stored.graph.job_id != job_id:
        raise Corrupt(f"what is stored as job {job_id} is job {stored.graph.job_id}")


async def _set_aside(stores: Stores, job_id: JobId, reason: str) -> None:
    log.error(events.JOB_QUARANTINED, job_id=job_id, reason=reason)
    await stores.graphs.quarantine(job_id, reason)


async def _archive(stores: Stores, snapshot: JobSnapshot) -> JobSummary:
    """Archive the snapshot of a job that has no JobMaster, as far as that is possible; return its line."""
    with only_logged(events.JOB_NOT_ARCHIVED, job_id=snapshot.graph.job_id):
        await stores.ended.put(snapshot, ())
    return snapshot.summary()
