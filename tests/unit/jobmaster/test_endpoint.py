"""The JobMaster as its Dispatcher and the cluster meet it, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.unit.jobmaster.job_harness import (
    CHAIN,
    FILES,
    JOB,
    NO_INFRASTRUCTURE_RESTARTS,
    PAIR,
    SMALL,
    attempt_id,
    failure,
    grant,
    staged,
)

from flintlock.config.configuration import Configuration
from flintlock.gateways.jobmaster import JobMasterGateway, JobMasterRunner
from flintlock.jobmaster.directory import JobMasterDirectory
from flintlock.jobmaster.endpoint import JobMaster, job_master_factory
from flintlock.jobmaster.enrichers import FailureEnricher
from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.jobmaster.services import JobMasterServices
from flintlock.jobmaster.target_claims import TargetClaims
from flintlock.model.causes import CauseId, caused_by
from flintlock.model.commands import CancelJob, CommandAccepted, PingTask
from flintlock.model.errors import Conflict, Fenced, InvariantBroken, NotFound, Refused, Unavailable
from flintlock.model.ids import InstanceId, JobId, StepName, TaskManagerId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobOutcome, StoredJob
from flintlock.model.slots import TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.tasks import (
    DeployTask,
    FailureKind,
    FilesPublished,
    RegionPhase,
    RegionRecord,
    ResultRows,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskNews,
    TaskProgress,
    TaskReport,
    TaskRunning,
)
from flintlock.testing.fakes.fake_resourcemanager import GrantingResourceManager
from flintlock.testing.fakes.fake_stores import FakeProgressStore
from flintlock.testing.fakes.fake_taskmanager import FakeTaskManager, FakeTaskManagers
from flintlock.testing.virtual_time import now_ms, virtual_time

ROWS = ResultRows(name=StepName("top"), rows=1, truncated=False, arrow=b"", json=b"{}")
RETRY = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "5 s"}


CANCEL = CancelJob(job_id=JOB)


class EndpointHarness:
    """One JobMaster and the fakes around it."""

    def __init__(
        self,
        graph: JobGraph = SMALL,
        config: dict[str, str] | None = None,
        enrichers: tuple[FailureEnricher, ...] = (),
        claims: TargetClaims | None = None,
    ) -> None:
        self.graph = graph
        self.directory = JobMasterDirectory()
        self.store = FakeProgressStore()
        self.resources = GrantingResourceManager(self.directory.gateway)
        self.machines = FakeTaskManagers()
        self.changes: list[JobId] = []
        self.registry = CollectorRegistry()
        self.services = JobMasterServices(
            progress=self.store,
            resource_manager=self.resources,
            task_managers=self.machines,
            directory=self.directory,
            clock_ms=now_ms,
            random=Random(7),
            configuration=Configuration(config or {}),
            work_dir="/work",
            enrichers=enrichers,
            metrics=JobMasterMetrics(self.registry),
            claims=claims or TargetClaims(),
        )
        self.master = self.make()

    def make(self, progress: tuple[RegionRecord, ...] = ()) -> JobMasterRunner:
        """Make a JobMaster, as a Dispatcher does."""
        job = StoredJob(graph=self.graph, submitted_ms=now_ms())
        return job_master_factory(self.services)(job, progress, self.changed, now_ms)

    def changed(self, job_id: JobId) -> None:
        """Listen."""
        self.changes.append(job_id)

    @property
    def machine(self) -> FakeTaskManager:
        """The TaskManager tm-1."""
        return self.machines("tm-1:1")

    @property
    def status(self) -> JobStatus:
        """The job's state."""
        return self.master.snapshot().status

    def state(self, region: int = 0) -> ExecutionState:
        """The state of a region's latest attempt."""
        return [e for e in self.master.snapshot().executions if e.region == region][-1].state

    async def report(self, news: TaskNews, region: int = 0, attempt: int = 0, on: str = "tm-1") -> None:
        """Report as a TaskManager."""
        await self.directory.gateway.report(
            TaskReport(
                attempt=attempt_id(region, attempt),
                task_manager=TaskManagerId(on),
                instance=InstanceId(f"{on}-instance"),
                news=news,
            )
        )

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[JobOutcome]]:
        """Run the JobMaster; leaving the scope ends it if it still runs."""
        async with asyncio.TaskGroup() as scope:
            task = scope.create_task(self.master.run(), name="job")
            await settle()
            yield task
            task.cancel()


async def settle() -> None:
    """Let everything that can happen now happen."""
    await asyncio.sleep(0.001)


def finishing(harness: EndpointHarness, *outcome: TaskFinished) -> Callable[[DeployTask], Awaitable[None]]:
    """Let every deployed task run and finish at once."""
    outcomes = list(outcome)

    async def work(order: DeployTask) -> None:
        attempt = order.attempt
        await harness.report(TaskRunning(), attempt.region, attempt.attempt)
        await harness.report(outcomes.pop(0), attempt.region, attempt.attempt)

    return work


def test_constructing_a_job_master_starts_nothing() -> None:
    """The factory needs no loop: what it makes is made of data."""
    directory = JobMasterDirectory()
    services = JobMasterServices(
        progress=FakeProgressStore(),
        resource_manager=GrantingResourceManager(directory.gateway),
        task_managers=FakeTaskManagers(),
        directory=directory,
        clock_ms=lambda: 5,
        random=Random(7),
        configuration=Configuration(),
        work_dir="/work",
    )
    master = job_master_factory(services)(StoredJob(graph=SMALL, submitted_ms=3), (), lambda job_id: None, now_ms)
    assert isinstance(master, JobMaster)
    assert master.snapshot().status is JobStatus.INITIALIZING


@virtual_time
async def test_a_small_job_runs_to_its_end() -> None:
    harness = EndpointHarness()
    harness.machine.on_deploy = finishing(harness, TaskFinished(results=(ROWS,)))

    outcome = await harness.master.run()

    assert outcome.snapshot.status is JobStatus.FINISHED
    assert outcome.results == (ROWS,)
    assert outcome.scratch == ()
    assert [record.phase for record in harness.store.history] == [RegionPhase.DEPLOYED, RegionPhase.FINISHED]
    assert harness.resources.wanted(JOB) == ()
    assert set(harness.changes) == {JOB}


@virtual_time
async def test_what_a_job_does_carries_the_cause_of_what_set_it_off() -> None:
    """Deployments carry that of the submission, although another job's event granted; cancellations the cancel's."""
    harness = EndpointHarness()
    harness.resources.automatic = False
    with caused_by(CauseId("submission")):
        task = asyncio.get_running_loop().create_task(harness.master.run(), name="job")
    await settle()
    with caused_by(CauseId("another-job")):
        await harness.resources.grant(JOB, harness.resources.wanted(JOB)[0])
    await settle()
    with caused_by(CauseId("cancel-request")):
        harness.master.command(CancelJob(job_id=JOB))
    await settle()
    await harness.report(TaskCanceled())
    await task

    assert harness.resources.causes == ["submission", "submission"]
    assert harness.machine.causes == [("deploy", "submission"), ("CancelTask", "cancel-request")]


@virtual_time
async def test_a_cancel_before_the_job_runs_keeps_its_cause() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running():
        await settle()
    progress = tuple(harness.store.history)
    harness.master = harness.make(progress)
    with caused_by(CauseId("cancel-request")):
        harness.master.command(CancelJob(job_id=JOB))
    harness.machine.causes.clear()
    with caused_by(CauseId("recovery-2")):
        async with harness.running():
            await asyncio.sleep(1.5)

    assert harness.machine.causes[0] == ("CancelTask", "cancel-request")


@virtual_time
async def test_the_timeout_of_a_job_is_a_cause_of_its_own() -> None:
    harness = EndpointHarness(config={"job.timeout": "5 s"})
    with caused_by(CauseId("submission")):
        async with harness.running():
            await asyncio.sleep(5.5)

    assert harness.machine.causes == [("deploy", "submission"), ("CancelTask", f"job-timeout-{JOB}")]


@virtual_time
async def test_regions_run_one_after_another_and_files_are_published_between() -> None:
    harness = EndpointHarness(CHAIN)
    harness.machine.on_deploy = finishing(
        harness, TaskFinished(materialised={StepName("clean"): "/work/clean"}), TaskFinished(sinks=(staged("part-0"),))
    )
    async with harness.running() as job:
        assert [order.attempt.region for order in harness.machine.published] == [1]
        assert not job.done()

        await harness.report(FilesPublished(done=2, total=2, complete=True), region=1)
        outcome = await job

    assert outcome.snapshot.status is JobStatus.FINISHED
    assert outcome.scratch == (f"/work/{JOB}", f"/out/.flintlock-{JOB}-1-0")
    assert [record.phase for record in harness.store.history] == [
        RegionPhase.DEPLOYED,
        RegionPhase.FINISHED,
        RegionPhase.DEPLOYED,
        RegionPhase.ACCEPTED,
        RegionPhase.FINISHED,
    ]


@virtual_time
async def test_the_whole_path_of_a_small_job_takes_no_time() -> None:
    harness = EndpointHarness()
    harness.machine.on_deploy = finishing(harness, TaskFinished())
    before_s = asyncio.get_running_loop().time()
    await harness.master.run()
    assert asyncio.get_running_loop().time() == before_s


@virtual_time
async def test_nothing_is_sent_while_the_store_is_silent() -> None:
    harness = EndpointHarness()
    harness.store.gate.clear()
    async with harness.running():
        await asyncio.sleep(60)
        assert harness.machine.deployed == []
        harness.store.gate.set()
        await settle()
        assert len(harness.machine.deployed) == 1


@virtual_time
async def test_a_report_is_answered_once_what_it_means_is_durable() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running(), asyncio.TaskGroup() as scope:
        harness.store.gate.clear()
        news = TaskFinished(sinks=(staged("part-0"),))
        first = scope.create_task(harness.report(news), name="first")
        again = scope.create_task(harness.report(news), name="again")
        await asyncio.sleep(30)
        assert not first.done()
        assert not again.done()
        assert harness.machine.published == []

        harness.store.gate.set()
        await settle()
        assert first.done()
        assert again.done()
        assert harness.store.history[-1].phase is RegionPhase.ACCEPTED
        assert len(harness.machine.published) == 1


@virtual_time
async def test_a_report_whose_meaning_did_not_become_durable_is_not_answered_as_if() -> None:
    harness = EndpointHarness()
    async with asyncio.TaskGroup() as scope:
        job = scope.create_task(harness.master.run(), name="job")
        await settle()
        harness.store.gate.clear()
        report = scope.create_task(_caught(harness.report(TaskFinished())), name="report")
        await settle()

        job.cancel()

        assert isinstance(await report, Unavailable)


@virtual_time
async def test_a_report_whose_record_is_cut_off_is_not_answered_while_the_job_master_still_ends() -> None:
    harness = EndpointHarness()

    async def slow_to_end(_: DeployTask) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(5)  # the JobMaster handles its suspension only after this

    async with asyncio.TaskGroup() as scope:
        harness.machine.on_deploy = slow_to_end
        job = scope.create_task(harness.master.run(), name="job")
        await settle()
        harness.store.gate.clear()
        report = scope.create_task(_caught(harness.report(TaskFinished())), name="report")
        await settle()

        job.cancel()

        assert isinstance(await report, Unavailable)


async def _caught(work: Awaitable[None]) -> Exception | None:
    try:
        await work
    except (Unavailable, NotFound) as error:
        return error
    return None


@virtual_time
async def test_a_store_that_is_unavailable_for_a_while_is_waited_for() -> None:
    harness = EndpointHarness()
    harness.store.fail_with = Unavailable("the disk is full")
    async with harness.running():
        await asyncio.sleep(20)
        assert harness.machine.deployed == []
        harness.store.fail_with = None
        await asyncio.sleep(6)
        assert len(harness.machine.deployed) == 1


@virtual_time
async def test_a_fenced_write_ends_the_job_master() -> None:
    harness = EndpointHarness()
    harness.store.fail_with = Fenced("epoch 1 no longer leads")
    with pytest.raises(Fenced):
        await harness.master.run()
    with pytest.raises(NotFound):
        await harness.report(TaskRunning())


@virtual_time
async def test_a_task_manager_that_follows_a_newer_leader_ends_the_job_master() -> None:
    harness = EndpointHarness()
    harness.machine.fail_with = Fenced("epoch 1 is over")
    with pytest.raises(Fenced):
        await harness.master.run()


@virtual_time
async def test_an_unexpected_error_ends_the_job_master_and_releases_everything() -> None:
    harness = EndpointHarness(PAIR)
    async with asyncio.TaskGroup() as scope:
        job = scope.create_task(_crash(harness), name="job")
        await settle()
        harness.store.fail_with = RuntimeError("boom")
        with pytest.raises(Unavailable):
            await harness.report(TaskFinished())
        assert str(await job) == "boom"
    assert [order.attempt for order in harness.machine.commands] == [attempt_id(1, 0)]
    assert harness.resources.wanted(JOB) == ()


async def _crash(harness: EndpointHarness) -> Exception:
    with pytest.raises(RuntimeError) as raised:
        await harness.master.run()
    return raised.value


@virtual_time
async def test_a_bug_in_the_listener_is_not_raised_to_the_reporter() -> None:
    harness = EndpointHarness()

    def listener(job_id: JobId) -> None:
        raise InvariantBroken("a bug")

    harness.master = job_master_factory(harness.services)(StoredJob(graph=SMALL, submitted_ms=1), (), listener, now_ms)
    with pytest.raises(InvariantBroken, match="a bug"):
        await harness.master.run()


@virtual_time
async def test_requirements_are_declared_again_when_the_resource_manager_is_back() -> None:
    harness = EndpointHarness()
    harness.resources.fail_with = Unavailable("no leader")
    async with harness.running():
        await asyncio.sleep(10)
        harness.resources.fail_with = None
        await asyncio.sleep(6)
        assert [request.id for request in harness.resources.wanted(JOB)] == ["0-0"]
        assert len(harness.machine.deployed) == 1


@virtual_time
async def test_a_refused_deployment_is_sent_again() -> None:
    harness = EndpointHarness()
    harness.machine.fail_with = Refused("the slots are used by another attempt")
    async with harness.running():
        await asyncio.sleep(1)
        assert harness.machine.tries > 3
        harness.machine.fail_with = None
        await asyncio.sleep(5)
        assert len(harness.machine.deployed) == 1
        await asyncio.sleep(60)
        assert len(harness.machine.deployed) == 1


@virtual_time
async def test_a_task_manager_that_cannot_be_reached_fails_the_attempt_in_the_end() -> None:
    harness = EndpointHarness()
    harness.machine.fail_with = Unavailable("connection refused")
    outcome = await harness.master.run()
    assert outcome.snapshot.status is JobStatus.FAILED
    assert outcome.snapshot.exceptions[0].failure.kind is FailureKind.TASK_MANAGER_LOST


@virtual_time
async def test_a_failed_task_is_tried_again_after_the_delay() -> None:
    harness = EndpointHarness(config=RETRY)
    async with harness.running() as job:
        await harness.report(TaskFailed(failure=failure()))
        assert harness.status is JobStatus.RESTARTING
        await asyncio.sleep(4.9)
        assert len(harness.machine.deployed) == 1
        await asyncio.sleep(0.2)
        assert [order.attempt.attempt for order in harness.machine.deployed] == [0, 1]
        assert [request.id for request in harness.resources.wanted(JOB)] == ["0-1"]

        await harness.report(TaskFinished(), attempt=1)
        assert (await job).snapshot.status is JobStatus.FINISHED


@virtual_time
async def test_a_failure_is_durable_before_its_report_is_answered_and_before_the_next_attempt_is_recorded() -> None:
    harness = EndpointHarness(
        config={"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "1 s"}
    )
    async with harness.running():
        await harness.report(TaskRunning())
        harness.store.history_gate.clear()
        async with asyncio.TaskGroup() as tasks:
            reporting = tasks.create_task(harness.report(TaskFailed(failure=failure())))
            await asyncio.sleep(10)
            assert not reporting.done()
            assert harness.state() is ExecutionState.SCHEDULED
            assert [record.attempt for record in harness.store.history] == [0]
            harness.store.history_gate.set()
        await settle()

        assert [record.attempt for record in harness.store.history] == [0, 1]
        assert harness.store.histories[-1].restarts.restarts == 1


@virtual_time
async def test_the_next_job_master_goes_on_with_the_history() -> None:
    harness = EndpointHarness(
        config={"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": "1"}
    )
    async with harness.running():
        await harness.report(TaskRunning())
        await harness.report(TaskFailed(failure=failure()))
        await asyncio.sleep(60)
        await harness.report(TaskRunning(), attempt=1)
    job = StoredJob(graph=harness.graph, submitted_ms=now_ms())
    history = await harness.store.read_history(JOB)
    harness.master = job_master_factory(harness.services)(
        job, await harness.store.read(JOB), harness.changed, now_ms, history
    )
    async with harness.running() as task:
        await harness.report(TaskFailed(failure=failure()), attempt=1)
        outcome = await task

    assert outcome.snapshot.status is JobStatus.FAILED
    assert [entry.attempt for entry in outcome.snapshot.exceptions] == [0, 1]


@virtual_time
async def test_cancel_asks_the_task_manager_and_waits_for_the_end() -> None:
    harness = EndpointHarness()
    async with harness.running() as job:
        harness.master.command(CANCEL)
        harness.master.command(CANCEL)
        assert harness.status is JobStatus.CANCELLING
        await asyncio.sleep(6.5)
        assert len(harness.machine.commands) == 7  # at once, then every second
        await harness.report(TaskCanceled())
        assert (await job).snapshot.status is JobStatus.CANCELED
    harness.master.command(CANCEL)
    assert harness.resources.wanted(JOB) == ()


@virtual_time
async def test_a_cancelled_job_ends_although_its_task_manager_does_not_answer() -> None:
    """1. Cancel hangs. 2. The TaskManager is known to be lost. 3. The job ends within the time of one question."""
    harness = EndpointHarness()
    async with harness.running() as job:
        harness.machine.fail_with = Unavailable("silent")
        harness.master.command(CANCEL)
        await asyncio.sleep(30)
        assert not job.done()
        await harness.resources.lose("tm-1")
        assert (await job).snapshot.status is JobStatus.CANCELED


@virtual_time
async def test_a_cancelled_job_ends_soon_after_its_task_managers_process_is_gone() -> None:
    harness = EndpointHarness()
    async with harness.running() as job:
        harness.machine.fail_with = Unavailable("connection refused")
        harness.machine.fail_with.unreachable = True
        harness.master.command(CANCEL)
        begun_s = asyncio.get_running_loop().time()
        assert (await job).snapshot.status is JobStatus.CANCELED
        assert asyncio.get_running_loop().time() - begun_s < 4


@virtual_time
async def test_cancel_before_run_means_that_nothing_runs() -> None:
    harness = EndpointHarness()
    harness.master.command(CANCEL)
    outcome = await harness.master.run()
    assert outcome.snapshot.status is JobStatus.CANCELED
    assert harness.resources.declarations == []
    assert harness.machine.deployed == []


@virtual_time
async def test_cancel_of_a_finished_job_is_a_conflict() -> None:
    harness = EndpointHarness()
    harness.machine.on_deploy = finishing(harness, TaskFinished())
    await harness.master.run()
    with pytest.raises(Conflict, match=f"job {JOB} is FINISHED"):
        harness.master.command(CANCEL)


@virtual_time
async def test_cancel_of_a_publishing_job_is_a_conflict() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running():
        await harness.report(TaskFinished(sinks=(staged("part-0"),)))
        with pytest.raises(Conflict, match="is publishing its output and can no longer be cancelled"):
            harness.master.command(CANCEL)
        assert harness.status is JobStatus.RUNNING


@virtual_time
async def test_a_suspended_job_master_leaves_tasks_slots_and_records_alone() -> None:
    harness = EndpointHarness()
    async with harness.running():
        await harness.report(TaskRunning())
    assert harness.status is JobStatus.SUSPENDED
    assert harness.machine.commands == []
    assert [request.id for request in harness.resources.wanted(JOB)] == ["0-0"]
    assert len(harness.store.history) == 1
    with pytest.raises(NotFound):
        await harness.report(TaskFinished())


@virtual_time
async def test_the_next_job_master_goes_on_where_the_records_are() -> None:
    harness = EndpointHarness(CHAIN)
    async with harness.running():
        await harness.report(TaskFinished(materialised={StepName("clean"): "/work/clean"}))
        await settle()
        assert [order.attempt.region for order in harness.machine.deployed] == [0, 1]

    harness.master = harness.make(await harness.store.read(JOB))
    harness.resources.granted.clear()
    async with harness.running() as job:
        assert [order.attempt.region for order in harness.machine.deployed] == [0, 1]
        assert harness.state(1) is ExecutionState.RUNNING, "its claim was granted: it is adopted"
        await harness.report(TaskFinished(), region=1, attempt=0)
        assert (await job).snapshot.status is JobStatus.FINISHED
    assert len(harness.machine.deployed) == 2


@virtual_time
async def test_an_attempt_whose_task_manager_has_ended_is_followed_by_the_next_one() -> None:
    harness = EndpointHarness()
    async with harness.running():
        await settle()

    harness.master = harness.make(await harness.store.read(JOB))
    harness.resources.granted.clear()
    harness.resources.automatic = False
    harness.machine.over.add(InstanceId("tm-1-instance"))
    async with harness.running():
        await settle()
        assert harness.resources.wanted(JOB)[0].id == "0-1"


@virtual_time
async def test_an_attempt_that_goes_on_is_asked_for_again_and_again_until_it_is_claimed() -> None:
    harness = EndpointHarness()
    async with harness.running():
        await settle()

    harness.master = harness.make(await harness.store.read(JOB))
    harness.resources.granted.clear()
    harness.resources.automatic = False
    async with harness.running():
        await asyncio.sleep(10)
        assert harness.status is JobStatus.RECONCILING
        await harness.resources.grant(JOB, harness.resources.wanted(JOB)[0])
        assert harness.status is JobStatus.RUNNING


@virtual_time
async def test_an_accepted_publication_is_rolled_forward_by_the_next_job_master() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running():
        await harness.report(TaskFinished(sinks=(staged("part-0"),)))

    harness.master = harness.make(await harness.store.read(JOB))
    harness.resources.granted.clear()
    harness.resources.place_on = TaskManagerId("tm-2")
    async with harness.running() as job:
        (order,) = harness.machines("tm-2:1").published
        assert order.sinks == (staged("part-0"),)
        await harness.report(FilesPublished(done=2, total=2, complete=True), on="tm-2")
        assert (await job).snapshot.status is JobStatus.FINISHED


@virtual_time
async def test_an_unreachable_publisher_is_asked_until_it_is_known_to_be_lost() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running() as job:
        harness.machine.fail_with = Unavailable("silent")
        await harness.report(TaskFinished(sinks=(staged("part-0"),)))
        await asyncio.sleep(100)
        assert harness.machine.tries > 50
        assert harness.status is JobStatus.RUNNING
        harness.resources.place_on = TaskManagerId("tm-2")
        await harness.resources.lose("tm-1")
        await settle()
        assert len(harness.machines("tm-2:1").published) == 1
        await harness.report(FilesPublished(done=2, total=2, complete=True), on="tm-2")
        assert (await job).snapshot.status is JobStatus.FINISHED


@virtual_time
async def test_a_publisher_that_refuses_again_and_again_fails_the_job() -> None:
    harness = EndpointHarness(FILES)
    async with harness.running() as job:
        harness.machine.fail_with = Refused("unknown file system s4")
        await harness.report(TaskFinished(sinks=(staged("part-0"),)))
        outcome = await job
    assert outcome.snapshot.status is JobStatus.FAILED
    assert outcome.snapshot.exceptions[0].failure.kind is FailureKind.PUBLICATION
    assert "unknown file system s4" in outcome.snapshot.exceptions[0].failure.message


@virtual_time
async def test_a_lost_task_manager_fails_its_tasks() -> None:
    harness = EndpointHarness(config=NO_INFRASTRUCTURE_RESTARTS)
    async with harness.running() as job:
        await harness.resources.lose("tm-1", "it was silent for 50.0 s")
        outcome = await job
    assert outcome.snapshot.status is JobStatus.FAILED
    assert outcome.snapshot.exceptions[0].failure.message == "TaskManager tm-1 is lost: it was silent for 50.0 s"


@virtual_time
async def test_failures_and_restarts_are_counted() -> None:
    harness = EndpointHarness(config=RETRY)
    async with harness.running() as job:
        await harness.report(TaskFailed(failure=failure()))
        await asyncio.sleep(6)
        harness.machine.on_deploy = None
        await harness.report(TaskFailed(failure=failure(FailureKind.USER_CODE)), attempt=1)
        await job

    value = harness.registry.get_sample_value
    assert value("flintlock_task_failures_total", {"kind": "spark task failure"}) == 1
    assert value("flintlock_task_failures_total", {"kind": "user code"}) == 1
    assert value("flintlock_task_restarts_total") == 1


@virtual_time
async def test_queries_are_in_the_metrics_of_the_leader_while_they_run() -> None:
    harness = EndpointHarness()

    def series() -> int:
        families = harness.registry.collect()
        return sum(len(family.samples) for family in families if family.name == "flintlock_query_batch")

    async with harness.running() as job:
        figures = (QueryFigures(name="counts", batch=3),)
        await harness.report(TaskProgress(metrics=TaskMetrics(), queries=figures))
        assert series() == 1
        await harness.report(TaskFailed(failure=failure()))
        await job
    assert series() == 0


@virtual_time
async def test_a_job_that_waits_for_slots_has_one_task_and_no_timer() -> None:
    harness = EndpointHarness()
    harness.resources.automatic = False
    async with harness.running():
        await asyncio.sleep(1)
        others = [task.get_name() for task in asyncio.all_tasks() if JOB in task.get_name()]
        assert others == []
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "job"] == ["job"]


@virtual_time
async def test_an_ended_job_leaves_no_task_behind() -> None:
    harness = EndpointHarness(config=RETRY)
    async with harness.running() as job:
        await harness.report(TaskFailed(failure=failure(FailureKind.SPARK_TASK)))
        harness.master.command(CANCEL)
        await job
    assert [task for task in asyncio.all_tasks() if JOB in task.get_name()] == []


@virtual_time
async def test_the_end_waits_for_records_that_are_being_written() -> None:
    """A record that came after the job's cleanup would be left over for ever."""
    harness = EndpointHarness()
    harness.store.gate.clear()
    async with harness.running() as job:
        harness.master.command(CANCEL)
        await asyncio.sleep(5)
        assert harness.status is JobStatus.CANCELED
        assert not job.done()
        harness.store.gate.set()
        assert (await job).snapshot.status is JobStatus.CANCELED
        assert len(harness.store.history) == 1


@virtual_time
async def test_a_snapshot_is_made_once_for_each_change() -> None:
    harness = EndpointHarness()
    async with harness.running():
        first = harness.master.snapshot()
        assert harness.master.snapshot() is first
        changes = len(harness.changes)
        await harness.report(TaskRunning())
        assert harness.master.snapshot() is not first
        assert len(harness.changes) == changes + 1
        await harness.report(TaskRunning())
        assert len(harness.changes) == changes + 1


@virtual_time
async def test_late_messages_to_a_job_master_that_has_stopped_are_unavailable() -> None:
    harness = EndpointHarness()
    async with harness.running():
        pass
    gateway: JobMasterGateway = harness.master  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        await gateway.slots_granted(grant(harness.resources.wanted(JOB)[0]))
    lost = TaskManagerLost(
        job_id=JOB, task_manager=TaskManagerId("tm-1"), instance=InstanceId("tm-1-instance"), reason="silent"
    )
    with pytest.raises(Unavailable):
        await gateway.task_manager_lost(lost)


@virtual_time
async def test_a_query_goes_to_the_task_manager_of_the_running_attempt() -> None:
    harness = EndpointHarness()
    async with harness.running():
        await harness.report(TaskRunning())
        before = harness.master.snapshot()

        assert await harness.master.query_task(PingTask(attempt=attempt_id(0, 0))) == CommandAccepted()

        assert harness.machine.commands == [PingTask(attempt=attempt_id(0, 0))]
        assert harness.master.snapshot() is before  # a query changes nothing


@virtual_time
async def test_a_query_for_an_attempt_that_does_not_run_reaches_no_task_manager() -> None:
    """One that does not exist is NotFound; one that has not started, is over or is being published is a Conflict."""
    harness = EndpointHarness(FILES, RETRY)
    async with harness.running():
        with pytest.raises(Conflict, match="is DEPLOYING"):
            await harness.master.query_task(PingTask(attempt=attempt_id(0, 0)))
        for unknown in (attempt_id(0, 1), attempt_id(1, 0), attempt_id(-1, 0), attempt_id(0, -1)):
            with pytest.raises(NotFound):
                await harness.master.query_task(PingTask(attempt=unknown))
        await harness.report(TaskRunning())
        await harness.report(TaskFailed(failure=failure()))
        with pytest.raises(Conflict, match="is FAILED"):
            await harness.master.query_task(PingTask(attempt=attempt_id(0, 0)))
        await asyncio.sleep(6)
        with pytest.raises(Conflict, match="over: the current one is number 1"):
            await harness.master.query_task(PingTask(attempt=attempt_id(0, 0)))
        await harness.report(TaskRunning(), attempt=1)
        await harness.report(TaskFinished(sinks=(staged("part-0"),)), attempt=1)
        with pytest.raises(Conflict, match="being published"):
            await harness.master.query_task(PingTask(attempt=attempt_id(0, 1)))

        assert [command for command in harness.machine.commands if isinstance(command, PingTask)] == []


@virtual_time
async def test_a_query_that_a_task_manager_does_not_answer_ends_in_time() -> None:
    harness = EndpointHarness()
    async with harness.running():
        await harness.report(TaskRunning())
        harness.machine.silent = True
        began_s = asyncio.get_running_loop().time()

        with pytest.raises(Unavailable, match="did not answer within 8 s"):
            await harness.master.query_task(PingTask(attempt=attempt_id(0, 0)))

        assert asyncio.get_running_loop().time() - began_s == pytest.approx(8, abs=0.1)
        assert harness.state() is ExecutionState.RUNNING


@virtual_time
async def test_a_job_master_that_does_not_run_answers_no_query() -> None:
    harness = EndpointHarness()
    with pytest.raises(Unavailable, match="has stopped"):
        await harness.master.query_task(PingTask(attempt=attempt_id(0, 0)))


@virtual_time
async def test_all_work_on_a_job_is_marked_as_its_own() -> None:
    """A thread that watches the loop knows which job it works on; at the end it is none."""
    harness = EndpointHarness()
    harness.machine.on_deploy = finishing(harness, TaskFinished(results=(ROWS,)))
    seen: set[JobId | None] = set()

    class WatchedRandom(Random):
        """Drawn for each event."""

        def random(self) -> float:
            seen.add(harness.services.current_job.job_id)
            return 0.5

    harness.services = replace(harness.services, random=WatchedRandom())
    harness.master = harness.make()
    before = harness.services.current_job.serial

    await harness.master.run()

    assert seen == {harness.graph.job_id}
    assert harness.services.current_job.job_id is None
    assert harness.services.current_job.serial > before


@virtual_time
async def test_a_job_that_took_the_place_of_another_one_waits_for_the_storage_that_says_what_it_has_done() -> None:
    """Its failure is decided about then, also if that takes hours; it restarts from where its checkpoints are."""
    harness = EndpointHarness(structs.replace(SMALL, config={"execution.upgrade-of": "9" * 32, **RETRY}))
    back_s = asyncio.get_running_loop().time() + 7200.0
    asked: list[JobId] = []

    async def has_gone_on(job: JobGraph) -> bool:
        asked.append(job.job_id)
        if asyncio.get_running_loop().time() < back_s:
            raise Unavailable("the storage is out of reach")
        return True

    harness.services = replace(harness.services, has_gone_on=has_gone_on)
    harness.master = harness.make()
    async with harness.running() as job:
        await harness.report(TaskFailed(failure=failure(FailureKind.USER_CODE)))
        await asyncio.sleep(7000.0)
        assert (harness.status, len(harness.machine.deployed)) == (JobStatus.RESTARTING, 1)
        await asyncio.sleep(300.0)

        assert (harness.status, len(harness.machine.deployed)) == (JobStatus.RUNNING, 2)
        assert set(asked) == {JOB}
        assert not job.done()
