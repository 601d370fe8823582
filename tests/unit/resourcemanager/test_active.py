"""Active mode as jobs and TaskManagers meet it, on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.resourcemanager.test_core import A, B, beat, offer, wants
from tests.unit.resourcemanager.test_endpoint import ResourceManagerHarness, enter, settle

from flintlock.model.application import ShutDownCluster
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.model.slots import NoResources, TaskManagerRegistration
from flintlock.testing.fakes.fake_workers import FakeWorkers
from flintlock.testing.virtual_time import virtual_time

MOMENT_S = 0.05


def harness_of(limit: int = 2) -> ResourceManagerHarness:
    return ResourceManagerHarness(
        workers=FakeWorkers(slots=2), settings={"resourcemanager.max-taskmanagers": str(limit)}
    )


def worker(number: int, incarnation: int = 1) -> TaskManagerRegistration:
    return offer(f"worker-{number}", 2, incarnation)


@virtual_time
async def test_a_job_that_waits_gets_a_worker_and_the_worker_goes_when_idle() -> None:
    harness = harness_of()
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(MOMENT_S)
        assert harness.workers.started == ["worker-1"]
        assert (await manager.overview()).starting == 1

        await enter(manager, worker(1))
        await settle()
        assert [grant.task_manager for grant in harness.jobs.grants] == ["worker-1"]
        assert (await manager.overview()).starting == 0

        await manager.declare_requirements(wants(A))
        await asyncio.sleep(29)
        await manager.heartbeat(beat("worker-1"))
        assert harness.workers.released == []
        await asyncio.sleep(1 + MOMENT_S)
        assert harness.workers.released == ["worker-1"]
        assert (await manager.overview()).task_managers == ()
    assert harness.jobs.losses == []
    assert harness.registry.get_sample_value("flintlock_resourcemanager_lost_taskmanagers_total") == 0


@virtual_time
async def test_a_worker_that_waits_for_resources_is_not_requested_any_more_when_its_job_is_gone() -> None:
    harness = harness_of()
    harness.workers.has_resources = False
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await manager.declare_requirements(wants(B, r=2))
        await asyncio.sleep(MOMENT_S)
        assert (await manager.overview()).starting == 2
        await manager.declare_requirements(wants(A))
        await asyncio.sleep(MOMENT_S)
        assert (await manager.overview()).starting == 1
        await manager.declare_requirements(wants(B))
        await asyncio.sleep(MOMENT_S)
        assert (await manager.overview()).starting == 0
        assert not harness.workers.withdraw_start(), "both were withdrawn"

        harness.workers.has_resources = True
        await manager.declare_requirements(wants(B, r=2))
        await asyncio.sleep(MOMENT_S)
        assert harness.workers.started == ["worker-1"]


@virtual_time
async def test_no_worker_is_started_without_waiting_requests() -> None:
    harness = harness_of()
    async with harness.running() as manager:
        await enter(manager, offer("tm-1", 2))
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(40)
    assert harness.workers.tries == []


@virtual_time
async def test_a_task_manager_that_the_driver_did_not_start_is_not_released() -> None:
    harness = harness_of()
    async with harness.running() as manager:
        await enter(manager, offer("tm-1", 2))
        for _ in range(100):
            await asyncio.sleep(10)
            assert (await manager.heartbeat(beat("tm-1"))).known
    assert harness.workers.released == []


@virtual_time
async def test_a_worker_that_is_killed_is_lost_at_once_and_replaced_while_a_request_waits() -> None:
    harness = harness_of()
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(MOMENT_S)
        await enter(manager, worker(1))
        harness.workers.end("worker-1")
        await settle()
        assert [loss.reason for loss in harness.jobs.losses] == ["its process was killed by SIGKILL"]
        await asyncio.sleep(2.9)
        assert len(harness.workers.started) == 1
        await asyncio.sleep(0.2)
        assert harness.workers.started == ["worker-1", "worker-2"]
        await enter(manager, worker(2))
        await settle()
        assert harness.jobs.grants[-1].task_manager == "worker-2"


@virtual_time
async def test_a_worker_that_cannot_be_started_is_tried_again_ever_more_slowly() -> None:
    harness = harness_of(limit=1)
    harness.workers.fail_with = Unavailable("no more processes")
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=1))
        await asyncio.sleep(25)
    waits = [
        round(later - sooner) for sooner, later in zip(harness.workers.tries, harness.workers.tries[1:], strict=False)
    ]
    assert waits == [3, 6, 12]


@virtual_time
async def test_a_worker_that_is_being_released_is_not_taken_back() -> None:
    """Its next heartbeat is not known, so it registers again while it is being ended: it must not get work."""
    harness = harness_of()
    harness.workers.gate.clear()
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(MOMENT_S)
        await enter(manager, worker(1))
        await manager.declare_requirements(wants(A))
        await asyncio.sleep(31)
        assert not (await manager.heartbeat(beat("worker-1"))).known
        with pytest.raises(Refused, match="'worker-1' is being released"):
            await manager.register_task_manager(worker(1, incarnation=2))
        await manager.declare_requirements(wants(B, r=2))
        await asyncio.sleep(MOMENT_S)
        assert harness.workers.started == ["worker-1", "worker-2"]


@virtual_time
async def test_a_silent_worker_is_ended_and_replaced() -> None:
    harness = harness_of(limit=1)
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(MOMENT_S)
        await enter(manager, worker(1))
        await asyncio.sleep(51)
        assert harness.workers.released == ["worker-1"]
        await asyncio.sleep(3)
        assert harness.workers.started == ["worker-1", "worker-2"]


@virtual_time
async def test_a_request_that_not_even_a_fresh_worker_could_serve_is_reported() -> None:
    harness = harness_of()
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=3))
        await asyncio.sleep(29)
        assert harness.jobs.received == []
        await asyncio.sleep(2)
    (reported,) = harness.jobs.received
    assert isinstance(reported, NoResources)
    assert "3 slots; no TaskManager is registered; one that would be started has 2 slots" in reported.reason
    assert harness.workers.tries == []


@virtual_time
async def test_many_waiting_requests_get_at_most_the_limit_of_workers() -> None:
    harness = harness_of(limit=3)
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, **{f"r{n}": 1 for n in range(100)}))
        await asyncio.sleep(MOMENT_S)
        assert len(harness.workers.started) == 3
        for number in (1, 2, 3):
            await enter(manager, worker(number))
        await settle()
        assert len(harness.jobs.grants) == 6
        await asyncio.sleep(10)
    assert len(harness.workers.started) == 3


@virtual_time
async def test_workers_of_an_earlier_leader_are_expected_before_others_are_started() -> None:
    harness = harness_of(limit=2)
    harness.workers.former = (TaskManagerId("former-1"),)
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(MOMENT_S)
        assert harness.workers.started == []
        await enter(manager, offer("former-1", 2))
        await settle()
        assert [grant.task_manager for grant in harness.jobs.grants] == ["former-1"]

        await manager.declare_requirements(wants(A))
        for _ in range(2):
            await asyncio.sleep(15)
            await manager.heartbeat(beat("former-1"))
        await asyncio.sleep(1 + MOMENT_S)
        assert harness.workers.released == ["former-1"]


@virtual_time
async def test_until_the_workers_of_an_earlier_leader_are_known_none_is_started_and_those_that_register_serve() -> None:
    harness = harness_of(limit=2)
    harness.workers.former = (TaskManagerId("former-1"), TaskManagerId("former-2"))
    harness.workers.is_former_known.clear()
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2, s=2))
        await enter(manager, structs.replace(offer("former-1", 2), worker=True))
        await asyncio.sleep(MOMENT_S)
        assert harness.workers.started == []
        assert [grant.task_manager for grant in harness.jobs.grants] == ["former-1"]

        harness.workers.is_former_known.set()
        for _ in range(40):
            await asyncio.sleep(10)
            await manager.heartbeat(beat("former-1"))
        assert harness.workers.released == ["former-2"], "it alone has not registered"
        assert harness.workers.started == ["worker-1"]


@virtual_time
async def test_worker_of_an_earlier_leader_that_never_registers_is_ended_and_replaced() -> None:
    harness = harness_of(limit=1)
    harness.workers.former = (TaskManagerId("former-1"),)
    async with harness.running() as manager:
        await manager.declare_requirements(wants(A, r=2))
        await asyncio.sleep(299)
        assert (harness.workers.started, harness.workers.released) == ([], [])
        await asyncio.sleep(30)
        assert (harness.workers.started, harness.workers.released) == (["worker-1"], ["former-1"])


@virtual_time
async def test_worker_of_an_earlier_leader_that_is_known_late_and_never_registers_is_ended() -> None:
    harness = harness_of(limit=1)
    async with harness.running():
        await asyncio.sleep(MOMENT_S)
        harness.workers.late_former.put_nowait(TaskManagerId("former-1"))
        await asyncio.sleep(299)
        assert harness.workers.released == []
        await asyncio.sleep(2)
        assert harness.workers.released == ["former-1"]


@virtual_time
async def test_worker_of_a_leader_on_another_machine_is_taken_over_as_it_registers() -> None:
    """This driver cannot end it: it is asked to end."""
    harness = harness_of(limit=1)
    async with harness.running() as manager:
        await enter(manager, structs.replace(offer("far-1", 2), worker=True))
        await enter(manager, offer("independent-1", 2))
        await manager.declare_requirements(wants(A, r=2))
        await settle()
        assert harness.workers.started == []
        await manager.declare_requirements(wants(A))
        for _ in range(2):
            await asyncio.sleep(15)
            for name in ("far-1", "independent-1"):
                await manager.heartbeat(beat(name))
        await asyncio.sleep(1 + MOMENT_S)

        assert harness.machines("far-1:1").shut_downs == [ShutDownCluster()]
        assert harness.machines("independent-1:1").shut_downs == []
        assert [seen.id for seen in (await manager.overview()).task_managers] == ["independent-1"]
