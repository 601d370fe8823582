"""Properties of one job under any sequence of events: losses, late reports, repeated reports, crashes.

The machine acts as ResourceManager, store, TaskManagers, user and clock, in any order. Tasks that were once started
survive crashes of the JobMaster and may report at any time. After the random part no more faults happen and every
message is delivered, and the job has to end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.jobmaster.job_harness import CHAIN, FILES, JOB, JOIN, PAIR, SMALL, SUBMITTED_MS, covers, grant, staged

from flintlock.config.configuration import Configuration
from flintlock.jobmaster.core import refusal_to_cancel, step
from flintlock.jobmaster.events import (
    CancelAnswered,
    CancelRequested,
    Declare,
    DeploymentTaken,
    DeploymentUndelivered,
    DiscardStaging,
    Enrich,
    FindProgress,
    JobEffect,
    JobEvent,
    JobStarted,
    Moved,
    Probed,
    PublicationUndelivered,
    Record,
    Recorded,
    RecordHistory,
    SendCommand,
    SendDeploy,
    SendProbe,
    SendPublish,
    StartTimer,
    StepContext,
)
from flintlock.jobmaster.execution_graph import ExecutionGraph, RegionState, initial_state, plan_of
from flintlock.jobmaster.reporting.history import with_history
from flintlock.jobmaster.reporting.snapshot import outcome_of, snapshot_of
from flintlock.model.files.staging import staging_directories
from flintlock.model.ids import AttemptId, InstanceId, RegionId, RequestId, TaskManagerId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobHistory, StoredJob
from flintlock.model.slots import NoResources, SlotGrant, SlotRequest, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    PublicationFailed,
    RegionPhase,
    RegionRecord,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskReport,
    TaskRunning,
)

E = ExecutionState
J = JobStatus
GRAPHS = {"small": SMALL, "files": FILES, "chain": CHAIN, "pair": PAIR, "join": JOIN}
RETRIES = {
    "none": {"restart-strategy.type": "none"},
    "fixed": {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "3"},
    "exponential": {"restart-strategy.type": "exponential-delay"},
}
KINDS = [FailureKind.SPARK_TASK, FailureKind.USER_CODE, FailureKind.ENGINE_LOST]


@dataclass
class World:
    """All that is outside of the JobMaster, and outlives it."""

    durable: dict[RegionId, RegionRecord] = field(default_factory=dict[RegionId, RegionRecord])
    history: JobHistory | None = None
    tasks: dict[AttemptId, InstanceId] = field(default_factory=dict[AttemptId, InstanceId])  # alive, and where
    finished: dict[AttemptId, TaskFinished] = field(default_factory=dict[AttemptId, TaskFinished])  # as reported
    deployed_to: dict[AttemptId, InstanceId] = field(default_factory=dict[AttemptId, InstanceId])
    accepted: dict[RegionId, int] = field(default_factory=dict[RegionId, int])
    orders: list[SendPublish] = field(default_factory=list[SendPublish])
    published: set[AttemptId] = field(default_factory=set[AttemptId])

    def write(self, record: RegionRecord) -> None:
        """Make a record durable."""
        self.durable[record.region] = record
        accepted = self.accepted.get(record.region)
        assert accepted in (None, record.attempt), "at most one attempt of a region is accepted"
        if record.phase is not RegionPhase.DEPLOYED:
            self.accepted[record.region] = record.attempt


class JobMachine(RuleBasedStateMachine):
    """One job, under as many JobMasters as it takes."""

    graph: JobGraph
    cluster: dict[str, str]
    job: ExecutionGraph

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.now_ms = SUBMITTED_MS
        self.records: list[RegionRecord] = []  # asked for, not yet answered
        self.history: JobHistory | None = None  # the same; written before any record that was asked for later
        self.deployments: list[SendDeploy] = []
        self.cancellations: list[AttemptId] = []
        self.probes: list[AttemptId] = []
        self.refused: set[str] = set()  # claims
        self.timers: list[JobEvent] = []
        self.granted: dict[str, SlotGrant] = {}
        self.requests: dict[str, SlotRequest] = {}
        self.states: dict[str, str] = {}  # of the job and of its attempts, as they were logged
        self.incarnations = 0
        self.cancel_taken = False  # by this JobMaster
        self.ended: ExecutionGraph | None = None

    # The JobMaster

    @initialize(graph=st.sampled_from(sorted(GRAPHS)), retry=st.sampled_from(sorted(RETRIES)))
    def begin(self, graph: str, retry: str) -> None:
        self.graph = GRAPHS[graph]
        self.cluster = RETRIES[retry]
        self.revive()

    def revive(self) -> None:
        """Make a JobMaster from what is durable."""
        self.records, self.deployments, self.cancellations, self.timers = [], [], [], []
        self.history = None
        self.granted, self.requests, self.states, self.probes, self.refused = {}, {}, {}, [], set()
        self.cancel_taken, self.ended = False, None
        plan = plan_of(self.graph, Configuration(self.cluster), "/work")
        stored = StoredJob(graph=self.graph, submitted_ms=SUBMITTED_MS)
        self.job = with_history(
            initial_state(plan, stored, tuple(self.world.durable.values()), self.now_ms), self.world.history
        )

    @property
    def regions(self) -> tuple[RegionState, ...]:
        return self.job.regions if hasattr(self, "job") else ()

    def apply(self, event: JobEvent) -> None:
        self.now_ms += 7
        self.job, effects = step(self.job, event, StepContext(now_ms=self.now_ms, cluster_ms=self.now_ms))
        for effect in effects:
            self.perform(effect)
        if self.job.status.terminal and self.ended is None:
            self.ended = self.job

    def perform(self, effect: JobEffect) -> None:
        world = self.world
        match effect:
            case Moved(subject, old, new):
                if subject in self.states:
                    assert old == self.states[subject], "every state follows from the one before it"
                self.states[subject] = new
            case Declare(requirements):
                self.requests = {request.id: request for request in requirements.requests}
                self.granted = {key: value for key, value in self.granted.items() if key in self.requests}
            case Record(record):
                self.records.append(record)
            case RecordHistory(history):
                self.history = history
            case SendDeploy(instance=instance, order=order):
                assert not self.cancel_taken, "a cancelled job deploys nothing"
                record = world.durable[order.attempt.region]
                assert (record.phase, record.attempt) == (RegionPhase.DEPLOYED, order.attempt.attempt)
                assert record.instance == instance, "where it goes is recorded before it goes there"
                region = self.job.regions[order.attempt.region].plan
                assert all(
                    covers(record.staging, each) for each in staging_directories(self.graph, region, order.attempt)
                )
                for upstream in region.upstream:
                    assert world.durable[upstream].phase is RegionPhase.FINISHED
                assert world.deployed_to.setdefault(order.attempt, instance) == instance, "numbers never repeat"
                self.deployments.append(effect)
            case SendCommand(order=order):
                self.cancellations.append(order.attempt)
            case SendPublish(order=order):
                record = world.durable[order.attempt.region]
                assert (record.phase, record.attempt) == (RegionPhase.ACCEPTED, order.attempt.attempt)
                world.orders.append(effect)
            case StartTimer(event=event):
                self.timers.append(event)
            case SendProbe(attempt=attempt):
                self.probes.append(attempt)
            case Enrich() | DiscardStaging() | FindProgress():
                pass  # there are no enrichers, no files, and no job takes the place of another one

    # What may happen

    @precondition(lambda self: self.job.status is J.INITIALIZING)
    @rule()
    def start(self) -> None:
        self.apply(JobStarted())

    @precondition(lambda self: self.incarnations < 3 and self.world.durable)
    @rule(crash_after=st.integers(0, 3), remembered=st.booleans())
    def crash(self, crash_after: int, remembered: bool) -> None:
        """The JobMaster dies; some of what it was writing is durable, in the order of writing."""
        self.incarnations += 1
        if remembered or self.records[:crash_after]:
            self.store_history()
        for record in self.records[:crash_after]:
            self.world.write(record)
        self.revive()

    @precondition(lambda self: self.world.tasks and not self.cancel_taken)
    @rule()
    def ask_to_cancel(self) -> None:
        if refusal_to_cancel(self.job) is None:
            self.apply(CancelRequested())
            self.cancel_taken = True
            assert self.job.status in (J.CANCELLING, J.CANCELED)
        else:
            assert all(
                region.finished or region.committed or region.current.state.terminal for region in self.job.regions
            )

    @rule(steps=st.integers(1, 7))
    def all_goes_well_for_a_while(self, steps: int) -> None:
        """Most of the time nothing bad happens: this is how deep places are reached."""
        self.apply(JobStarted())
        for _ in range(steps):
            self.step_forward(patient=True)

    @precondition(lambda self: self.requests.keys() > self.granted.keys())
    @rule(data=st.data(), on=st.sampled_from(["tm-1", "tm-2"]))
    def grant_slots(self, data: st.DataObject, on: str) -> None:
        self.serve(data.draw(st.sampled_from(sorted(set(self.requests) - set(self.granted)))), on)

    def serve(self, request: str, on: str) -> None:
        claim = self.requests[request].claim
        if claim is not None:
            if self.world.tasks.get(claim.attempt) != claim.instance:
                self.refused.add(request)
                self.apply(NoResources(job_id=JOB, request=RequestId(request), reason="it came back without it"))
                return
            on = claim.task_manager
        self.granted[request] = grant(self.requests[request], on)
        self.apply(self.granted[request])
        granted = self.job
        self.apply(self.granted[request])  # twice is once
        self.apply(grant(SlotRequest(id=RequestId("9-9"), slots=1), on))  # and no region requested this
        assert self.job is granted

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def lose_task_manager(self, data: st.DataObject) -> None:
        on = data.draw(st.sampled_from(sorted({value.task_manager for value in self.granted.values()})))
        granted = [key for key, value in self.granted.items() if value.task_manager == on]
        for key in granted:
            del self.granted[key]
        lost = TaskManagerLost(
            job_id=JOB, task_manager=TaskManagerId(on), instance=InstanceId(f"{on}-instance"), reason="silent"
        )
        self.apply(lost)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        """The store answers; for one region in order, between regions in any order."""
        region = data.draw(st.sampled_from(sorted({record.region for record in self.records})))
        self.store_next(region)

    def store_history(self) -> None:
        if self.history is not None:
            self.world.history, self.history = self.history, None

    def store_next(self, region: RegionId) -> None:
        self.store_history()
        record = next(record for record in self.records if record.region == region)
        self.records.remove(record)
        self.world.write(record)
        self.apply(Recorded(record))

    @precondition(lambda self: self.deployments)
    @rule(arrives=st.booleans(), answered=st.booleans())
    def deliver_deployment(self, arrives: bool, answered: bool) -> None:
        sent = self.deployments.pop(0)
        attempt = sent.order.attempt
        if arrives:
            self.world.tasks[attempt] = sent.instance
        if arrives and answered:
            self.apply(DeploymentTaken(attempt, sent.instance))
        else:
            self.apply(DeploymentUndelivered(attempt, sent.instance, "no answer"))

    @precondition(lambda self: self.world.tasks)
    @rule(data=st.data())
    def a_task_finishes(self, data: st.DataObject) -> None:
        """Any task that was ever started may report, wanted or not, and more than once."""
        attempt = data.draw(st.sampled_from(sorted(self.world.tasks)))
        self.report(attempt, self.outcome(attempt))

    @precondition(lambda self: self.world.tasks)
    @rule(data=st.data(), kind=st.sampled_from(KINDS))
    def a_task_fails(self, data: st.DataObject, kind: FailureKind) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.world.tasks)))
        self.report(attempt, TaskFailed(failure=Failure(kind=kind, message="it failed")))

    @precondition(lambda self: self.world.tasks)
    @rule(data=st.data())
    def a_task_runs(self, data: st.DataObject) -> None:
        self.report(data.draw(st.sampled_from(sorted(self.world.tasks))), TaskRunning())

    def outcome(self, attempt: AttemptId) -> TaskFinished:
        region = self.job.regions[attempt.region].plan
        targets = staging_directories(self.graph, region, attempt)
        outcome = TaskFinished(
            materialised={step: f"/work/{step}" for step in region.materialises},
            sinks=(staged("part-0", target=targets[0]),) if targets else (),
        )
        return self.world.finished.setdefault(attempt, outcome)

    def report(self, attempt: AttemptId, news: TaskNews, instance: InstanceId | None = None) -> None:
        where = instance or self.world.tasks[attempt]
        self.apply(
            TaskReport(
                attempt=attempt, task_manager=TaskManagerId(where.removesuffix("-instance")), instance=where, news=news
            )
        )

    @precondition(lambda self: self.cancellations)
    @rule(lost=st.booleans())
    def deliver_cancellation(self, lost: bool) -> None:
        attempt = self.cancellations.pop(0)
        if lost:
            self.apply(CancelAnswered(attempt, unreachable=False))
        else:
            self.end(attempt)

    def end(self, attempt: AttemptId) -> None:
        """A TaskManager cancels an attempt; it confirms unknown ones too."""
        instance = self.world.tasks.pop(attempt, InstanceId("tm-1-instance"))
        self.apply(CancelAnswered(attempt, unreachable=False))
        self.report(attempt, TaskCanceled(), instance)

    @precondition(lambda self: self.probes)
    @rule(unreachable=st.booleans())
    def deliver_probe(self, unreachable: bool) -> None:
        """No probe reports an end or a refused connection while an attempt is alive in that incarnation."""
        attempt = self.probes.pop(0)
        alive = attempt in self.world.tasks
        self.apply(Probed(attempt, over=not alive and not unreachable, unreachable=not alive and unreachable))

    @precondition(lambda self: self.timers)
    @rule(data=st.data())
    def timer_goes_off(self, data: st.DataObject) -> None:
        event = data.draw(st.sampled_from(self.timers))
        self.timers.remove(event)
        self.apply(event)

    @precondition(lambda self: self.world.orders)
    @rule(data=st.data(), report=st.sampled_from(["part", "complete", "failed", "refused", "unreachable"]))
    def publisher_reports(self, data: st.DataObject, report: str) -> None:
        sent = data.draw(st.sampled_from(self.world.orders))
        self.publish(sent, report)

    def publish(self, sent: SendPublish, report: str) -> None:
        attempt = sent.order.attempt
        match report:
            case "part":
                self.report(attempt, FilesPublished(done=1, total=2), sent.instance)
            case "complete":
                self.world.published.add(attempt)
                self.report(attempt, FilesPublished(done=2, total=2, complete=True), sent.instance)
            case "failed":
                self.report(attempt, PublicationFailed(reason="no space"), sent.instance)
            case _:
                self.apply(PublicationUndelivered(attempt, sent.instance, "no space", report == "refused"))

    # What always holds

    @invariant()
    def a_terminal_state_never_changes(self) -> None:
        assert self.ended is None or self.job is self.ended

    @invariant()
    def what_was_accepted_is_neither_cancelled_nor_failed(self) -> None:
        for region in self.regions:
            if region.phase in (RegionPhase.ACCEPTED, RegionPhase.FINISHED):
                abandoned = region.publication is not None and region.publication.abandoned
                assert region.current.state in ((E.FAILED,) if abandoned else (E.RUNNING, E.FINISHED))

    @invariant()
    def cancelled_never_runs_on(self) -> None:
        if self.cancel_taken:
            assert self.job.status in (J.CANCELLING, J.CANCELED, J.FAILED)
            for region in self.job.regions:
                assert region.committed or region.current.state.terminal or region.current.state is E.CANCELING

    @invariant()
    def success_comes_from_the_tasks_own_results(self) -> None:
        for region in self.regions:
            if region.finished:
                attempt = self.job.attempt_id(region)
                assert attempt in self.world.finished
                assert self.world.durable[region.id].phase is RegionPhase.FINISHED
                assert not self.world.finished[attempt].sinks or attempt in self.world.published
        if hasattr(self, "job") and self.job.status is J.FINISHED:
            assert all(region.finished for region in self.job.regions)

    @invariant()
    def an_ended_job_wants_nothing_and_names_all_it_may_have_left(self) -> None:
        if self.ended is None:
            return
        assert not self.requests
        scratch = set(outcome_of(self.job).scratch)
        for attempt in self.world.deployed_to:
            region = self.job.regions[attempt.region].plan
            assert all(covers(scratch, each) for each in staging_directories(self.graph, region, attempt))
            assert not region.materialises or f"/work/{JOB}" in scratch

    @invariant()
    def a_snapshot_can_always_be_taken(self) -> None:
        if hasattr(self, "job"):
            snapshot = snapshot_of(self.job)
            assert (snapshot.end_ms >= 0) == self.job.status.globally_terminal
            numbers = [(execution.region, execution.attempt) for execution in snapshot.executions]
            assert numbers == sorted(set(numbers))

    def teardown(self) -> None:
        """No more faults: the job has to end."""
        if not hasattr(self, "job"):
            return
        self.apply(JobStarted())
        for _ in range(2000):
            if self.job.status.terminal:
                return
            self.step_forward()
        raise AssertionError(f"it does not end: {self.job.recent_moves}")

    def step_forward(self, *, patient: bool = False) -> None:
        """Deliver the next event that brings the job forward."""
        if self.records:
            self.store_next(self.records[0].region)
        elif waiting := sorted(set(self.requests) - set(self.granted) - self.refused):
            self.serve(waiting[0], "tm-1")
        elif self.deployments:
            self.deliver_deployment_kindly()
        elif self.cancellations:
            self.end(self.cancellations.pop(0))
        elif self.probes:
            self.deliver_prostep_forwardly()
        elif self.timers:
            self.apply(self.timers.pop(0))
        elif not patient:
            for attempt in sorted(self.world.tasks):
                self.report(attempt, self.outcome(attempt))
            for sent in self.world.orders:
                self.publish(sent, "complete")

    def deliver_prostep_forwardly(self) -> None:
        attempt = self.probes.pop(0)
        self.apply(Probed(attempt, over=attempt not in self.world.tasks, unreachable=False))

    def deliver_deployment_kindly(self) -> None:
        sent = self.deployments.pop(0)
        self.world.tasks[sent.order.attempt] = sent.instance
        self.apply(DeploymentTaken(sent.order.attempt, sent.instance))


TestJobLife = JobMachine.TestCase
TestJobLife.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
