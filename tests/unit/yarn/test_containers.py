"""Containers of an ApplicationMaster: requests that are withdrawn, surplus, lost nodes, and what a heartbeat brings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from flintlock.gateways.workers import WorkerEnded
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.testing.fakes.fake_yarn import FakeApplicationMaster
from flintlock.yarn.containers import HeartbeatIntervals, YarnContainers
from flintlock.yarn.messages import ABORTED, PREEMPTED, Container, ContainerSize, Launch
from flintlock.yarn.node_failures import ExclusionRules
from flintlock.yarn.workers import YarnWorkers, yarn_workers

SIZE = ContainerSize(memory_mb=1024, vcores=1)
EARLIER = Container(id="container_1_0001_01_000002", node="node:1", node_name="node")


def unregistered(master: FakeApplicationMaster, interval_s: float = 0.005) -> YarnContainers:
    intervals = HeartbeatIntervals(idle_s=interval_s, waiting_s=interval_s)
    return YarnContainers(
        master,
        SIZE,
        lambda container: Launch(command=f"run {container.id}"),
        intervals,
        release_s=0.5,
        exclusion=ExclusionRules(failures=2, duration_s=3600.0),
    )


@asynccontextmanager
async def serving(
    master: FakeApplicationMaster, interval_s: float = 0.005
) -> AsyncGenerator[tuple[YarnContainers, asyncio.Queue[WorkerEnded]]]:
    containers = unregistered(master, interval_s)
    ends: asyncio.Queue[WorkerEnded] = asyncio.Queue()
    await containers.register("host", 1, "http://host:1")
    containers.listen(ends)
    async with asyncio.TaskGroup() as tasks:
        heartbeats = tasks.create_task(containers.run(), name="heartbeats")
        yield containers, ends
        heartbeats.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (threads change it)
            await asyncio.sleep(0.002)


async def started(driver: YarnContainers | YarnWorkers) -> TaskManagerId:
    """Start a worker that is not withdrawn."""
    worker = await driver.start()
    assert worker is not None
    return worker


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_worker_is_started_in_the_container_that_a_heartbeat_brings() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, _):
            worker = await started(containers)
            assert master.launched[worker].command == f"run {worker}"
            assert containers.running() == (worker,)
            assert master.requested == 0

    run(scenario)


def test_a_request_does_not_wait_for_the_next_heartbeat() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.allocates = False
        async with serving(master, interval_s=3600.0) as (containers, _), asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(containers.start(), name="start")
            await until(lambda: master.requested == 1)
            starting.cancel()

    run(scenario)


def test_a_start_that_is_cancelled_takes_its_request_back() -> None:
    """Its term is over, while YARN has no container for it yet."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.allocates = False
        async with serving(master) as (containers, _):
            async with asyncio.TaskGroup() as tasks:
                starting = tasks.create_task(containers.start(), name="start")
                await until(lambda: master.requested == 1)
                starting.cancel()
            await until(lambda: master.requested == 0)
            assert containers.running() == ()

    run(scenario)


def test_a_start_that_is_not_needed_any_more_is_withdrawn_and_the_others_wait_on() -> None:
    """The next heartbeat requests fewer containers; one that comes all the same is given back."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.allocates = False
        async with serving(master) as (containers, _), yarn_workers(containers, slots=1) as driver:
            async with asyncio.TaskGroup() as tasks:
                first = tasks.create_task(driver.start(), name="first")
                await until(lambda: master.requested == 1)
                second = tasks.create_task(driver.start(), name="second")
                await until(lambda: master.requested == 2)
                assert driver.withdraw_start()
                assert await second is None
                await until(lambda: master.requested == 1)
                master.allocates = True
                worker = await first
            assert containers.running() == (worker,)
            assert not driver.withdraw_start(), "no start waits any more"
            assert master.given_back == []

    run(scenario)


def test_a_container_that_nobody_waits_for_is_given_back_at_once() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, ends):
            master.allocate_one_more()
            await until(lambda: len(master.given_back) == 1)
            assert containers.running() == ()
            assert ends.empty()

    run(scenario)


def test_a_container_that_cannot_be_launched_is_given_back_with_the_reason() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.fails_to_launch = Unavailable("the node does not answer")
        async with serving(master) as (containers, _):
            with pytest.raises(Unavailable, match="cannot be started on node:1: the node does not answer"):
                await started(containers)
            await until(lambda: len(master.given_back) == 1)
            assert containers.running() == ()

    run(scenario)


@pytest.mark.parametrize("failure", [None, Unavailable("connection refused")])
@pytest.mark.parametrize("exit_status", [ABORTED, 1])
def test_a_container_that_ends_while_it_is_launched_was_not_started(
    exit_status: int, failure: Unavailable | None
) -> None:
    """Its node is lost, or its process ends at once. The heartbeats go on; nobody waits for a TaskManager there."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.fails_to_launch = failure
        master.launches.clear()
        async with serving(master) as (containers, ends), asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(_start_error(containers), name="start")
            await until(lambda: containers.running() != ())
            master.complete(containers.running()[0], exit_status, "the node is lost")
            await until(lambda: containers.running() == ())
            master.launches.set()
            reason = f"was not started: its container on node:1 has ended with exit status {exit_status}: the node"
            assert reason in await starting
            assert ends.empty(), "of a worker that nobody knows"
            assert master.given_back == []
            master.fails_to_launch = None
            await started(containers)

    run(scenario)


def test_a_release_during_a_launch_that_fails_does_not_wait_for_yarn() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.launches.clear()
        master.fails_to_launch = Unavailable("connection refused")
        master.ignores_stops = True
        async with serving(master) as (containers, _), asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(_start_error(containers), name="start")
            await until(lambda: containers.running() != ())
            releasing = tasks.create_task(containers.release(containers.running()[0]), name="release")
            await until(lambda: master.stops == 1)
            master.launches.set()
            assert "cannot be started on node:1: connection refused" in await starting
            await releasing

    run(scenario)


async def _start_error(containers: YarnContainers) -> str:
    with pytest.raises(Unavailable) as raised:
        await containers.start()
    return raised.value.public


@pytest.mark.parametrize("written_off", [ABORTED, PREEMPTED])
def test_a_container_that_yarn_has_only_written_off_is_silent_not_dead(written_off: int) -> None:
    """Its process may run on: nobody may start its tasks elsewhere because of that."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, ends):
            lost, killed = await started(containers), await started(containers)
            master.complete(lost, written_off, "Container released on a *lost* node")
            master.complete(killed, 137)
            ended = await ends.get()
            assert ended == WorkerEnded(killed, "its container on node:1 has ended with exit status 137")
            assert ends.empty()
            assert containers.running() == ()
            await containers.release(lost)  # YARN does not know it any more: nothing to wait for

    run(scenario)


def test_containers_of_an_earlier_attempt_are_taken_over_and_can_be_released() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster([EARLIER])
        async with serving(master) as (containers, ends):
            assert containers.running() == (EARLIER.id,)
            await containers.release(TaskManagerId(EARLIER.id))
            assert master.running == {}
            assert ends.empty()

    run(scenario)


def test_a_container_of_an_earlier_attempt_whose_node_reports_it_late_is_taken_over() -> None:
    """Its TaskManager may never register: somebody has to wait for that, and to release it."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, _), yarn_workers(containers, slots=1) as driver:
            assert await driver.taken_over() == ()
            master.recover(EARLIER)
            async with asyncio.timeout(10):
                assert await driver.found() == EARLIER.id
            await driver.release(TaskManagerId(EARLIER.id))
            assert master.running == {}

    run(scenario)


def test_what_concerns_containers_of_an_earlier_attempt_waits_for_the_registration() -> None:
    """A term may begin before it."""

    async def scenario() -> None:
        master = FakeApplicationMaster([EARLIER])
        containers = unregistered(master)
        async with yarn_workers(containers, slots=1) as driver, asyncio.TaskGroup() as tasks:
            found = tasks.create_task(driver.taken_over())
            released = tasks.create_task(driver.release(TaskManagerId(EARLIER.id)))
            await asyncio.sleep(0.05)
            assert not found.done()
            assert not released.done()
            await containers.register("host", 1, "http://host:1")
            assert await found == (EARLIER.id,)
            heartbeats = tasks.create_task(containers.run())
            await released
            assert master.running == {}
            heartbeats.cancel()

    run(scenario)


def test_a_container_whose_node_does_not_answer_is_given_back() -> None:
    """Nothing was ever started in it, if the attempt before died right after it was allocated."""

    async def scenario() -> None:
        master = FakeApplicationMaster([EARLIER])
        master.fails_to_stop = Unavailable("container is not handled by this NodeManager")
        async with serving(master) as (containers, ends):
            await containers.release(TaskManagerId(EARLIER.id))
            assert master.given_back == [EARLIER.id]
            assert ends.empty()

    run(scenario)


def test_the_end_of_a_container_that_is_not_known_is_ignored() -> None:
    """YARN reports containers of an earlier attempt that ended before this one."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, ends):
            master.complete("container_1_0001_01_000099", 1)
            worker = await started(containers)
            master.complete(worker, 1, "out of memory")
            assert (await ends.get()).reason.endswith("exit status 1: out of memory")

    run(scenario)


def test_an_attempt_that_yarn_has_replaced_ends() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.shut_down = True
        with pytest.raises(ExceptionGroup) as raised:
            await _serve_for_ever(master)
        assert raised.group_contains(Unavailable, match="YARN has ended this attempt")

    run(scenario)


def test_a_request_that_yarn_can_never_serve_ends_the_process_with_the_reason() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.fails_to_allocate = Refused("requested memory > max configured of the queue")
        with pytest.raises(ExceptionGroup) as raised:
            await _serve_for_ever(master)
        assert raised.group_contains(Refused, match="max configured of the queue")

    run(scenario)


def test_a_container_whose_end_is_not_confirmed_does_not_keep_the_cluster_from_shutting_down() -> None:
    """YARN ends it when the application unregisters. One that is released while the cluster runs is tried again."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, _), yarn_workers(containers, slots=1) as driver:
            worker = await started(driver)
            master.ignores_stops = True
            with pytest.raises(Unavailable, match="YARN does not confirm the end of container"):
                await driver.release(worker)
            await driver.release_all()
            assert containers.running() == (worker,)

    run(scenario)


async def _serve_for_ever(master: FakeApplicationMaster) -> None:
    async with serving(master):
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("exit_status", "excluded"),
    [
        *((status, True) for status in (1, 137, -1000, -101)),
        *((status, False) for status in (0, -104, ABORTED, PREEMPTED)),
    ],
)
def test_a_node_on_which_containers_fail_again_and_again_gets_no_others(exit_status: int, excluded: bool) -> None:
    """Not if a container had to end for another reason than its node: memory, preemption, a release."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.nodes = 4
        async with serving(master) as (containers, _):
            for _ in range(2):
                worker = await started(containers)
                master.complete(worker, exit_status)
                await until(lambda: containers.running() == ())
            await started(containers)  # a heartbeat later
            assert master.excluded == (frozenset({"node"}) if excluded else frozenset())

    run(scenario)


def test_nodes_that_yarn_cannot_be_told_to_exclude_get_containers_as_before() -> None:
    """Neither the heartbeats nor the JobManager end, and the next change is tried again."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.nodes = 2
        master.fails_to_exclude = Refused("Cannot add * to the blacklist")
        with capture_logs() as logs:
            async with serving(master) as (containers, _):
                for _ in range(3):
                    worker = await started(containers)
                    master.complete(worker, 1)
                    await until(lambda: containers.running() == ())
                await started(containers)
                assert master.excluded == frozenset()
                master.nodes, master.fails_to_exclude = 1, None  # then no node may be excluded: a change
                await until(lambda: "yarn-nodes-excluded" in [line["event"] for line in logs])
        (refused,) = [line for line in logs if line["event"] == "yarn-nodes-not-excluded"]
        assert (refused["nodes"], refused["reason"]) == (["node"], "Cannot add * to the blacklist")

    run(scenario)


def test_a_heartbeat_that_is_not_answered_for_a_while_is_the_only_thing_that_waits() -> None:
    """The ResourceManager of YARN is restarted: what runs runs on, and is released; requests are served afterwards."""

    async def scenario() -> None:
        master = FakeApplicationMaster()
        async with serving(master) as (containers, ends), asyncio.TaskGroup() as tasks:
            first, second = await started(containers), await started(containers)
            master.resource_manager_answers.clear()
            requested = tasks.create_task(containers.start(), name="start")
            released = tasks.create_task(containers.release(first), name="release")
            await until(lambda: first not in master.running)
            assert not requested.done()

            master.resource_manager_answers.set()
            await released
            third = await requested
            assert third is not None
            assert (containers.running(), master.requested, master.given_back) == ((second, third), 0, [])
            assert ends.empty()

    run(scenario)


def test_a_node_that_starts_no_container_gets_no_others() -> None:
    async def scenario() -> None:
        master = FakeApplicationMaster()
        master.nodes = 2
        master.fails_to_launch = Unavailable("connection refused")
        async with serving(master) as (containers, _):
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await started(containers)
            await until(lambda: master.excluded == frozenset({"node"}))

    run(scenario)
