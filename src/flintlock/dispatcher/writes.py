"""The Dispatcher's writes of one term, each retried by the rule of `ha.leader_gate` until it is acknowledged.

Only a submission is written elsewhere (`job`): it is tried once, because its client is not to wait for a store, and
what it may have stored is removed. `log_and_continue` is for writes and sweeps that the next leader repeats: their
failure does not end the term.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, Fenced, FlintlockError, InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobResult, JobSnapshot, StoredJob
from flintlock.model.tasks import RegionRecord, ResultRows

log: FilteringBoundLogger = structlog.get_logger()


def is_fatal_to_term(error: BaseException) -> bool:
    """Return whether this error, or one in its group, ends the term instead of concerning one job.

    Fenced: a newer leader goes on. InvariantBroken: the state of the process can no longer be trusted.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((Fenced, InvariantBroken)) is not None
    return isinstance(error, Fenced | InvariantBroken)


def outcome_of(error: Exception, **facts: object) -> FlintlockError:
    """Return an error as the outcome of the one operation that it has ended; what nobody expected is logged.

    Raises it if it ends the term. Nothing else may: each leader would resume the operation, which is durable, and end.
    """
    if is_fatal_to_term(error):
        raise error
    if isinstance(error, FlintlockError):
        return error
    log.error(log_events.OPERATION_CRASHED, exc_info=error, **facts)
    return FlintlockError(f"an error that Flintlock did not expect: {error!r}")


@contextmanager
def log_and_continue(event: str, **facts: object) -> Generator[None]:
    """Log an error of the body and suppress it, unless it ends the term."""
    try:
        yield
    except Exception as error:
        if is_fatal_to_term(error):
            raise
        log.warning(event, reason=repr(error), **facts)


@contextmanager
def continue_without_damaged(event: str, **facts: object) -> Generator[None]:
    """Log a record that is damaged, and continue as if there were none.

    A store that does not answer is not that: the record may be there, and what it says must not be forgotten.
    """
    try:
        yield
    except Corrupt as error:
        log.warning(event, error=repr(error), **facts)


class TermWrites:
    """Writes under one term. Cancelled when the term ends: the next leader then reads what was written."""

    def __init__(self, stores: Stores, gate: LeaderGate) -> None:
        self._stores: Final = stores
        self._gate: Final = gate

    async def archive(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Archive an ended job. Raises Unavailable after a while: a job ends even if the archive does not accept it."""
        await self._gate.retry_until_acknowledged(
            lambda: self._stores.ended.put(snapshot, results), patience_s=PATIENCE_S
        )

    async def archive_quarantined(self, snapshot: JobSnapshot) -> None:
        """Archive a job before its graph is quarantined, however long it takes: nothing else knows of it after that."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.ended.put(snapshot, ()))

    async def end(self, result: JobResult) -> None:
        """Make a job's result durable. Raises InvariantBroken if it has another one already."""
        again = False

        async def create() -> None:
            nonlocal again
            try:
                await self._stores.results.create_dirty(result)
            except Unavailable:
                again = True
                raise
            except InvariantBroken:
                if not again or await self._stores.results.get(result.job_id) != result:
                    raise  # else it is this one: its acknowledgement was lost

        await self._gate.retry_until_acknowledged(create)

    async def mark_clean(self, job_id: JobId) -> None:
        """Record that the cleanup of a job is done."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.results.mark_clean(job_id))

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Quarantine a job's graph."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.quarantine(job_id, reason))

    async def remove_graph(self, job_id: JobId) -> None:
        """Remove the graph of a job that has ended."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.remove(job_id))

    async def replace(self, job: StoredJob) -> None:
        """Store a job as it is after a change. Raises NotFound if the job has ended meanwhile."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.replace(job))

    async def revert(self, job: StoredJob) -> None:
        """Store a job as it was before a change whose outcome is open. Harmless if the job has ended meanwhile."""

        async def replace() -> None:
            try:
                await self._stores.graphs.replace(job)
            except NotFound:
                return

        await self._gate.retry_until_acknowledged(replace)

    async def record(self, record: RegionRecord) -> None:
        """Record the progress of a region."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.progress.record(record))

    async def progress(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return the recorded progress of a job. Raises Corrupt."""
        return await self._gate.retry_until_acknowledged(lambda: self._stores.progress.read(job_id))
