"""A dead TaskManager is noticed at once, a silent one is waited for: on the simulated network, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

from tests.unit.resourcemanager.test_core import A, B, offer, wants
from tests.unit.resourcemanager.test_endpoint import enter

from flintlock.config.configuration import Configuration
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.errors import Fenced, Unavailable
from flintlock.model.ids import InstanceId
from flintlock.model.slots import Heartbeat
from flintlock.resourcemanager.endpoint import ResourceManager
from flintlock.testing.fakes.fake_jobmaster import FakeJobMaster
from flintlock.testing.fakes.fake_taskmanager import FakeTaskManager
from flintlock.testing.samples import TOKEN, VERSIONS
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import now_ms, virtual_time

ADDRESS = "tm-1:1"
INTERVAL_S = 3.0
LIVENESS_CALL_TIMEOUT_S = 3600.0


class LivenessHarness:
    """A ResourceManager in one process, a TaskManager in another, and the job that has slots of it."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(7))
        self.job_manager = self.network.process("jobmanager")
        self.task_manager = FakeTaskManager()
        self.machine = self.start()
        self.jobs = FakeJobMaster()
        self.manager = ResourceManager(
            job_masters=self.jobs,
            task_managers=lambda address: self.job_manager.connect(TaskManagerGateway, address, lambda: TOKEN),
            liveness_connector=lambda address: self.job_manager.connect(
                TaskManagerGateway, address, lambda: TOKEN, LIVENESS_CALL_TIMEOUT_S
            ),
            clock_ms=now_ms,
            token=TOKEN,
            versions=VERSIONS,
            configuration=Configuration({"heartbeat.interval": "3 s", "heartbeat.timeout": "50 s"}),
        )

    def start(self) -> SimulatedProcess:
        machine = self.network.process(ADDRESS)
        machine.serve(TaskManagerGateway, self.task_manager)
        return machine

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Let the TaskManager register and the job have its slots."""
        async with asyncio.TaskGroup() as scope:
            serving = scope.create_task(self.manager.run(), name="resourcemanager")
            await enter(self.manager, offer())
            await self.manager.declare_requirements(wants(A, r=1))
            await asyncio.sleep(1)
            assert len(self.jobs.grants) == 1
            yield
            serving.cancel()

    async def known(self, incarnation: int = 1) -> bool:
        """Send a heartbeat."""
        return (
            await self.manager.heartbeat(Heartbeat(id=offer().id, instance=InstanceId(f"tm-1-{incarnation}")))
        ).known

    def reasons(self) -> list[str]:
        return [loss.reason for loss in self.jobs.losses]


@virtual_time
async def test_a_task_manager_whose_process_is_killed_is_lost_as_soon_as_its_next_heartbeat_is_overdue() -> None:
    harness = LivenessHarness()
    async with harness.running():
        assert await harness.known()
        harness.machine.crash()
        await asyncio.sleep(INTERVAL_S + 0.4)
        assert harness.reasons() == []
        await asyncio.sleep(1.2)
        assert harness.reasons() == ["nothing listens at tm-1:1"]
        assert not await harness.known()


@virtual_time
async def test_a_task_manager_that_refuses_connections_but_sends_heartbeats_is_not_lost() -> None:
    """Its tasks may run: it keeps its slots, gets no new tasks, and is used again when it can be reached."""
    harness = LivenessHarness()
    async with harness.running():
        harness.network.refuse("jobmanager", ADDRESS)
        await asyncio.sleep(1)
        await harness.manager.declare_requirements(wants(B, r=1))
        for _ in range(100):
            assert await harness.known()
            await asyncio.sleep(INTERVAL_S)
        assert harness.reasons() == []
        assert [grant.job_id for grant in harness.jobs.grants] == [A]
        (seen,) = (await harness.manager.overview()).task_managers
        assert (seen.free_slots, seen.ready) == (1, False)

        assert await harness.known()
        harness.network.accept("jobmanager", ADDRESS)
        await asyncio.sleep(1)
        assert [grant.job_id for grant in harness.jobs.grants] == [A, B]
        harness.machine.crash()
        await asyncio.sleep(INTERVAL_S + 2)
        assert set(harness.reasons()) == {"nothing listens at tm-1:1"}


@virtual_time
async def test_a_task_manager_whose_host_is_gone_is_only_silent() -> None:
    harness = LivenessHarness()
    async with harness.running():
        harness.machine.crash(host_too=True)
        await asyncio.sleep(48)
        assert harness.reasons() == []
        await asyncio.sleep(3)
        assert harness.reasons() == ["it was silent for 50.0 s"]


@virtual_time
async def test_a_task_manager_behind_a_cut_network_is_waited_for() -> None:
    harness = LivenessHarness()
    async with harness.running():
        harness.network.cut("jobmanager", ADDRESS)
        for _ in range(3 * 1200):
            await asyncio.sleep(3)
            assert await harness.known()  # heartbeats come by another way: only liveness calls are cut
        assert harness.reasons() == []

        harness.network.heal()
        await asyncio.sleep(4000)
    assert harness.jobs.losses[0].reason.startswith("it was silent")


@virtual_time
async def test_a_process_that_restarts_at_once_has_lost_its_former_incarnation() -> None:
    harness = LivenessHarness()
    async with harness.running():
        harness.machine.crash()
        harness.task_manager.over.add(InstanceId("tm-1-1"))
        harness.start()
        await asyncio.sleep(1.2)
        assert harness.reasons() == ["it reports that it has ended"]


@virtual_time
async def test_an_incarnation_that_reports_its_end_is_lost() -> None:
    harness = LivenessHarness()
    async with harness.running():
        harness.task_manager.gone.set()
        await asyncio.sleep(1.2)
        assert harness.reasons() == ["it reports that it has ended"]


@virtual_time
async def test_an_unregistration_within_the_grace_is_the_reason() -> None:
    """The engine died: its TaskManager reports its tasks, then unregisters; that reason is more exact."""
    harness = LivenessHarness()
    async with harness.running():
        harness.task_manager.gone.set()
        await asyncio.sleep(0.5)
        await harness.manager.unregister_task_manager(Heartbeat(id=offer().id, instance=InstanceId("tm-1-1")))
        await asyncio.sleep(5)
        assert harness.reasons() == ["it has shut down"]


@virtual_time
async def test_a_connection_that_breaks_though_the_process_runs_is_no_loss() -> None:
    harness = LivenessHarness()
    async with harness.running():
        harness.task_manager.fail_with = Unavailable("the connection was reset")
        harness.task_manager.gone.set()
        await asyncio.sleep(30)
        assert harness.task_manager.tries > 5
        assert await harness.known()
        assert harness.reasons() == []


@virtual_time
async def test_each_incarnation_has_one_liveness_call_and_only_while_it_is_registered() -> None:
    harness = LivenessHarness()
    async with harness.running():
        await enter(harness.manager, offer(incarnation=2))
        await enter(harness.manager, offer(incarnation=2))
        await asyncio.sleep(10)
        assert harness.task_manager.tries == 2
        harness.task_manager.over.add(InstanceId("tm-1-1"))
        harness.task_manager.gone.set()  # for the first incarnation there is no liveness call any more
        await asyncio.sleep(5)
        assert [loss.instance for loss in harness.jobs.losses] == ["tm-1-1", "tm-1-2"]


@virtual_time
async def test_a_task_manager_that_refuses_liveness_calls_is_left_to_the_heartbeat_timeout() -> None:
    harness = LivenessHarness()
    harness.task_manager.fail_with = Fenced("epoch 1 is over")
    async with harness.running():
        await asyncio.sleep(40)
        assert harness.task_manager.tries == 1
        assert await harness.known()
        assert harness.reasons() == []


@virtual_time
async def test_a_call_that_comes_to_its_deadline_is_put_again() -> None:
    harness = LivenessHarness()
    async with harness.running():
        for _ in range(1500):
            await asyncio.sleep(3)
            assert await harness.known()
        assert harness.task_manager.tries == 2
        assert harness.reasons() == []
        harness.machine.crash()
        await asyncio.sleep(INTERVAL_S + 1.6)
        assert harness.reasons() == ["nothing listens at tm-1:1"]
