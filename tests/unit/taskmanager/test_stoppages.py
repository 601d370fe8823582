"""Processes that are stopped: noticed, killed, and told as the cause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.taskmanager.orders import attempt_id, order
from tests.unit.taskmanager.stage import ENGINE, JVM, PIDS_OF_RUNNERS, TEMPLATE, Stage, until
from tests.unit.taskmanager.test_life import PUBLISH, why

from flintlock.model.commands import CancelTask
from flintlock.model.errors import Unavailable
from flintlock.model.tasks import FailureKind, PublicationFailed, TaskCanceled
from flintlock.taskmanager.stopped_processes import STRIKES, StoppedProcessDetector
from flintlock.testing.virtual_time import virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "log")


def test_only_looks_in_a_row_count() -> None:
    """One that went on in between starts anew; others have no part in it."""
    detector = StoppedProcessDetector()
    for _ in range(STRIKES - 1):
        assert detector.observe({1: True, 2: False}) == frozenset()
    assert detector.observe({1: False, 2: True}) == frozenset()
    for _ in range(STRIKES - 2):
        detector.observe({1: True, 2: True})

    assert detector.observe({1: True, 2: True}) == frozenset({2})
    assert detector.observe({1: True}) == frozenset({1})


@virtual_time
async def test_a_stopped_runner_fails_its_task_and_no_other(stage: Stage) -> None:
    """After some seconds, with that cause, once it is gone and its session released."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(A)
        await stage.runner(B)
        stage.processes.stopped.add(PIDS_OF_RUNNERS)
        stopped_s = asyncio.get_running_loop().time()
        await until(lambda: bool(stage.news(A)))

        kind, message = why(stage.news(A)[-1])
        assert (kind, "was stopped" in message) == (FailureKind.RUNNER_LOST, True)
        assert asyncio.get_running_loop().time() - stopped_s == pytest.approx(STRIKES, abs=1.1)
        assert stage.story[-3:] == ["kill 0", "release 0: True", "report 0: TaskFailed"]
        await asyncio.sleep(30)
        assert stage.news(B) == []
        assert len(stage.engines) == 1


@virtual_time
async def test_a_short_stop_costs_nothing(stage: Stage) -> None:
    """Somebody looked at it with a debugger, or the whole machine was held up."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        for _ in range(5):
            stage.processes.stopped = {PIDS_OF_RUNNERS, ENGINE, JVM, TEMPLATE}
            await asyncio.sleep(STRIKES - 2)
            stage.processes.stopped = set()
            await asyncio.sleep(2)

        assert stage.news(A) == []
        assert not [told for told in stage.story if told.startswith("SIGKILL")]


@pytest.mark.parametrize("pid", [ENGINE, JVM])
def test_a_stopped_engine_is_restarted(stage: Stage, pid: int) -> None:
    """Its tasks fail as lost with the engine, for that reason, and the next engine serves."""

    @virtual_time
    async def play() -> None:
        async with stage.playing() as task_manager:
            await task_manager.deploy(order(A))
            await stage.runner(A)
            stage.processes.stopped.add(pid)
            await until(lambda: f"SIGKILL {pid}" in stage.story)
            stage.engine.die("killed by SIGKILL")
            await until(lambda: len(stage.engines) == 2)

            kind, message = why(stage.news(A)[-1])
            assert (kind, f"process {pid} was stopped" in message) == (FailureKind.ENGINE_LOST, True)

    play()


@virtual_time
async def test_a_stopped_template_costs_the_runners_that_run(stage: Stage) -> None:
    """Without it they can neither be ended nor reaped."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.processes.stopped.add(TEMPLATE)
        await until(lambda: bool(stage.news(A)))

        kind, message = why(stage.news(A)[-1])
        assert (kind, "template" in message) == (FailureKind.RUNNER_LOST, True)
        assert f"SIGKILL {TEMPLATE}" in stage.story


@virtual_time
async def test_a_cancelled_attempt_that_is_stopped_stays_cancelled(stage: Stage) -> None:
    """It is killed sooner than its patience would say."""
    stage.obedient = False
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=600))
        await stage.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        stage.processes.stopped.add(PIDS_OF_RUNNERS)
        await until(lambda: stage.news(A) == [TaskCanceled()], limit_s=20)


@virtual_time
async def test_nothing_is_looked_at_while_nothing_runs(stage: Stage) -> None:
    """Not before the first task, and not after the last; a publication is work too."""
    async with stage.playing() as task_manager:
        await asyncio.sleep(60)
        assert stage.processes.looks == 0
        await task_manager.publish(PUBLISH)
        await asyncio.sleep(3)
        assert stage.processes.looks > 0
        stage.engine.moves.put_nowait(Unavailable("no disk"))
        await until(lambda: bool(stage.news(A)))
        await asyncio.sleep(2)
        looks = stage.processes.looks
        await asyncio.sleep(60)

        assert stage.news(A) == [PublicationFailed(reason="no disk")]
        assert stage.processes.looks == looks
