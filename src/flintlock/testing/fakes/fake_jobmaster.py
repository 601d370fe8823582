"""JobMasters that run nothing: one records what it receives, one ends its job when and how the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flintlock.gateways.jobmaster import JobListener
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.commands import CancelJob, CommandAccepted, JobCommand, RescaleJob, TaskAnswer, TaskQuery
from flintlock.model.errors import Conflict, FlintlockError, NotFound
from flintlock.model.ids import AttemptId, JobId, StepName
from flintlock.model.jobs import (
    ExceptionEntry,
    ExecutionInfo,
    JobHistory,
    JobOutcome,
    JobRequirements,
    JobSnapshot,
    StoredJob,
)
from flintlock.model.regions import regions_of
from flintlock.model.slots import (
    DeployedTasks,
    NoResources,
    SlotGrant,
    TaskManagerLost,
    UnwantedTasks,
)
from flintlock.model.states import JOB_MOVES, JobStatus, checked_move
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    RegionRecord,
    ResultRows,
    TaskReport,
)


class FakeJobMaster:
    """A JobMasterGateway that records its messages. `fail_with` is raised by every call."""

    def __init__(self) -> None:
        self.received: list[SlotGrant | TaskManagerLost | NoResources] = []  # in order of arrival
        self.causes: list[CauseId | None] = []  # of each of them, and of each report
        self.reconciled: list[DeployedTasks] = []
        self.unwanted: set[AttemptId] = set()  # the attempts that `reconcile` returns as unwanted
        self.reports: list[TaskReport] = []
        self.fail_with: FlintlockError | None = None
        self.tries = 0  # calls of any kind, failed ones too
        self.delay_s = 0.0  # how long a report takes to be answered

    @property
    def grants(self) -> list[SlotGrant]:
        """The grants that were received."""
        return [message for message in self.received if isinstance(message, SlotGrant)]

    @property
    def losses(self) -> list[TaskManagerLost]:
        """The losses that were received."""
        return [message for message in self.received if isinstance(message, TaskManagerLost)]

    def reports_of(self, attempt: AttemptId) -> list[TaskReport]:
        """Return the reports of one attempt."""
        return [report for report in self.reports if report.attempt == attempt]

    async def slots_granted(self, message: SlotGrant) -> None:
        """Record it."""
        self._try()
        self.received.append(message)
        self.causes.append(current_cause())

    async def task_manager_lost(self, message: TaskManagerLost) -> None:
        """Record it."""
        self._try()
        self.received.append(message)
        self.causes.append(current_cause())

    async def no_resources(self, message: NoResources) -> None:
        """Record it."""
        self._try()
        self.received.append(message)
        self.causes.append(current_cause())

    async def reconcile(self, message: DeployedTasks) -> UnwantedTasks:
        """Record it; the attempts in `unwanted` are unwanted."""
        self._try()
        self.reconciled.append(message)
        return UnwantedTasks(attempts=tuple(attempt for attempt in message.attempts if attempt in self.unwanted))

    async def report(self, message: TaskReport) -> None:
        """Record it."""
        self.tries += 1
        await asyncio.sleep(self.delay_s)
        self._fail()
        self.reports.append(message)
        self.causes.append(current_cause())

    def _try(self) -> None:
        self.tries += 1
        self._fail()

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


class FakeJobMasterRunner:
    """Satisfies JobMasterRunner: goes to RUNNING when it is run, records commands, ends as the test decides.

    Like the real one it may be cancelled before it runs, notifies its listener of every change, shows a terminal status
    as soon as it has one, and leaves the job as it is when its `run` is cancelled.
    """

    def __init__(
        self,
        job: StoredJob,
        progress: tuple[RegionRecord, ...],
        listener: JobListener,
        clock_ms: Callable[[], int],
    ) -> None:
        self.job: Final = job
        self.progress: Final = progress
        self.history: JobHistory | None = None  # as the factory was given it
        self.cluster_ms: Callable[[], int] = clock_ms  # likewise
        self.status = JobStatus.INITIALIZING  # written by `move`
        self.cancels = 0  # how often a cancel was received
        self.obeys = True  # a cancel ends the job at once; else it stays CANCELLING until `end`
        self.publishing = False  # it can no longer be cancelled
        self.answers_with: Exception | None = None  # raised by the query of its snapshot
        self.stops_in_s = 0.0  # how long it takes to end when its `run` is cancelled
        self.queries: list[TaskQuery] = []
        self.executions: tuple[ExecutionInfo, ...] = ()
        self.required: list[JobRequirements] = []  # latest last
        self.commands: list[JobCommand] = []
        self.command_fails_with: Exception | None = None
        self.cause: CauseId | None = None  # of its `run`
        self.suspended = False  # its `run` was cancelled, and has ended
        self._listener: Final = listener
        self._clock_ms: Final = clock_ms
        self._timestamps: Final = {JobStatus.INITIALIZING: job.submitted_ms}
        self._exceptions: tuple[ExceptionEntry, ...] = ()
        self._result_names: tuple[StepName, ...] = ()
        self._outcome: JobOutcome | Exception | None = None  # how it ends, once that is decided
        self._decided: Final = asyncio.Event()

    # JobMasterRunner

    async def run(self) -> JobOutcome:
        """Run until the test decides how the job ends."""
        self.cause = current_cause()
        if self.status is JobStatus.INITIALIZING:
            self.move(JobStatus.CREATED)
            self.move(JobStatus.RUNNING)
        try:
            await self._decided.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(self.stops_in_s)
            self.suspended = True
            raise
        if isinstance(self._outcome, JobOutcome):
            return self._outcome
        raise self._outcome or AssertionError("decided without an outcome")

    def snapshot(self) -> JobSnapshot:
        """Return the job as it is now."""
        if self.answers_with is not None:
            raise self.answers_with
        return self._as_is()

    def _as_is(self) -> JobSnapshot:
        return JobSnapshot(
            graph=self.job.graph,
            regions=regions_of(self.job.graph),
            status=self.status,
            timestamps=dict(self._timestamps),
            end_ms=self._timestamps[self.status] if self.status.globally_terminal else -1,
            last_modified_ms=max(self._timestamps.values()),
            executions=self.executions,
            exceptions=self._exceptions,
            result_names=self._result_names,
        )

    def command(self, command: JobCommand) -> None:
        """Carry out a command."""
        self.commands.append(command)
        if self.command_fails_with is not None:
            raise self.command_fails_with
        match command:
            case CancelJob():
                self.cancel()
            case RescaleJob(job_id=job_id, vertices=vertices):
                self.required.append(JobRequirements(job_id=job_id, vertices=vertices))

    async def query_task(self, query: TaskQuery) -> TaskAnswer:
        """Record the query."""
        self.queries.append(query)
        return CommandAccepted()

    def cancel(self) -> None:
        """End the job, unless it disobeys."""
        self.cancels += 1
        if self.status.globally_terminal or self.status is JobStatus.CANCELLING:
            return
        if self.publishing:
            raise Conflict(f"job {self.job.graph.job_id} is publishing its files and can no longer be cancelled")
        self.move(JobStatus.CANCELLING)
        if self.obeys:
            self.end(JobStatus.CANCELED)

    def requirements(self) -> JobRequirements:
        """Return what was required last."""
        return self.required[-1]

    # What a test does with it

    def move(self, status: JobStatus) -> None:
        """Go to another status. Raises InvariantBroken for one that cannot follow."""
        self.status = checked_move(JOB_MOVES, self.status, status)
        self._timestamps[status] = self._clock_ms()
        self._listener(self.job.graph.job_id)

    def end(self, status: JobStatus, *, results: tuple[ResultRows, ...] = (), scratch: tuple[str, ...] = ()) -> None:
        """End the job with this outcome. The status changes at once; `run` returns when its task is scheduled."""
        self.move(status)
        self._result_names = tuple(rows.name for rows in results)
        self._outcome = JobOutcome(snapshot=self._as_is(), results=results, scratch=scratch)
        self._decided.set()

    def finish(self, *results: ResultRows, scratch: tuple[str, ...] = ()) -> None:
        """End the job as FINISHED, with these results."""
        self.end(JobStatus.FINISHED, results=results, scratch=scratch)

    def fail(self, message: str) -> None:
        """End the job as FAILED, for this reason."""
        self.move(JobStatus.FAILING)
        failure = Failure(kind=FailureKind.USER_CODE, message=message, exception="ValueError")
        self._exceptions = (ExceptionEntry(failure=failure, timestamp_ms=self._clock_ms()),)
        self.end(JobStatus.FAILED)

    def crash(self, error: Exception) -> None:
        """End `run` by an error: a bug of the JobMaster itself."""
        self._outcome = error
        self._decided.set()


class FakeJobMasterFactory:
    """Satisfies JobMasterFactory; records every runner that it made, and raises `fail_with` if set."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self.made: Final[list[FakeJobMasterRunner]] = []
        self.fail_with: Exception | None = None  # raised instead of making a runner
        self.fail_for: Final[dict[JobId, Exception]] = {}  # the same, for some jobs
        self.prepare: Callable[[FakeJobMasterRunner], None] = lambda _: None  # called with each before it is run
        self._clock_ms: Final = clock_ms

    def __call__(
        self,
        job: StoredJob,
        progress: tuple[RegionRecord, ...],
        listener: JobListener,
        cluster_ms: Callable[[], int],
        history: JobHistory | None = None,
    ) -> FakeJobMasterRunner:
        """Make a runner."""
        failure = self.fail_for.get(job.graph.job_id, self.fail_with)
        if failure is not None:
            raise failure
        runner = FakeJobMasterRunner(job, progress, listener, self._clock_ms)
        runner.history, runner.cluster_ms = history, cluster_ms
        self.made.append(runner)
        self.prepare(runner)
        return runner

    def runner(self, job_id: JobId) -> FakeJobMasterRunner:
        """Return the latest runner of a job. Raises NotFound if none was made."""
        for runner in reversed(self.made):
            if runner.job.graph.job_id == job_id:
                return runner
        raise NotFound(f"no JobMaster was made for job {job_id}")
