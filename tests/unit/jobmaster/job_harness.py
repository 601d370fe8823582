"""What the JobMaster's tests share: small graphs, and a harness that stands for the rest of the cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.jobmaster.core import step
from flintlock.jobmaster.events import (
    CancelRequested,
    Declare,
    DeploymentTaken,
    JobEffect,
    JobEvent,
    JobStarted,
    Record,
    Recorded,
    RecordHistory,
    RestartDue,
    SendCommand,
    SendDeploy,
    SendPublish,
    StartTimer,
    StepContext,
)
from flintlock.jobmaster.execution_graph import ExecutionGraph, initial_state, plan_of
from flintlock.jobmaster.reporting.history import with_history
from flintlock.model.files.staging import ANY_ATTEMPT
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, vertex_id
from flintlock.model.jobs import JobHistory, StoredJob
from flintlock.model.operations import Result, Sink, Source, Sql
from flintlock.model.slots import SlotGrant, SlotRequest, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FileMove,
    FilesPublished,
    PublicationFailed,
    RegionRecord,
    SinkFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskReport,
    TaskRunning,
)

JOB = JobId("a" * 32)
SUBMITTED_MS = 1_000_000
Kind = TypeVar("Kind", bound=JobEffect)


def _vertex(name: str, operation: Source | Sql | Sink | Result, **fields: object) -> JobVertex:
    return structs.replace(JobVertex(id=vertex_id(JOB, name), name=StepName(name), operation=operation), **fields)


def source(name: str, **fields: object) -> JobVertex:
    """A step that reads."""
    return _vertex(name, Source(format="parquet", paths=("in",)), **fields)


def query(name: str, *inputs: str, **fields: object) -> JobVertex:
    """A step that computes."""
    return _vertex(name, Sql(query="SELECT 1"), inputs=inputs, **fields)


def sink(name: str, of: str, path: str = "/out", **fields: object) -> JobVertex:
    """A step that writes files."""
    return _vertex(name, Sink(format="parquet", path=path), inputs=(of,), **fields)


def result(name: str, of: str) -> JobVertex:
    """A step that keeps rows."""
    return _vertex(name, Result(), inputs=(of,))


def graph_of(*vertices: JobVertex, **fields: object) -> JobGraph:
    """A job of these steps."""
    return structs.replace(JobGraph(job_id=JOB, name="revenue", vertices=vertices), **fields)


BLOCKING = Exchange.BLOCKING

#: A cluster without restarts for infrastructure failures: only the restart strategy applies.
NO_INFRASTRUCTURE_RESTARTS = {"restart.infrastructure-attempts": "0"}

#: One region, rows for the user.
SMALL = graph_of(source("orders", parallelism=1), result("top", "orders"))
#: One region, files.
FILES = graph_of(source("orders", parallelism=2), sink("out", "orders"))
#: Two regions, the second reads what the first materialised.
CHAIN = graph_of(source("orders"), query("clean", "orders", exchange=BLOCKING), sink("out", "clean"))
#: Two regions that have nothing to do with each other.
PAIR = graph_of(source("a"), sink("left", "a", "/left"), source("b"), sink("right", "b", "/right"))
#: Two independent regions and one that reads both.
JOIN = graph_of(
    source("a", exchange=BLOCKING),
    source("b", exchange=BLOCKING),
    query("both", "a", "b"),
    sink("out", "both"),
    result("top", "both"),
)


def failure(kind: FailureKind = FailureKind.SPARK_TASK, message: str = "a Spark task failed") -> Failure:
    """A failure that strategies may retry."""
    return Failure(kind=kind, message=message)


def staged(*names: str, target: str = "/out") -> SinkFiles:
    """Files of one sink, ready to be published."""
    moves = tuple(FileMove(f"{target}/.staging/{name}", f"{target}/{name}") for name in names)
    return SinkFiles(
        step=StepName("out"), target=target, staging=f"{target}/.staging", moves=moves, success_marker="_SUCCESS"
    )


class JobHarness:
    """One job's core and its effects; the test acts for all other components."""

    def __init__(
        self,
        graph: JobGraph = SMALL,
        progress: tuple[RegionRecord, ...] = (),
        cluster: dict[str, str] | None = None,
        history: JobHistory | None = None,
    ) -> None:
        plan = plan_of(graph, Configuration(cluster or {}), "/work")
        self.now_ms = SUBMITTED_MS + 5
        self.wall_ahead_ms = 0  # by how much the wall clock is ahead of that of the cluster
        job = StoredJob(graph=graph, submitted_ms=SUBMITTED_MS)
        self.job: ExecutionGraph = with_history(initial_state(plan, job, progress, self.now_ms), history)
        self._history = history  # as the former JobMaster recorded it
        self.effects: list[JobEffect] = []  # all so far
        self._stored: set[int] = set()  # ids of records in `effects` that were answered
        self.durable: dict[RegionId, RegionRecord] = {record.region: record for record in progress}

    # Events

    def apply(self, event: JobEvent, random: float = 0.5) -> list[JobEffect]:
        """Take one step and return its effects."""
        self.now_ms += 1
        context = StepContext(now_ms=self.now_ms + self.wall_ahead_ms, cluster_ms=self.now_ms, random=random)
        self.job, effects = step(self.job, event, context)
        self.effects += effects
        return list(effects)

    def start(self) -> list[JobEffect]:
        """Let the job begin."""
        return self.apply(JobStarted())

    def cancel(self, *, force: bool = False) -> list[JobEffect]:
        """Ask for its end."""
        return self.apply(CancelRequested(force))

    def grant(self, request: str, on: str = "tm-1") -> list[JobEffect]:
        """Grant an open request."""
        found = next(declared for declared in self.job.declared if declared.id == request)
        return self.apply(grant(found, on))

    def recorded(self) -> list[JobEffect]:
        """Let the store take every record that was asked for and is not durable."""
        effects: list[JobEffect] = []
        for effect in self.of(Record):
            record = effect.record
            if id(record) not in self._stored:
                self._stored.add(id(record))
                self.durable[record.region] = record
                effects += self.apply(Recorded(record))
        return effects

    def taken(self, region: int = 0) -> list[JobEffect]:
        """Let the TaskManager acknowledge the latest deployment of a region."""
        sent = [e for e in self.of(SendDeploy) if e.order.attempt.region == region][-1]
        return self.apply(DeploymentTaken(sent.order.attempt, sent.instance))

    def report(self, news: TaskNews, region: int = 0, attempt: int | None = None, on: str = "tm-1") -> list[JobEffect]:
        """Let a TaskManager report of an attempt, by default of the region's latest."""
        return self.apply(
            TaskReport(
                attempt=attempt_id(region, self.attempt(region) if attempt is None else attempt),
                task_manager=TaskManagerId(on),
                instance=InstanceId(f"{on}-instance"),
                news=news,
            )
        )

    def lose(self, name: str) -> list[JobEffect]:
        """Let a TaskManager be lost."""
        return self.apply(
            TaskManagerLost(
                job_id=JOB, task_manager=TaskManagerId(name), instance=InstanceId(f"{name}-instance"), reason="silent"
            )
        )

    def wait(self) -> list[JobEffect]:
        """Let the latest timer go off."""
        timer = self.of(StartTimer)[-1]
        self.now_ms += round(timer.delay_s * 1000)
        return self.apply(timer.event)

    def wait_for(self, kind: type[JobEvent]) -> list[JobEffect]:
        """Let the latest timer of this kind go off."""
        timer = [t for t in self.of(StartTimer) if isinstance(t.event, kind)][-1]
        self.now_ms += round(timer.delay_s * 1000)
        return self.apply(timer.event)

    def restart(self) -> list[JobEffect]:
        """Let the latest restart delay pass."""
        return self.wait_for(RestartDue)

    # Shortcuts

    def run_region(self, region: int = 0, on: str = "tm-1") -> None:
        """Bring a region whose request is open to RUNNING."""
        self.grant(f"{region}-{self.attempt(region)}", on)
        self.recorded()
        self.taken(region)
        self.report(TaskRunning(), region, on=on)

    def finish(self, region: int = 0, on: str = "tm-1", **outcome: object) -> list[JobEffect]:
        """Let a running region finish with an outcome, and record what follows."""
        steps = self.job.regions[region].plan.materialises
        news = structs.replace(TaskFinished(materialised={step: f"/work/{step}" for step in steps}), **outcome)
        return [*self.report(news, region, on=on), *self.recorded()]

    def fail(self, kind: FailureKind = FailureKind.SPARK_TASK, region: int = 0, on: str = "tm-1") -> list[JobEffect]:
        """Let a region's latest attempt fail."""
        return self.report(TaskFailed(failure=failure(kind)), region, on=on)

    def canceled(self, region: int = 0, on: str = "tm-1") -> list[JobEffect]:
        """Let a region's latest attempt report that it was cancelled."""
        return self.report(TaskCanceled(), region, on=on)

    def published(self, region: int = 0, on: str = "tm-1") -> list[JobEffect]:
        """Let a publication be complete, and record what follows."""
        news = FilesPublished(done=2, total=2, complete=True)
        return [*self.report(news, region, on=on), *self.recorded()]

    def publication_failed(
        self, reason: str, region: int = 0, on: str = "tm-1", *, permanent: bool = False
    ) -> list[JobEffect]:
        """Let a publication fail, and its publisher report all that it has done."""
        return self.report(PublicationFailed(reason=reason, permanent=permanent, stopped=True), region, on=on)

    # What is seen

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self.job.status

    def state(self, region: int = 0) -> ExecutionState:
        """The state of a region's latest attempt."""
        return self.job.regions[region].current.state

    def attempt(self, region: int = 0) -> int:
        """The number of a region's latest attempt."""
        return self.job.regions[region].current.attempt

    def of(self, kind: type[Kind]) -> list[Kind]:
        """All effects of one kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def wanted(self) -> list[str]:
        """The ids of the requests that were declared last."""
        declared = self.of(Declare)
        return [request.id for request in declared[-1].requirements.requests] if declared else []

    @property
    def deployed(self) -> list[tuple[int, int]]:
        """Region and attempt of every deployment sent."""
        return [(e.order.attempt.region, e.order.attempt.attempt) for e in self.of(SendDeploy)]

    @property
    def cancelled(self) -> list[tuple[int, int]]:
        """Region and attempt of every cancellation sent."""
        return [(e.order.attempt.region, e.order.attempt.attempt) for e in self.of(SendCommand)]

    @property
    def publications(self) -> list[tuple[int, str]]:
        """Attempt and address of every publication sent."""
        return [(e.order.attempt.attempt, e.address) for e in self.of(SendPublish)]

    def again(self, cluster: dict[str, str] | None = None) -> JobHarness:
        """Return the job as the next JobMaster finds it: from what is durable, and nothing else."""
        return JobHarness(self.job.plan.graph, tuple(self.durable.values()), cluster, self.history)

    def forget_effects(self) -> None:
        """Begin `effects` again, where very many would be there."""
        self.effects.clear()
        self._stored.clear()

    @property
    def history(self) -> JobHistory | None:
        """What was recorded last of the job's history."""
        recorded = self.of(RecordHistory)
        return recorded[-1].history if recorded else self._history


def covers(entries: Collection[str], directory: str) -> bool:
    """Whether recorded staging names this directory: by itself, or by a pattern."""
    return any(
        directory == entry or (entry.endswith(ANY_ATTEMPT) and directory.startswith(entry[:-1])) for entry in entries
    )


def attempt_id(region: int, attempt: int) -> AttemptId:
    """An attempt of the test job."""
    return AttemptId(job_id=JOB, region=RegionId(region), attempt=attempt)


def grant(request: SlotRequest, on: str = "tm-1") -> SlotGrant:
    """Slots of a TaskManager for a request."""
    return SlotGrant(
        job_id=JOB,
        request=RequestId(request.id),
        task_manager=TaskManagerId(on),
        instance=InstanceId(f"{on}-instance"),
        address=f"{on}:1",
        slots=tuple(range(request.slots or request.at_most or 2)),
    )
