"""A leader that does not know whether it leads registers no TaskManager, renews no lease and sends no command."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import pytest
from structlog.testing import capture_logs

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.services import TermServices
from flintlock.entrypoints.term import CurrentResourceManager, GatedWorkerDriver, TermParts
from flintlock.entrypoints.workers.providers import WorkerDriverOpener
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.gateways.workers import WorkerEnded
from flintlock.ha.leader_gate import LeaderGate
from flintlock.model.application import ShutDownCluster
from flintlock.model.commands import CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Unavailable
from flintlock.model.ids import AttemptId, Epoch, FencingToken, InstanceId, JobId, RegionId, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions
from flintlock.model.log_events import LEADER_NOT_FENCED
from flintlock.model.slots import Heartbeat, LivenessProbe, TaskManagerRegistration
from flintlock.model.tasks import (
    DeployTask,
    LogChunk,
    LoggedJobs,
    LoggedJobsQuery,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    RemoveLogs,
    TaskMetrics,
    TaskProgress,
    TaskReport,
)
from flintlock.testing.fakes.fake_workers import FakeWorkers
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import now_ms, virtual_time

A: Final = JobId("a" * 32)
TOKEN: Final = FencingToken(Epoch(1), "jm-1")
VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
ATTEMPT: Final = AttemptId(job_id=A, region=RegionId(0), attempt=0)


class RecordingTaskManager:
    """Records the messages that it receives."""

    def __init__(self) -> None:
        self.received: Final[list[object]] = []
        self.fail_with: FlintlockError | None = None

    async def deploy(self, message: DeployTask) -> None:
        self.received.append(message)

    async def command(self, message: TaskCommand) -> TaskAnswer:
        self.received.append(message)
        return CommandAccepted()

    async def publish(self, message: PublishFiles) -> None:
        self.received.append(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        self.received.append(message)

    async def read_log(self, message: LogQuery) -> LogChunk:
        raise NotFound("no log")

    async def query_process(self, message: ProcessQuery) -> ProcessAnswer:
        raise AssertionError

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        return LoggedJobs()

    async def remove_logs(self, message: RemoveLogs) -> None:
        self.received.append(message)

    async def shut_down(self, message: ShutDownCluster) -> None:
        self.received.append(message)

    async def watch_liveness(self, message: LivenessProbe) -> None:
        await asyncio.Event().wait()


class TermHarness:
    """One term of a JobManager, and a TaskManager, in a network."""

    def __init__(self, workers: WorkerDriverOpener | None = None) -> None:
        network = SimulatedNetwork(Random(1))
        self.job_manager: Final[SimulatedProcess] = network.process("jm")
        self.process: Final[SimulatedProcess] = network.process("tm")
        self.task_manager: Final = RecordingTaskManager()
        self.process.serve(TaskManagerGateway, self.task_manager)
        self.paused: str | None = None
        self._parts: Final = TermParts(
            host=self.job_manager,
            connector=self.job_manager,
            resource_manager=CurrentResourceManager(),
            configuration=Configuration(),
            versions=VERSIONS,
            work_dir="work",
            checkpoints_dir="checkpoints",
            clock_ms=now_ms,
            random=Random(1),
            workers=workers,
            paused=lambda token: self.paused if token == TOKEN else None,
        )

        self.ha: Final = MemoryHaServices(MemoryCluster(), "jm")

    @asynccontextmanager
    async def leading(self) -> AsyncGenerator[TermServices]:
        stores = self.ha.stores(TOKEN)
        async with self._parts.open(TOKEN, stores) as term:
            term.admit()
            yield term

    async def enter(self) -> None:
        """Register the TaskManager and send its first heartbeat."""
        await self.resource_manager().register_task_manager(registration())
        await self.heartbeat()

    async def heartbeat(self) -> None:
        answer = await self.resource_manager().heartbeat(
            Heartbeat(id=TaskManagerId("tm"), instance=InstanceId("tm-instance"))
        )
        assert answer.known

    def resource_manager(self) -> ResourceManagerGateway:
        return self.process.connect(ResourceManagerGateway, "jm", lambda: TOKEN)

    def job_masters(self, token: FencingToken = TOKEN) -> JobMasterGateway:
        return self.process.connect(JobMasterGateway, "jm", lambda: token)


def registration() -> TaskManagerRegistration:
    return TaskManagerRegistration(
        id=TaskManagerId("tm"), instance=InstanceId("tm-instance"), address="tm", slots=1, versions=VERSIONS
    )


@virtual_time
async def test_paused_leader_renews_no_lease_and_goes_on_as_if_nothing_had_happened() -> None:
    harness = TermHarness()
    async with harness.leading() as term:
        await harness.enter()
        for _ in range(3):
            harness.paused = "the connection to ZooKeeper is lost"
            with pytest.raises(Unavailable, match="the connection to ZooKeeper is lost"):
                await harness.heartbeat()
            await asyncio.sleep(10)
            harness.paused = None
            await harness.heartbeat()

        overview = await term.resource_manager.overview()
        assert [manager.id for manager in overview.task_managers] == ["tm"]


@virtual_time
async def test_paused_leader_registers_no_task_manager_and_acknowledges_no_report() -> None:
    harness = TermHarness()
    async with harness.leading():
        harness.paused = "cut off"
        report = TaskReport(
            attempt=ATTEMPT,
            task_manager=TaskManagerId("tm"),
            instance=InstanceId("tm-instance"),
            news=TaskProgress(metrics=TaskMetrics()),
        )
        with pytest.raises(Unavailable, match="cut off"):
            await harness.resource_manager().register_task_manager(registration())
        with pytest.raises(Unavailable, match="cut off"):
            await harness.job_masters().report(report)
        with pytest.raises(Fenced):  # the token of another leader is refused first
            await harness.job_masters(FencingToken(Epoch(2), "jm-2")).report(report)

        harness.paused = None

        with pytest.raises(NotFound):  # it is accepted again, and no job wants it
            await harness.job_masters().report(report)


@virtual_time
async def test_commands_of_a_paused_leader_leave_when_it_may_act_again() -> None:
    harness = TermHarness()
    async with harness.leading() as term, asyncio.TaskGroup() as tasks:
        await harness.enter()
        harness.paused = "cut off"
        order = RemoveFiles(job_id=A, directories=("work/a",))
        removing = tasks.create_task(term.resource_manager.remove_files(order))
        await asyncio.sleep(30)
        assert harness.task_manager.received == []

        harness.paused = None
        await removing

        assert harness.task_manager.received == [order]


@virtual_time
async def test_command_that_waits_when_the_term_ends_is_never_sent() -> None:
    harness = TermHarness()
    async with asyncio.TaskGroup() as tasks:
        async with harness.leading() as term:
            await harness.enter()
            harness.paused = "cut off"
            order = RemoveFiles(job_id=A, directories=("work/a",))
            removing = tasks.create_task(term.resource_manager.remove_files(order))
            await asyncio.sleep(1)
            removing.cancel()  # as the end of the term does with all that was begun in it
        harness.paused = None
        await asyncio.sleep(60)

    assert harness.task_manager.received == []


@virtual_time
async def test_registered_task_managers_are_asked_to_end_when_the_cluster_shuts_down() -> None:
    harness = TermHarness()
    async with harness.leading() as term:
        await harness.enter()
        await term.stop_task_managers()
        assert harness.task_manager.received == [ShutDownCluster()]

        harness.process.crash()
        await term.stop_task_managers()  # one that cannot be reached does not keep the others from ending


@virtual_time
async def test_workers_that_have_not_registered_end_too_when_the_cluster_shuts_down() -> None:
    driver = FakeWorkers()
    worker = await driver.start()

    @asynccontextmanager
    async def workers(_: FencingToken) -> AsyncGenerator[FakeWorkers]:
        yield driver

    harness = TermHarness(workers)
    async with harness.leading() as term:
        await term.stop_task_managers()
        assert driver.released == [worker]


class RecordingDriver:
    """Starts and releases no process, and records its calls."""

    slots = 1
    resources = Resources()

    def __init__(self) -> None:
        self.asked: Final[list[str]] = []

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        return ()

    async def found(self) -> TaskManagerId:
        return TaskManagerId("former")

    async def start(self) -> TaskManagerId:
        self.asked.append("start")
        return TaskManagerId("worker")

    def withdraw_start(self) -> bool:
        self.asked.append("withdraw")
        return True

    async def release(self, worker: TaskManagerId) -> None:
        self.asked.append(f"release {worker}")

    async def release_all(self) -> None:
        self.asked.append("release all")

    async def ended(self) -> WorkerEnded:
        return WorkerEnded(id=TaskManagerId("worker"), reason="by itself")


@virtual_time
async def test_paused_leader_starts_and_releases_no_worker() -> None:
    reason: list[str] = ["cut off"]
    driver = RecordingDriver()
    workers = GatedWorkerDriver(driver, LeaderGate(lambda: reason[0] if reason else None))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workers.start())
        tasks.create_task(workers.release(TaskManagerId("worker")))
        await asyncio.sleep(60)
        assert driver.asked == []
        assert (await workers.ended()).id == "worker"  # waiting for the end of a worker needs no leadership
        assert await workers.found() == "former"
        assert (workers.slots, workers.resources) == (1, Resources())
        assert workers.withdraw_start()  # neither does a start that is not needed any more

        reason.clear()

    assert sorted(driver.asked) == ["release worker", "start", "withdraw"]


REMOVE: Final = RemoveFiles(job_id=A, directories=())


@virtual_time
async def test_a_leader_that_the_store_knows_is_not_deposed_by_a_taskmanager() -> None:
    """One TaskManager that follows an epoch of nobody ends no term: the others go on."""
    harness = TermHarness()
    harness.task_manager.fail_with = Fenced("epoch 1 is over: this TaskManager follows epoch 1000000")
    async with harness.leading() as term:
        await harness.enter()
        with capture_logs() as logs, pytest.raises(Unavailable, match="which the store does not know: epoch 1 is over"):
            await term.resource_manager.remove_files(REMOVE)

        harness.task_manager.fail_with = None
        await term.resource_manager.remove_files(REMOVE)

    assert [line["address"] for line in logs if line["event"] == LEADER_NOT_FENCED] == ["tm"]


@virtual_time
async def test_a_leader_that_the_store_has_replaced_believes_a_taskmanager() -> None:
    harness = TermHarness()
    harness.task_manager.fail_with = Fenced("epoch 1 is over: this TaskManager follows epoch 2")
    async with harness.leading() as term:
        await harness.enter()
        await harness.ha.stores(FencingToken(Epoch(2), "jm-2")).confirm_term()

        with pytest.raises(Fenced):
            await term.resource_manager.remove_files(REMOVE)
