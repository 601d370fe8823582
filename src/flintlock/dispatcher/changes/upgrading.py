"""Jobs that take the place of a streaming job that runs: `flintlock upgrade`.

The new job is a job of its own from the beginning, and its record says what is left to do:

    submitted   a savepoint of the running job is compared with the new graph, and removed: what does not fit is
                refused, and nothing has happened
    stored      with the id and the graph of its predecessor, and with the place of the savepoint that is to be made
    starting    the predecessor is stopped with that savepoint, an operation whose trigger id is the new job's id: every
                leader that finds the new job not restored triggers it again, and waits for the end. A new job
                that is cancelled meanwhile is CANCELED, one whose predecessor cannot be stopped FAILED
    restored    as every job that begins from a savepoint; its queries keep their ids
    failed      before it has committed a batch: the graph of its predecessor is submitted again, from the same
                savepoint (or a copy that has the batches, too, that were begun), under an id that follows from the
                failed one's, before that has ended durably. A leader that finds both does not run the failed one again

So each step is found in the store by the next leader, and repeating one is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

import structlog
from msgspec import structs
from structlog.typing import FilteringBoundLogger

from flintlock.config.options import RESTORE_CLAIM_MODE, RESTORE_PATH
from flintlock.dispatcher import core
from flintlock.dispatcher.changes.retries import wait_for_storage
from flintlock.dispatcher.job import DispatchedJob
from flintlock.dispatcher.services import Savepoints
from flintlock.model import log_events
from flintlock.model.commands import JobOperation, OperationFailure, StopJob, TriggerOperation
from flintlock.model.errors import Conflict, Corrupt, DuplicateJob, Invalid, NotFound, Refused, Unavailable
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobgraph import JobGraph, JobType
from flintlock.model.jobs import JobQuery, JobSnapshot, JobSubmission, JobUpgrade, StoredJob, Submitted

log: FilteringBoundLogger = structlog.get_logger()

#: How often is looked whether the predecessor has ended.
_STOP_INTERVAL_S: Final = 0.2


class UpgradingDispatcher(Protocol):
    """What an upgrade needs of the Dispatcher."""

    @property
    def jobs(self) -> Mapping[JobId, DispatchedJob]:
        """The registered jobs."""
        ...

    @property
    def recovered(self) -> asyncio.Event:
        """Set once all jobs of earlier terms are registered: before that, one that is not there may still come."""
        ...

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Return the details of one job, also of one that has ended."""
        ...

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Persist and start a job."""
        ...

    async def trigger(self, message: TriggerOperation) -> JobOperation:
        """Trigger an operation."""
        ...


class Upgrades:
    """Carries out the upgrades of one term."""

    def __init__(self, dispatcher: UpgradingDispatcher, savepoints: Savepoints) -> None:
        self._dispatcher: Final = dispatcher
        self._savepoints: Final = savepoints

    async def prepared(self, graph: JobGraph) -> tuple[JobGraph, JobUpgrade]:
        """Check that a graph can take the place of the job that it names; return it as it is stored.

        Nothing of that job is changed. Raises NotFound or Conflict if it does not run, or another job is taking its
        place; Invalid with every reason why the graph does not fit its state. The caller registers the job without a
        pause.
        """
        predecessor = JobId(graph.upgrade_of)
        job = self._dispatcher.jobs.get(predecessor)
        if job is None or not job.visible:
            raise NotFound(f"there is no running job {predecessor} to be upgraded")
        job.check_runs()
        former = job.stored.graph
        if former.job_type is not JobType.STREAMING or graph.job_type is not JobType.STREAMING:
            raise Invalid("only streaming jobs can be upgraded, and only to streaming jobs")
        if graph.config.get(RESTORE_PATH.key):
            raise Invalid(f"{RESTORE_PATH.key} cannot be set: an upgrade continues from where job {predecessor} is")
        self._check_free(job, graph.job_id)
        async with job.changes.saving:
            await self._savepoints.check_upgrade(former, graph)
        self._check_free(job, graph.job_id)  # again: that took its time
        place = self._savepoints.place(former, TriggerId(graph.job_id))
        config = {**graph.config, RESTORE_PATH.key: place, RESTORE_CLAIM_MODE.key: "CLAIM"}
        return structs.replace(graph, name=former.name, config=config), JobUpgrade(former=former)

    def _check_free(self, predecessor: DispatchedJob, successor: JobId) -> None:
        """Raise Conflict if a job no longer runs, is being stopped, or has a successor that is not this one."""
        job_id = predecessor.job_id
        predecessor.check_runs()
        if predecessor.has_result:
            raise predecessor.has_ended()
        for other in self._dispatcher.jobs.values():
            if other.job_id != successor and other.takes_place_of == job_id:
                raise Conflict(f"job {other.job_id} is taking the place of job {job_id} already")
        predecessor.changes.check_not_stopping(job_id)

    async def stop_predecessor(self, job: StoredJob, is_cancelled: Callable[[], bool]) -> bool:
        """Stop the job whose place this one takes, with a savepoint; return whether it has ended, however that was.

        False: this job was cancelled before. A stop that has begun is completed all the same; one that has not is not
        begun. The timeout of this job does not end it: neither of the two would run then. Raises Unavailable if the
        stop was refused: the predecessor runs on.
        """
        if job.upgrade is None:
            return True
        await self._dispatcher.recovered.wait()
        predecessor = job.upgrade.former.job_id
        stop = StopJob(job_id=predecessor, successor=job.graph.job_id, requested_by=job.graph.submitted_by)
        trigger = TriggerOperation(trigger_id=TriggerId(job.graph.job_id), command=stop)
        while (former := self._dispatcher.jobs.get(predecessor)) is not None and not former.ended:
            if is_cancelled():
                return False
            failure: OperationFailure | None = None
            with suppress(Unavailable, Conflict, NotFound):  # it has no JobMaster yet, or has just ended
                failure = (await self._dispatcher.trigger(trigger)).failure
            if failure is not None and not former.has_result:
                raise Unavailable(f"job {predecessor} could not be stopped: {failure.message}")
            await asyncio.sleep(_STOP_INTERVAL_S)
        return True

    def is_awaited(self, successor: JobId) -> bool:
        """Return whether a job that takes the place of another one has not ended. True while that is not known yet."""
        job = self._dispatcher.jobs.get(successor)
        return not self._dispatcher.recovered.is_set() or (job is not None and not job.ended and not job.has_result)

    async def was_reverted(self, job: StoredJob) -> bool:
        """Return whether a job that is recovered had failed, and the former graph was submitted again.

        The end of the one was not durable when its leader died. Run again, it would write to the sinks of the other.
        """
        if job.upgrade is None:
            return False
        await self._dispatcher.recovered.wait()
        again = core.id_of_former_again(JobId(job.graph.job_id))
        while again not in self._dispatcher.jobs:
            try:
                await self._dispatcher.job(JobQuery(job_id=again))
            except NotFound:
                return False
            except Unavailable:
                await asyncio.sleep(_STOP_INTERVAL_S)
            except Corrupt:  # how it ended is damaged
                break
            else:
                break
        return True

    async def go_back(
        self, job: StoredJob, *, is_over: Callable[[], bool], show: Callable[[str], None]
    ) -> JobId | None:
        """Run the former graph again if a job has failed before its first batch; return the id of that job.

        None if there is nothing to go back to, or no way back. Waits for the storage of the savepoint, but not once it
        `is_over`, which a timeout does not make it; what it waits for is passed to `show`.
        """
        if job.upgrade is None:
            return None
        if await self.was_reverted(job):  # by a leader that died then: what that job has written since does not count
            return core.id_of_former_again(JobId(job.graph.job_id))
        former = job.upgrade.former
        way_back = partial(self._savepoints.way_back, job.graph, former)
        savepoint = await wait_for_storage(way_back, is_over=is_over, show=show)
        if savepoint is None:
            return None
        await self._dispatcher.recovered.wait()  # else the former graph could be submitted over a recovered one
        graph = core.former_again(job.graph, former, savepoint)
        submit = partial(self._dispatcher.submit_job, JobSubmission(graph=graph))
        try:
            # Once it is registered, it is not given up: it may be stored.
            waits = lambda: graph.job_id not in self._dispatcher.jobs  # noqa: E731
            await wait_for_storage(submit, is_over=lambda: is_over() and waits(), show=show)
        except DuplicateJob:  # by a leader that died then
            return graph.job_id
        except (Refused, Unavailable) as error:
            log.error(log_events.JOB_UPGRADE_NOT_REVERTED, job_id=job.graph.job_id, reason=error.public)
            return None
        log.warning(log_events.JOB_UPGRADE_REVERTED, job_id=job.graph.job_id, successor=graph.job_id)
        return graph.job_id
