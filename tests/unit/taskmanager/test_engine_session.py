"""Attempts on one engine, from admission until they are torn down: cancels, lost sessions, publications."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.taskmanager.harness import TaskManagerHarness, until
from tests.unit.taskmanager.orders import attempt_id, failed, order

from flintlock.model.commands import CancelTask, CommandAccepted, PingTask
from flintlock.model.errors import Conflict, Corrupt, FlintlockError, JobFailed, NotFound, Unavailable
from flintlock.model.files.staging import staging_directory
from flintlock.model.ids import BlobKey, StepName
from flintlock.model.tasks import (
    FailureKind,
    FilesPublished,
    PublicationFailed,
    PublishFiles,
    SinkFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskRunning,
)
from flintlock.testing.virtual_time import virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)
PUBLISH = PublishFiles(
    attempt=A, sinks=(SinkFiles(step=StepName("out"), target="out", staging=staging_directory("out", A)),)
)


@pytest.fixture
def harness(tmp_path: Path) -> TaskManagerHarness:
    return TaskManagerHarness(tmp_path / "log")


def now_s() -> float:
    return asyncio.get_running_loop().time()


def why(news: TaskNews) -> tuple[FailureKind, str]:
    assert isinstance(news, TaskFailed)
    return news.failure.kind, news.failure.message


@virtual_time
async def test_a_cancel_ends_as_soon_as_the_runner_stops(harness: TaskManagerHarness) -> None:
    """The runner is interrupted, and CANCELED is reported once it is gone and its session released."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=10))
        runner = await harness.runner(A)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: harness.news(A) == [TaskCanceled()])

        assert runner.interrupted
        assert now_s() - asked_s < 1
        assert harness.events[-3:] == ["kill 0", "release 0: True", "report 0: TaskCanceled"]


@virtual_time
async def test_a_runner_that_does_not_stop_is_killed_after_the_timeout(harness: TaskManagerHarness) -> None:
    """After the timeout of its deployment, not later."""
    harness.stops_on_interrupt = False
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=10))
        runner = await harness.runner(A)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await asyncio.sleep(9.9)
        assert runner.interrupted
        assert not runner.killed
        assert harness.news(A) == []
        await until(lambda: harness.news(A) == [TaskCanceled()])

        assert now_s() - asked_s == pytest.approx(10, abs=0.5)
        assert harness.events[-3:] == ["kill 0", "release 0: True", "report 0: TaskCanceled"]


@virtual_time
async def test_the_result_of_a_cancelled_attempt_does_not_count(harness: TaskManagerHarness) -> None:
    """It finished after it was interrupted: it is CANCELED."""
    harness.stops_on_interrupt = False
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        runner = await harness.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        runner.send(TaskFinished())
        await until(lambda: bool(harness.news(A)))
        await asyncio.sleep(20)

    assert harness.news(A) == [TaskCanceled()]


@virtual_time
async def test_a_cancel_does_not_wait_for_artifacts(harness: TaskManagerHarness) -> None:
    """What is still being fetched is abandoned; no runner is taken."""
    harness.fetch_s = 600
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, artifacts=("lib.zip",)))
        await asyncio.sleep(1)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: harness.news(A) == [TaskCanceled()])

        assert now_s() - asked_s < 1
        assert harness.runners == {}


@virtual_time
async def test_a_cancel_right_after_the_deployment_starts_nothing(harness: TaskManagerHarness) -> None:
    """Not even the artifacts are fetched."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, artifacts=("lib.zip",)))
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: harness.news(A) == [TaskCanceled()])

        assert harness.runners == {}


@virtual_time
async def test_a_runner_that_comes_too_late_is_not_used(harness: TaskManagerHarness) -> None:
    """Cancelled while its runner was being started, an attempt never runs, and the runner is killed."""
    harness.take_s = 5
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await asyncio.sleep(1)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: harness.news(A) == [TaskCanceled()])

        assert harness.runners[A].killed
        assert "run 0" not in harness.events


@virtual_time
async def test_slots_are_free_once_the_attempt_has_ended(harness: TaskManagerHarness) -> None:
    """The next attempt gets the slots of one that failed."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0, 1))
        (await harness.runner(A)).send(TaskRunning(), failed("boom"))
        await until(lambda: len(harness.news(A)) == 2)
        await task_manager.deploy(order(B, 0, 1))
        await harness.runner(B)

    assert harness.news(A) == [TaskRunning(), failed("boom")]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (NotFound("no blob x"), FailureKind.MISSING_ARTIFACT, "the artifact 'lib.zip' is gone: no blob x"),
        (
            Corrupt("blob x is another"),
            FailureKind.MISSING_ARTIFACT,
            "the artifact 'lib.zip' is damaged: blob x is another",
        ),
        (Unavailable("no answer"), FailureKind.RUNNER_LOST, "no answer"),
    ],
)
def test_artifacts_that_cannot_be_fetched_fail_the_attempt(
    harness: TaskManagerHarness, error: FlintlockError, kind: FailureKind, message: str
) -> None:
    """A missing or damaged one can never work; an unreachable one may be available at the next attempt."""

    @virtual_time
    async def run_scenario() -> None:
        harness.blobs[BlobKey("blob-of-lib.zip")] = error
        async with harness.running() as task_manager:
            await task_manager.deploy(order(A, artifacts=("lib.zip",)))
            await until(lambda: bool(harness.news(A)))

        assert [why(news) for news in harness.news(A)] == [(kind, message)]

    run_scenario()


@virtual_time
async def test_a_disk_that_cannot_be_written_fails_the_attempt_only(
    harness: TaskManagerHarness, tmp_path: Path
) -> None:
    """The TaskManager and its other attempts continue."""
    (tmp_path / "log").write_text("a file where the directory should be")
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await until(lambda: bool(harness.news(A)))
        (tmp_path / "log").unlink()
        await task_manager.deploy(order(B))
        await harness.runner(B)

        (news,) = harness.news(A)
        assert why(news)[0] is FailureKind.RUNNER_LOST
        assert len(harness.engines) == 1


@virtual_time
async def test_a_session_that_cannot_be_released_restarts_the_engine(harness: TaskManagerHarness) -> None:
    """Its engine is restarted, and only then its end is reported; other attempts there fail with that cause."""
    async with harness.running() as task_manager:
        harness.engine.release = lambda: False
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(A)
        await harness.runner(B)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: len(harness.resource_manager.registered) == 2)

        assert harness.news(A) == [TaskCanceled()]
        assert why(harness.news(B)[-1]) == (
            FailureKind.ENGINE_LOST,
            f"the Spark engine died: the Spark session of attempt {A} could not be ended",
        )
        assert harness.events.index("engine gone") < harness.events.index("report 0: TaskCanceled")
        assert harness.events.index("engine gone") < harness.events.index("report 1: TaskFailed")
        assert len(harness.engines) == 2


@pytest.mark.parametrize("trouble", ["hangs", "raises"])
def test_an_engine_that_does_not_answer_is_restarted_too(harness: TaskManagerHarness, trouble: str) -> None:
    """Whether it hangs or raises, nothing about the session is certain."""

    @virtual_time
    async def run_scenario() -> None:
        async with harness.running() as task_manager:
            if trouble == "hangs":
                harness.engine.release_s = 3600
            else:
                harness.engine.release = lambda: Unavailable("no answer")
            await task_manager.deploy(order(A))
            (await harness.runner(A)).send(failed("boom"))
            await until(lambda: len(harness.engines) == 2)

            assert harness.news(A) == [failed("boom")]

    run_scenario()


@virtual_time
async def test_a_finished_attempt_is_reported_although_its_session_is_stuck(harness: TaskManagerHarness) -> None:
    """Its result is complete; the engine is restarted anyway."""
    async with harness.running() as task_manager:
        harness.engine.release = lambda: False
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(TaskFinished())
        await until(lambda: len(harness.engines) == 2)

    assert harness.events.index("report 0: TaskFinished") < harness.events.index("release 0: False")
    assert harness.news(A) == [TaskFinished()]


@virtual_time
async def test_the_engines_own_cause_is_reported_instead_of_the_lost_session(harness: TaskManagerHarness) -> None:
    """A session cannot be ended because the engine is dying: users read the cause of its death."""
    async with harness.running() as task_manager:
        harness.engine.release = lambda: Unavailable("connection refused")
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(B)
        (await harness.runner(A)).send(failed("boom"))
        await asyncio.sleep(1)
        harness.engine.die("java.lang.OutOfMemoryError: Java heap space")
        await until(lambda: bool(harness.news(B)))

        assert why(harness.news(B)[-1]) == (
            FailureKind.ENGINE_LOST,
            "the Spark engine died: java.lang.OutOfMemoryError: Java heap space",
        )


@virtual_time
async def test_a_runner_that_lost_its_connection_waits_for_the_engines_cause(harness: TaskManagerHarness) -> None:
    """Runners notice the death of the engine first; the cause follows."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(failed("connection lost", FailureKind.ENGINE_LOST))
        await asyncio.sleep(1)
        harness.engine.die("exit code 137")
        await until(lambda: bool(harness.news(A)))

    assert why(harness.news(A)[-1]) == (FailureKind.ENGINE_LOST, "the Spark engine died: exit code 137")


@virtual_time
async def test_a_lost_connection_to_a_running_engine_is_reported_as_such(harness: TaskManagerHarness) -> None:
    """The engine does not die of one runner's lost connection."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(failed("connection lost", FailureKind.ENGINE_LOST))
        await until(lambda: bool(harness.news(A)))

        assert harness.news(A) == [failed("connection lost", FailureKind.ENGINE_LOST)]
        assert len(harness.engines) == 1


@virtual_time
async def test_an_engine_that_dies_while_a_cancelled_attempt_is_torn_down(harness: TaskManagerHarness) -> None:
    """The end of the attempt is reported once, as CANCELED."""
    async with harness.running() as task_manager:
        harness.engine.release_s = 10
        await task_manager.deploy(order(A))
        await harness.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: "kill 0" in harness.events)
        harness.engine.die("exit code 137")
        await until(lambda: len(harness.resource_manager.registered) == 2)

        assert harness.news(A) == [TaskCanceled()]


@virtual_time
async def test_an_engine_that_dies_right_after_a_deployment_fails_it(harness: TaskManagerHarness) -> None:
    """However early it is: an attempt that never began is reported."""
    async with harness.running() as task_manager:
        harness.take_s = 3600
        await task_manager.deploy(order(A))
        harness.engine.die("exit code 137")
        await until(lambda: bool(harness.news(A)))

        assert why(harness.news(A)[-1])[0] is FailureKind.ENGINE_LOST


@virtual_time
async def test_a_publication_is_reported_step_by_step(harness: TaskManagerHarness) -> None:
    """Requested twice while it is under way, it is done once."""
    async with harness.running() as task_manager:
        await task_manager.publish(PUBLISH)
        await task_manager.publish(PUBLISH)
        for step in (FilesPublished(done=1, total=2), FilesPublished(done=2, total=2, complete=True)):
            harness.engine.moves.put_nowait(step)
            await until(lambda step=step: step in harness.news(A))

        assert harness.engine.published == [PUBLISH.sinks]


@virtual_time
async def test_a_publication_that_failed_may_be_requested_again(harness: TaskManagerHarness) -> None:
    """The reason is reported; the next run continues where the first one stopped."""
    async with harness.running() as task_manager:
        await task_manager.publish(PUBLISH)
        harness.engine.moves.put_nowait(JobFailed("out/part-0 cannot be moved: disk full"))
        failed = PublicationFailed(reason="out/part-0 cannot be moved: disk full", stopped=True)
        await until(lambda: harness.news(A) == [failed])
        await task_manager.publish(PUBLISH)
        harness.engine.moves.put_nowait(FilesPublished(done=1, total=1, complete=True))
        await until(lambda: harness.news(A)[-1] == FilesPublished(done=1, total=1, complete=True))


@virtual_time
async def test_a_cancel_stops_a_publication_and_reports_nothing(harness: TaskManagerHarness) -> None:
    async with harness.running() as task_manager:
        await task_manager.publish(PUBLISH)
        await until(lambda: bool(harness.engine.published))
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: harness.engine.publications_left == 1)
        assert harness.news(A) == []

        await task_manager.publish(PUBLISH)
        await until(lambda: len(harness.engine.published) == 2)


@virtual_time
async def test_a_publication_that_is_stopped_before_it_begins_may_be_requested_again(
    harness: TaskManagerHarness,
) -> None:
    async with harness.running() as task_manager:
        await task_manager.publish(PUBLISH)
        await task_manager.command(CancelTask(attempt=A))
        await asyncio.sleep(1)
        assert harness.engine.published == []

        await task_manager.publish(PUBLISH)
        await until(lambda: harness.engine.published == [PUBLISH.sinks])


@virtual_time
async def test_a_publication_ends_with_its_engine(harness: TaskManagerHarness) -> None:
    """It is reported as failed with the cause, so that it is requested again, and nothing hangs."""
    async with harness.running() as task_manager:
        await task_manager.publish(PUBLISH)
        await until(lambda: bool(harness.engine.published))
        harness.engine.die("exit code 137")
        await until(lambda: len(harness.engines) == 2)

        assert harness.news(A) == [PublicationFailed(reason="the Spark engine died: exit code 137")]


@virtual_time
async def test_a_query_is_answered_by_the_runner_of_a_running_attempt(harness: TaskManagerHarness) -> None:
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        runner = await harness.runner(A)
        runner.send(TaskRunning())
        await until(lambda: harness.news(A) == [TaskRunning()])
        call = asyncio.get_running_loop().create_task(task_manager.command(PingTask(attempt=A)), name="query")
        await until(lambda: runner.queries == [PingTask(attempt=A)])
        assert not call.done()
        runner.answer.set_result(CommandAccepted())

        assert await call == CommandAccepted()


@virtual_time
async def test_a_query_for_an_attempt_that_does_not_run_is_refused(harness: TaskManagerHarness) -> None:
    """Unknown: NotFound. Starting, being cancelled or ended: never passed to a runner."""
    async with harness.running() as task_manager:
        with pytest.raises(NotFound, match="not on this TaskManager"):
            await task_manager.command(PingTask(attempt=B))
        await task_manager.deploy(order(A))
        runner = await harness.runner(A)
        with pytest.raises(Conflict, match="is STARTING"):
            await task_manager.command(PingTask(attempt=A))
        runner.send(TaskRunning())
        await until(lambda: harness.news(A) == [TaskRunning()])
        harness.stops_on_interrupt = False
        await task_manager.command(CancelTask(attempt=A))
        with pytest.raises(Conflict, match="is CANCELING"):
            await task_manager.command(PingTask(attempt=A))
        await until(lambda: harness.news(A)[-1] == TaskCanceled())
        with pytest.raises(NotFound, match="has ended"):
            await task_manager.command(PingTask(attempt=A))

        assert runner.queries == []


@virtual_time
@pytest.mark.parametrize("how", ["cancelled", "its lease ends"])
async def test_a_runner_that_cannot_be_killed_ends_the_taskmanager(harness: TaskManagerHarness, how: str) -> None:
    """It hangs in the kernel: its attempt would be CANCELING for ever, and its slots in use."""
    harness.stops_on_interrupt = harness.runners_die = False
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=5))
        await harness.runner(A)
        if how == "cancelled":
            await task_manager.command(CancelTask(attempt=A))
        else:
            harness.resource_manager.fail_with = Unavailable("no answer")
        await until(lambda: "kill 0" in harness.events)
        await asyncio.sleep(29)
        before = tuple(harness.aborts)
        await asyncio.sleep(2)
        harness.runners_die = True

        assert before == ()
        assert harness.aborts != []
        assert all(reason.startswith(f"the runner of attempt {A} (process 100)") for reason in harness.aborts)
