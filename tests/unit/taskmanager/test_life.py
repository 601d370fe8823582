"""Attempts on one engine, from admission to the last trace of them: cancels, lost sessions, publications."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.taskmanager.orders import attempt_id, failed, order
from tests.unit.taskmanager.stage import Stage, until

from flintlock.model.commands import CancelTask
from flintlock.model.errors import Corrupt, FlintlockError, JobFailed, NotFound, Unavailable
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
PUBLISH = PublishFiles(attempt=A, sinks=(SinkFiles(step=StepName("out"), target="out", staging="out/.s"),))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "log")


def now_s() -> float:
    return asyncio.get_running_loop().time()


def why(news: TaskNews) -> tuple[FailureKind, str]:
    assert isinstance(news, TaskFailed)
    return news.failure.kind, news.failure.message


@virtual_time
async def test_an_obeyed_cancel_ends_within_moments(stage: Stage) -> None:
    """The runner is asked to stop, and CANCELED is told once it is gone and its session released."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=10))
        runner = await stage.runner(A)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: stage.news(A) == [TaskCanceled()])

        assert runner.interrupted
        assert now_s() - asked_s < 1
        assert stage.story[-3:] == ["kill 0", "release 0: True", "report 0: TaskCanceled"]


@virtual_time
async def test_a_runner_that_does_not_obey_is_killed_after_the_timeout(stage: Stage) -> None:
    """It has as long as its order says, and not longer."""
    stage.obedient = False
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, cancel_timeout_s=10))
        runner = await stage.runner(A)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await asyncio.sleep(9.9)
        assert runner.interrupted
        assert not runner.killed
        assert stage.news(A) == []
        await until(lambda: stage.news(A) == [TaskCanceled()])

        assert now_s() - asked_s == pytest.approx(10, abs=0.5)
        assert stage.story[-3:] == ["kill 0", "release 0: True", "report 0: TaskCanceled"]


@virtual_time
async def test_the_result_of_a_cancelled_attempt_does_not_count(stage: Stage) -> None:
    """It said that it finished, after it was told to stop: it is CANCELED."""
    stage.obedient = False
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        runner = await stage.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        runner.say(TaskFinished())
        await until(lambda: bool(stage.news(A)))
        await asyncio.sleep(20)

    assert stage.news(A) == [TaskCanceled()]


@virtual_time
async def test_a_cancel_does_not_wait_for_artifacts(stage: Stage) -> None:
    """What is still being fetched is given up; no runner is taken."""
    stage.fetch_s = 600
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, artifacts=("lib.zip",)))
        await asyncio.sleep(1)
        asked_s = now_s()
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: stage.news(A) == [TaskCanceled()])

        assert now_s() - asked_s < 1
        assert stage.runners == {}


@virtual_time
async def test_a_cancel_right_after_the_deployment_starts_nothing(stage: Stage) -> None:
    """Not even the artifacts are fetched."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, artifacts=("lib.zip",)))
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: stage.news(A) == [TaskCanceled()])

        assert stage.runners == {}


@virtual_time
async def test_a_runner_that_comes_too_late_is_not_used(stage: Stage) -> None:
    """Cancelled while its runner was being started, an attempt never runs, and the runner is killed."""
    stage.take_s = 5
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await asyncio.sleep(1)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: stage.news(A) == [TaskCanceled()])

        assert stage.runners[A].killed
        assert "run 0" not in stage.story


@virtual_time
async def test_slots_are_free_once_the_attempt_has_ended(stage: Stage) -> None:
    """The next attempt gets the slots of one that failed."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0, 1))
        (await stage.runner(A)).say(TaskRunning(), failed("boom"))
        await until(lambda: len(stage.news(A)) == 2)
        await task_manager.deploy(order(B, 0, 1))
        await stage.runner(B)

    assert stage.news(A) == [TaskRunning(), failed("boom")]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (NotFound("no blob x"), FailureKind.MISSING_ARTIFACT, "the artifact 'lib.zip' is gone: no blob x"),
        (
            Corrupt("blob x is another"),
            FailureKind.MISSING_ARTIFACT,
            "the artifact 'lib.zip' is damaged: blob x is another",
        ),
        (Unavailable("nobody there"), FailureKind.RUNNER_LOST, "nobody there"),
    ],
)
def test_artifacts_that_cannot_be_fetched_fail_the_attempt(
    stage: Stage, error: FlintlockError, kind: FailureKind, message: str
) -> None:
    """One that is gone or damaged can never work; one that cannot be reached may be there at the next try."""

    @virtual_time
    async def play() -> None:
        stage.blobs[BlobKey("blob-of-lib.zip")] = error
        async with stage.playing() as task_manager:
            await task_manager.deploy(order(A, artifacts=("lib.zip",)))
            await until(lambda: bool(stage.news(A)))

        assert [why(news) for news in stage.news(A)] == [(kind, message)]

    play()


@virtual_time
async def test_a_disk_that_cannot_be_written_fails_the_attempt_only(stage: Stage, tmp_path: Path) -> None:
    """The TaskManager, and whoever else runs on it, goes on."""
    (tmp_path / "log").write_text("a file where the directory should be")
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await until(lambda: bool(stage.news(A)))
        (tmp_path / "log").unlink()
        await task_manager.deploy(order(B))
        await stage.runner(B)

        (news,) = stage.news(A)
        assert why(news)[0] is FailureKind.RUNNER_LOST
        assert len(stage.engines) == 1


@virtual_time
async def test_a_session_that_cannot_be_released_condemns_the_engine(stage: Stage) -> None:
    """Its engine is restarted, and only then its end is told; what else ran there fails with that cause."""
    async with stage.playing() as task_manager:
        stage.engine.release = lambda: False
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(A)
        await stage.runner(B)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: len(stage.resource_manager.registered) == 2)

        assert stage.news(A) == [TaskCanceled()]
        assert why(stage.news(B)[-1]) == (
            FailureKind.ENGINE_LOST,
            f"the Spark engine died: the Spark session of attempt {A} could not be ended",
        )
        assert stage.story.index("engine gone") < stage.story.index("report 0: TaskCanceled")
        assert stage.story.index("engine gone") < stage.story.index("report 1: TaskFailed")
        assert len(stage.engines) == 2


@pytest.mark.parametrize("trouble", ["hangs", "raises"])
def test_an_engine_that_does_not_answer_is_condemned_too(stage: Stage, trouble: str) -> None:
    """Whether it hangs or raises, nothing about the session is certain."""

    @virtual_time
    async def play() -> None:
        async with stage.playing() as task_manager:
            if trouble == "hangs":
                stage.engine.release_s = 3600
            else:
                stage.engine.release = lambda: Unavailable("no answer")
            await task_manager.deploy(order(A))
            (await stage.runner(A)).say(failed("boom"))
            await until(lambda: len(stage.engines) == 2)

            assert stage.news(A) == [failed("boom")]

    play()


@virtual_time
async def test_a_finished_attempt_is_told_at_once_though_its_session_is_stuck(stage: Stage) -> None:
    """Its result is its own word; the engine is restarted all the same."""
    async with stage.playing() as task_manager:
        stage.engine.release = lambda: False
        await task_manager.deploy(order(A))
        (await stage.runner(A)).say(TaskFinished())
        await until(lambda: len(stage.engines) == 2)

    assert stage.story.index("report 0: TaskFinished") < stage.story.index("release 0: False")
    assert stage.news(A) == [TaskFinished()]


@virtual_time
async def test_the_engines_own_cause_beats_the_lost_session(stage: Stage) -> None:
    """A session cannot be ended because the engine is dying: what it dies of is what users read."""
    async with stage.playing() as task_manager:
        stage.engine.release = lambda: Unavailable("connection refused")
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(B)
        (await stage.runner(A)).say(failed("boom"))
        await asyncio.sleep(1)
        stage.engine.die("java.lang.OutOfMemoryError: Java heap space")
        await until(lambda: bool(stage.news(B)))

        assert why(stage.news(B)[-1]) == (
            FailureKind.ENGINE_LOST,
            "the Spark engine died: java.lang.OutOfMemoryError: Java heap space",
        )


@virtual_time
async def test_a_runner_that_lost_its_connection_waits_for_the_engines_cause(stage: Stage) -> None:
    """The death of the engine is heard by its runners first; the cause follows."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        (await stage.runner(A)).say(failed("connection lost", FailureKind.ENGINE_LOST))
        await asyncio.sleep(1)
        stage.engine.die("exit code 137")
        await until(lambda: bool(stage.news(A)))

    assert why(stage.news(A)[-1]) == (FailureKind.ENGINE_LOST, "the Spark engine died: exit code 137")


@virtual_time
async def test_a_lost_connection_to_a_living_engine_is_told_as_it_is(stage: Stage) -> None:
    """The engine does not die of one runner's lost connection."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        (await stage.runner(A)).say(failed("connection lost", FailureKind.ENGINE_LOST))
        await until(lambda: bool(stage.news(A)))

        assert stage.news(A) == [failed("connection lost", FailureKind.ENGINE_LOST)]
        assert len(stage.engines) == 1


@virtual_time
async def test_an_engine_that_dies_while_a_cancelled_attempt_is_cleared_away(stage: Stage) -> None:
    """The attempt is told to have ended, once, as CANCELED."""
    async with stage.playing() as task_manager:
        stage.engine.release_s = 10
        await task_manager.deploy(order(A))
        await stage.runner(A)
        await task_manager.command(CancelTask(attempt=A))
        await until(lambda: "kill 0" in stage.story)
        stage.engine.die("exit code 137")
        await until(lambda: len(stage.resource_manager.registered) == 2)

        assert stage.news(A) == [TaskCanceled()]


@virtual_time
async def test_an_engine_that_dies_right_after_a_deployment_fails_it(stage: Stage) -> None:
    """However early it is: nobody waits for an attempt that never began."""
    async with stage.playing() as task_manager:
        stage.take_s = 3600
        await task_manager.deploy(order(A))
        stage.engine.die("exit code 137")
        await until(lambda: bool(stage.news(A)))

        assert why(stage.news(A)[-1])[0] is FailureKind.ENGINE_LOST


@virtual_time
async def test_a_publication_is_reported_step_by_step(stage: Stage) -> None:
    """Asked for twice while it is under way, it is done once."""
    async with stage.playing() as task_manager:
        await task_manager.publish(PUBLISH)
        await task_manager.publish(PUBLISH)
        for step in (FilesPublished(done=1, total=2), FilesPublished(done=2, total=2, complete=True)):
            stage.engine.moves.put_nowait(step)
            await until(lambda step=step: step in stage.news(A))

        assert stage.engine.published == [PUBLISH.sinks]


@virtual_time
async def test_a_publication_that_failed_may_be_asked_for_again(stage: Stage) -> None:
    """The reason is reported; the next try goes on where the first one stopped."""
    async with stage.playing() as task_manager:
        await task_manager.publish(PUBLISH)
        stage.engine.moves.put_nowait(JobFailed("out/part-0 cannot be moved: disk full"))
        await until(lambda: stage.news(A) == [PublicationFailed(reason="out/part-0 cannot be moved: disk full")])
        await task_manager.publish(PUBLISH)
        stage.engine.moves.put_nowait(FilesPublished(done=1, total=1, complete=True))
        await until(lambda: stage.news(A)[-1] == FilesPublished(done=1, total=1, complete=True))


@virtual_time
async def test_a_publication_ends_with_its_engine(stage: Stage) -> None:
    """It is reported failed with the cause, so that it is asked for again, and nothing hangs."""
    async with stage.playing() as task_manager:
        await task_manager.publish(PUBLISH)
        await until(lambda: bool(stage.engine.published))
        stage.engine.die("exit code 137")
        await until(lambda: len(stage.engines) == 2)

        assert stage.news(A) == [PublicationFailed(reason="the Spark engine died: exit code 137")]
