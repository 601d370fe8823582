"""The Dispatcher's writes of one term, each by the rule of `ha.leader_gate`: done again until it is known to be done.

Only a submission is not written here (`job`): its client does not wait, and what may be there of it is removed.
"""

from __future__ import annotations

from typing import Final

from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model.errors import InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobResult, JobSnapshot, StoredJob
from flintlock.model.tasks import RegionRecord, ResultRows


class TermWrites:
    """Writes under one term. Cancelled when the term ends: then the next leader finds out what took place."""

    def __init__(self, stores: Stores, gate: LeaderGate) -> None:
        self._stores: Final = stores
        self._gate: Final = gate

    async def archive(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Keep an ended job. Raises Unavailable after a while: one that does not fit keeps no job from ending."""
        await self._gate.retry_until_acknowledged(
            lambda: self._stores.ended.put(snapshot, results), patience_s=PATIENCE_S
        )

    async def end(self, result: JobResult) -> None:
        """Make durable how a job ended. Raises InvariantBroken if it has ended before, and otherwise."""
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
                    raise  # else it is our own, of which we had not heard

        await self._gate.retry_until_acknowledged(create)

    async def mark_clean(self, job_id: JobId) -> None:
        """Cleanup is done."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.results.mark_clean(job_id))

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Quarantine a graph."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.quarantine(job_id, reason))

    async def remove_graph(self, job_id: JobId) -> None:
        """Remove what is left of a job that has ended."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.remove(job_id))

    async def replace(self, job: StoredJob) -> None:
        """Store a job as it is after a change. Raises NotFound if the job has ended meanwhile."""
        await self._gate.retry_until_acknowledged(lambda: self._stores.graphs.replace(job))

    async def set_back(self, job: StoredJob) -> None:
        """Store a job as it was before a change whose outcome is open. Harmless if the job has ended meanwhile."""

        async def replace() -> None:
            try:
                await self._stores.graphs.replace(job)
            except NotFound:
                return

        await self._gate.retry_until_acknowledged(replace)

    async def progress(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return what is recorded of a job. Raises Corrupt; Unavailable after a while."""
        return await self._gate.retry_until_acknowledged(
            lambda: self._stores.progress.read(job_id), patience_s=PATIENCE_S
        )
