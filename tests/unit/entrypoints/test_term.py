"""A leader that does not know whether it leads takes nobody in, renews no lease, hears no report, commands nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import pytest

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.services import TermServices
from flintlock.entrypoints.term import CurrentResourceManager, GatedWorkerDriver, TermParts
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.gateways.workers import WorkerEnded
from flintlock.ha.leader_gate import LeaderGate
from flintlock.model.application import ShutDownCluster
from flintlock.model.commands import CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import Fenced, NotFound, Unavailable
from flintlock.model.ids import AttemptId, Epoch, FencingToken, InstanceId, JobId, RegionId, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions
from flintlock.model.slots import Heartbeat, LivenessProbe, TaskManagerRegistration
from flintlock.model.tasks import (
    DeployTask,
    LogChunk,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    TaskMetrics,
    TaskProgress,
    TaskReport,
)
from flintlock.testing.memory_ha import MemoryCluster, MemoryHaServices
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import now_ms, virtual_time

A: Final = JobId("a" * 32)
TOKEN: Final = FencingToken(Epoch(1), "jm-1")
VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
ATTEMPT: Final = AttemptId(job_id=A, region=RegionId(0), attempt=0)


class RecordingTaskManager:
    """Remembers what it is told to do."""

    def __init__(self) -> None:
        self.told: Final[list[object]] = []

    async def deploy(self, message: DeployTask) -> None:
        self.told.append(message)

    async def command(self, message: TaskCommand) -> TaskAnswer:
        self.told.append(message)
        return CommandAccepted()

    async def publish(self, message: PublishFiles) -> None:
        self.told.append(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        self.told.append(message)

    async def read_log(self, message: LogQuery) -> LogChunk:
        raise NotFound("no log")

    async def shut_down(self, message: ShutDownCluster) -> None:
        self.told.append(message)

    async def watch_liveness(self, message: LivenessProbe) -> None:
        await asyncio.Event().wait()


class Scene:
    """One term of a JobManager, and a TaskManager, in a network."""

    def __init__(self) -> None:
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
            clock_ms=now_ms,
            random=Random(1),
            paused=lambda token: self.paused if token == TOKEN else None,
        )

    @asynccontextmanager
    async def leading(self) -> AsyncGenerator[TermServices]:
        stores = MemoryHaServices(MemoryCluster(), "jm").stores(TOKEN)
        async with self._parts.open(TOKEN, stores) as term:
            term.admit()
            yield term

    async def enter(self) -> None:
        """Register the TaskManager and send its first heartbeat."""
        await self.resource_manager().register_task_manager(registration())
        await self.beat()

    async def beat(self) -> None:
        heard = await self.resource_manager().heartbeat(
            Heartbeat(id=TaskManagerId("tm"), instance=InstanceId("tm-life"))
        )
        assert heard.known

    def resource_manager(self) -> ResourceManagerGateway:
        return self.process.connect(ResourceManagerGateway, "jm", lambda: TOKEN)

    def job_masters(self, token: FencingToken = TOKEN) -> JobMasterGateway:
        return self.process.connect(JobMasterGateway, "jm", lambda: token)


def registration() -> TaskManagerRegistration:
    return TaskManagerRegistration(
        id=TaskManagerId("tm"), instance=InstanceId("tm-life"), address="tm", slots=1, versions=VERSIONS
    )


@virtual_time
async def test_paused_leader_renews_no_lease_and_goes_on_as_if_nothing_had_happened() -> None:
    scene = Scene()
    async with scene.leading() as term:
        await scene.enter()
        for _ in range(3):
            scene.paused = "the connection to ZooKeeper is lost"
            with pytest.raises(Unavailable, match="the connection to ZooKeeper is lost"):
                await scene.beat()
            await asyncio.sleep(10)
            scene.paused = None
            await scene.beat()

        overview = await term.resource_manager.overview()
        assert [manager.id for manager in overview.task_managers] == ["tm"]


@virtual_time
async def test_paused_leader_takes_nobody_in_and_acknowledges_no_report() -> None:
    scene = Scene()
    async with scene.leading():
        scene.paused = "cut off"
        report = TaskReport(
            attempt=ATTEMPT,
            task_manager=TaskManagerId("tm"),
            instance=InstanceId("tm-life"),
            news=TaskProgress(metrics=TaskMetrics()),
        )
        with pytest.raises(Unavailable, match="cut off"):
            await scene.resource_manager().register_task_manager(registration())
        with pytest.raises(Unavailable, match="cut off"):
            await scene.job_masters().report(report)
        with pytest.raises(Fenced):  # whoever follows another leader hears that first
            await scene.job_masters(FencingToken(Epoch(2), "jm-2")).report(report)

        scene.paused = None

        with pytest.raises(NotFound):  # it is heard again, and nobody wants it
            await scene.job_masters().report(report)


@virtual_time
async def test_commands_of_a_paused_leader_leave_when_it_may_act_again() -> None:
    scene = Scene()
    async with scene.leading() as term, asyncio.TaskGroup() as tasks:
        await scene.enter()
        scene.paused = "cut off"
        order = RemoveFiles(job_id=A, directories=("work/a",))
        removing = tasks.create_task(term.resource_manager.remove_files(order))
        await asyncio.sleep(30)
        assert scene.task_manager.told == []

        scene.paused = None
        await removing

        assert scene.task_manager.told == [order]


@virtual_time
async def test_command_that_waits_when_the_term_ends_is_never_sent() -> None:
    scene = Scene()
    async with asyncio.TaskGroup() as tasks:
        async with scene.leading() as term:
            await scene.enter()
            scene.paused = "cut off"
            order = RemoveFiles(job_id=A, directories=("work/a",))
            removing = tasks.create_task(term.resource_manager.remove_files(order))
            await asyncio.sleep(1)
            removing.cancel()  # as the end of the term does with all that was begun in it
        scene.paused = None
        await asyncio.sleep(60)

    assert scene.task_manager.told == []


@virtual_time
async def test_registered_task_managers_are_asked_to_end_when_the_cluster_shuts_down() -> None:
    scene = Scene()
    async with scene.leading() as term:
        await scene.enter()
        await term.stop_task_managers()
        assert scene.task_manager.told == [ShutDownCluster()]

        scene.process.crash()
        await term.stop_task_managers()  # one that cannot be reached keeps nobody from ending


class RecordingDriver:
    """Starts and releases nobody, and remembers that it was asked."""

    slots = 1
    resources = Resources()

    def __init__(self) -> None:
        self.asked: Final[list[str]] = []

    async def start(self) -> TaskManagerId:
        self.asked.append("start")
        return TaskManagerId("worker")

    async def release(self, worker: TaskManagerId) -> None:
        self.asked.append(f"release {worker}")

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
        assert (await workers.ended()).id == "worker"  # hearing is not acting
        assert (workers.slots, workers.resources) == (1, Resources())

        reason.clear()

    assert sorted(driver.asked) == ["release worker", "start"]
