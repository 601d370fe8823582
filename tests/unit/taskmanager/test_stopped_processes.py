"""Stopped processes are noticed, killed, and reported as the cause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.taskmanager.harness import ENGINE, FIRST_RUNNER_PID, JVM, TEMPLATE, TaskManagerHarness, until
from tests.unit.taskmanager.orders import attempt_id, order
from tests.unit.taskmanager.test_engine_session import PUBLISH, why

from flintlock.model.commands import CancelTask
from flintlock.model.errors import Unavailable
from flintlock.model.tasks import FailureKind, PublicationFailed, TaskCanceled
from flintlock.taskmanager.stopped_processes import STRIKES, StoppedProcessDetector
from flintlock.testing.virtual_time import virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)


@pytest.fixture
def harness(tmp_path: Path) -> TaskManagerHarness:
    return TaskManagerHarness(tmp_path / "log")


def test_only_consecutive_observations_count() -> None:
    """The count starts again for a process that has run in between; each process has its own."""
    detector = StoppedProcessDetector()
    for _ in range(STRIKES - 1):
        assert detector.observe({1: True, 2: False}) == frozenset()
    assert detector.observe({1: False, 2: True}) == frozenset()
    for _ in range(STRIKES - 2):
        detector.observe({1: True, 2: True})

    assert detector.observe({1: True, 2: True}) == frozenset({2})
    assert detector.observe({1: True}) == frozenset({1})


@virtual_time
async def test_a_stopped_runner_fails_its_task_and_no_other(harness: TaskManagerHarness) -> None:
    """After some seconds, with that cause, once it is gone and its session released."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(A)
        await harness.runner(B)
        harness.processes.stopped.add(FIRST_RUNNER_PID)
        stopped_s = asyncio.get_running_loop().time()
        await until(lambda: bool(harness.news(A)))

        kind, message = why(harness.news(A)[-1])
        assert (kind, "was stopped" in message) == (FailureKind.RUNNER_LOST, True)
        assert asyncio.get_running_loop().time() - stopped_s == pytest.approx(STRIKES, abs=1.1)
        assert harness.events[-3:] == ["kill 0", "release 0: True", "report 0: TaskFailed"]
        await asyncio.sleep(30)
        assert harness.news(B) == []
        assert len(harness.engines) == 1


@virtual_time
async def test_a_short_stop_costs_nothing(harness: TaskManagerHarness) -> None:
    """As by a debugger, or while the whole machine was suspended."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        for _ in range(5):
            harness.processes.stopped = {FIRST_RUNNER_PID, ENGINE, JVM, TEMPLATE}
            await asyncio.sleep(STRIKES - 2)
            harness.processes.stopped = set()
            await asyncio.sleep(2)

        assert harness.news(A) == []
        assert not [event for event in harness.events if event.startswith("SIGKILL")]


@pytest.mark.parametrize("pid", [ENGINE, JVM])
def test_a_stopped_engine_is_restarted(harness: TaskManagerHarness, pid: int) -> None:
    """Its tasks fail as lost with the engine, with that reason, and the next engine takes over."""

    @virtual_time
    async def run_scenario() -> None:
        async with harness.running() as task_manager:
            await task_manager.deploy(order(A))
            await harness.runner(A)
            harness.processes.stopped.add(pid)
            await until(lambda: f"SIGKILL {pid}" in harness.events)
            harness.engine.die("killed by SIGKILL")
            await until(lambda: len(harness.engines) == 2)

            kind, message = why(harness.news(A)[-1])
            assert (kind, f"process {pid} was stopped" in message) == (FailureKind.ENGINE_LOST, True)

    run_scenario()


@virtual_time
async def test_a_stopped_template_costs_the_runners_that_run(harness: TaskManagerHarness) -> None:
    """Without it they can neither be ended nor reaped."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.processes.stopped.add(TEMPLATE)
        await until(lambda: bool(harness.news(A)))

        kind, message = why(harness.news(A)[-1])
        assert (kind, "template" in message) == (FailureKind.RUNNER_LOST, True)
        assert f"SIGKILL {TEMPLATE}" in harness.events


@virtual_time
async def test_a_cancelled_attempt_that_is_stopped_stays_cancelled(harness: TaskManagerHarness) -> None:
    """It is killed before its cancel timeout."""
    harness.stops_on_interrupt = False
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=600))
        await harness.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        harness.processes.stopped.add(FIRST_RUNNER_PID)
        await until(lambda: harness.news(A) == [TaskCanceled()], limit_s=20)


@virtual_time
async def test_nothing_is_observed_while_nothing_runs(harness: TaskManagerHarness) -> None:
    """Not before the first task, and not after the last; a publication is work too."""
    async with harness.running() as task_manager:
        await asyncio.sleep(60)
        assert harness.processes.observations == 0
        await task_manager.publish(PUBLISH)
        await asyncio.sleep(3)
        assert harness.processes.observations > 0
        harness.engine.moves.put_nowait(Unavailable("no disk"))
        await until(lambda: bool(harness.news(A)))
        await asyncio.sleep(2)
        before = harness.processes.observations
        await asyncio.sleep(60)

        assert harness.news(A) == [PublicationFailed(reason="no disk")]
        assert harness.processes.observations == before
