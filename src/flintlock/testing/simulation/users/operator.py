"""An operator who looks after quarantined jobs during faults: repairs and retries some, and drops the others.

Promised is: a job whose graph cannot be read does not keep the others from running; it is listed with the reason until
it is put back, and then runs to an end like any other, or dropped, and then cleaned up like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from random import Random
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import Conflict, FlintlockError, NotFound
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobQuery, QuarantinedJob
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.memory_ha import MemoryCluster
from flintlock.testing.simulation.workload import ObservedJob

_CLEANED_UP: Final = "cleaned up"  # part of the reason why a job cannot be retried yet


class QuarantineOperator:
    """Retries or drops every job that is quarantined, until cancelled."""

    def __init__(
        self,
        random: Random,
        records: MemoryCluster,
        intact: dict[JobId, bytes],
        blocking: Container[JobId],
        jobs: list[ObservedJob],
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        self.violations: Final[list[str]] = []
        self._random: Final = random
        self._records: Final = records
        self._intact: Final = intact  # the graphs that were damaged, as they were before
        self._blocking: Final = blocking  # jobs that have cost two leaders
        self._jobs: Final = jobs
        self._gateway: Final = gateway
        self._try_another: Final = try_another
        self._record: Final = record

    async def run(self) -> None:
        """Retry and drop quarantined jobs until cancelled."""
        while True:
            await asyncio.sleep(self._random.uniform(0.2, 10.0))
            try:
                for job in (await self._gateway().quarantined_jobs()).jobs:
                    await self._handle(job)
            except FlintlockError:
                self._try_another()

    async def _handle(self, job: QuarantinedJob) -> None:
        if job.job_id not in self._intact and job.job_id not in self._blocking:
            self.violations.append(f"job {job.job_id} is quarantined, though its graph was intact: {job.reason}")
            return
        await self._check_is_failed(job)
        # A client may learn that its job was accepted only after the job was quarantined.
        observed = next((each for each in self._jobs if job.job_id in (each.acknowledged, each.graph.job_id)), None)
        if self._random.random() < 0.5:
            await self._drop(job.job_id, observed)
        else:
            await self._retry(job.job_id, observed)

    async def _check_is_failed(self, job: QuarantinedJob) -> None:
        """Check that clients see the reason."""
        try:
            shown = await self._gateway().job(JobQuery(job_id=job.job_id))
        except NotFound:
            self.violations.append(f"job {job.job_id} is quarantined, and clients do not find it")
            return
        if shown.status is not JobStatus.FAILED and not self._records.graphs.get(job.job_id):
            self.violations.append(f"job {job.job_id} is quarantined, and clients see it {shown.status}")

    async def _drop(self, job_id: JobId, observed: ObservedJob | None) -> None:
        if observed is not None:
            observed.dropped = True
        while True:
            try:
                await self._gateway().drop_quarantined(JobQuery(job_id=job_id))
            except Conflict as error:
                if _CLEANED_UP not in error.public:
                    self.violations.append(f"job {job_id} cannot be dropped: {error.public}")
                    return
            except NotFound:
                self.violations.append(f"job {job_id} was quarantined, and cannot be found to be dropped")
                return
            except FlintlockError:
                self._try_another()
            else:
                self._record(f"job {job_id} is dropped")
                return
            await asyncio.sleep(0.5)

    async def _retry(self, job_id: JobId, observed: ObservedJob | None) -> None:
        if observed is not None:  # from now on clients may see it run
            observed.restored = True
            observed.cancelled_ids.discard(job_id)
        if job_id in self._records.quarantined and job_id in self._intact:
            reason, _ = self._records.quarantined[job_id]
            self._records.quarantined[job_id] = (reason, self._intact[job_id])
        while True:
            try:
                await self._gateway().retry_quarantined(JobQuery(job_id=job_id))
            except Conflict as error:
                if _CLEANED_UP not in error.public:
                    self.violations.append(f"job {job_id} is repaired, and cannot be retried: {error.public}")
                    return
            except NotFound:
                return  # it was put back, and has ended since: the answer was lost
            except FlintlockError:
                self._try_another()
            else:
                self._record(f"job {job_id} is retried")
                return
            await asyncio.sleep(0.5)
