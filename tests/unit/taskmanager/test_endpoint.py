"""The TaskManager as a whole, on virtual time: engines die, leaders change, the TaskManager itself stops."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from tests.unit.taskmanager.orders import attempt_id, order
from tests.unit.taskmanager.stage import WARM_UP_S, Stage, until

from flintlock.model.commands import CancelTask
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Refused, Unavailable
from flintlock.model.ids import BlobKey, Epoch, FencingToken, TaskManagerId
from flintlock.model.slots import AttemptSlots
from flintlock.model.tasks import (
    FailureKind,
    LogQuery,
    RemoveFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskRunning,
)
from flintlock.taskmanager.endpoint import TokenGuard
from flintlock.taskmanager.lease import YIELD_PART
from flintlock.testing.virtual_time import virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "log")


def why(news: TaskNews) -> tuple[FailureKind, str]:
    assert isinstance(news, TaskFailed)
    return news.failure.kind, news.failure.message


def in_order(story: list[str], *events: str) -> bool:
    """Tell whether these happened, one after the other."""
    places = [story.index(event) for event in events]
    return places == sorted(places)


@virtual_time
async def test_slots_are_offered_once_the_engine_is_warm(stage: Stage) -> None:
    """The engine is warmed up before its slots are announced; from then on it reports what it runs."""
    async with stage.playing() as task_manager:
        (offer,) = stage.resource_manager.registered
        assert (offer.id, offer.instance, offer.slots) == ("tm", "life-1", 2)
        assert asyncio.get_running_loop().time() >= WARM_UP_S
        assert stage.guard.token == stage.resource_manager.token

        await task_manager.deploy(order(A))
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats + 1)

    assert {beat.instance for beat in stage.resource_manager.heartbeats} == {"life-1"}
    assert stage.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)


@virtual_time
async def test_an_attempt_runs_and_its_words_are_reported(stage: Stage, tmp_path: Path) -> None:
    """Running and result, each with the life that it happened in; its artifacts lie where it is told."""
    stage.blobs[BlobKey("blob-of-lib.zip")] = tmp_path / "lib"
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0, artifacts=("lib.zip",)))
        runner = await stage.runner(A)
        runner.say(TaskRunning(), TaskFinished())
        await until(lambda: "release 0: True" in stage.story)

        assert stage.news(A) == [TaskRunning(), TaskFinished()]
        assert {(report.task_manager, report.instance) for report in stage.job_masters.reports} == {("tm", "life-1")}
        assert runner.artifacts == {"lib.zip": str(tmp_path / "lib")}
        assert runner.killed


@virtual_time
async def test_a_crash_of_the_engine_fails_its_tasks_with_the_cause(stage: Stage) -> None:
    """Tasks fail with that cause, good-bye is said, another engine is started, and registers as a new instance."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        (await stage.runner(A)).say(TaskRunning())
        await stage.runner(B)
        stage.engine.die("exit code 137")
        await until(lambda: len(stage.resource_manager.registered) == 2)

        for attempt in (A, B):
            assert why(stage.news(attempt)[-1]) == (FailureKind.ENGINE_LOST, "the Spark engine died: exit code 137")
        assert [beat.attempts for beat in stage.resource_manager.goodbyes] == [()]
        assert [offer.instance for offer in stage.resource_manager.registered] == ["life-1", "life-2"]
        assert len(stage.engines) == 2

        later = attempt_id(7)
        await task_manager.deploy(order(later, 0))
        (await stage.runner(later)).say(TaskFinished())
        await until(lambda: stage.news(later) == [TaskFinished()])


@virtual_time
async def test_nothing_of_an_attempt_is_left_when_its_failure_is_told(stage: Stage) -> None:
    """Runners are killed and the engine is gone before anybody hears of it, and all is told before good-bye is."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.engine.die("exit code 137")
        await until(lambda: "registered life-2" in stage.story)

    assert in_order(
        stage.story,
        "engine dies",
        "kill 0",
        "engine gone",
        "report 0: TaskFailed",
        "good-bye life-1",
        "registered life-2",
    )
    assert stage.story.count("report 0: TaskFailed") == 1


@virtual_time
async def test_without_an_engine_nothing_is_taken(stage: Stage) -> None:
    """Until the next engine is warm, orders are turned away as something that may succeed later."""
    async with stage.playing() as task_manager:
        stage.engine.die("exit code 137")
        await until(lambda: "engine gone" in stage.story)

        with pytest.raises(Unavailable, match="no Spark engine"):
            await task_manager.deploy(order(A))
        with pytest.raises(Unavailable, match="no Spark engine"):
            await task_manager.command(CancelTask(attempt=A))


@virtual_time
async def test_an_engine_that_cannot_start_is_tried_again_with_growing_pauses(stage: Stage) -> None:
    """It is tried for ever, but not all the time."""
    stage.no_engine = ["no Java"] * 9
    async with stage.playing():
        pauses = [later - sooner for sooner, later in pairwise(stage.starts_s)]

    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])


@virtual_time
async def test_a_leader_that_does_not_know_us_is_shown_what_runs(stage: Stage) -> None:
    """It goes on meanwhile, in the same life and in its slots."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(A)
        await stage.runner(B)
        beats = len(stage.resource_manager.heartbeats)
        stage.resource_manager.lead(epoch=2)
        await until(lambda: len(stage.resource_manager.registered) == 2)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats + 1)

        again, beat = stage.resource_manager.registered[-1], stage.resource_manager.heartbeats[-1]
        assert (again.instance, again.busy) == ("life-1", True)
        assert {held.attempt: held.slots for held in beat.attempts} == {A: (0,), B: (1,)}
        assert not [line for line in stage.story if line.startswith(("kill", "release"))]
        assert stage.guard.token == stage.resource_manager.token


@virtual_time
async def test_a_leader_that_refuses_what_runs_finds_nothing_running(stage: Stage) -> None:
    """Everything is ended, and then another life registers."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await stage.runner(A)
        stage.resource_manager.refuse_busy = True
        stage.resource_manager.lead(epoch=2)
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")

        assert in_order(stage.story, "kill 0", "release 0: True", "registered life-2")
        assert stage.resource_manager.heartbeats[-1].attempts == ()
        assert len(stage.engines) == 1


@virtual_time
async def test_the_lease_is_not_renewed_by_a_registration_with_work(stage: Stage) -> None:
    """Only an answered heartbeat tells that its JobMasters want the work: before that the old lease goes on to end."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await stage.runner(A)
        await until(lambda: len(stage.resource_manager.heartbeats) == 3)
        answered_s = asyncio.get_running_loop().time()
        stage.resource_manager.lead(epoch=2)
        stage.resource_manager.deaf = True
        await until(lambda: "release 0: True" in stage.story)
        ended_s = asyncio.get_running_loop().time()
        stage.resource_manager.deaf = False
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")

        assert stage.resource_manager.registered[1].busy
        lease_s = 10 * stage.resource_manager.heartbeat_interval_s
        assert ended_s - answered_s < YIELD_PART * lease_s + 1.0, "the registration came two seconds later"


@virtual_time
async def test_a_fenced_heartbeat_means_that_the_leader_changed(stage: Stage) -> None:
    """What runs is ended, and the TaskManager registers again, as another instance."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.resource_manager.fail_with = Fenced("epoch 1 is over")
        await until(lambda: "release 0: True" in stage.story)
        stage.resource_manager.fail_with = None
        await until(lambda: len(stage.resource_manager.registered) == 2)

        assert stage.resource_manager.registered[-1].instance == "life-2"


@virtual_time
async def test_a_silent_leader_costs_nothing(stage: Stage) -> None:
    """While the lease lasts, work goes on; a leader who is back in time finds it running."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.resource_manager.fail_with = Unavailable("nobody there")
        await asyncio.sleep(13)
        stage.resource_manager.fail_with = None
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats)

        assert stage.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)
        assert len(stage.resource_manager.registered) == 1


@virtual_time
async def test_an_order_for_an_earlier_life_is_refused(stage: Stage) -> None:
    """A deployment that was long on its way does not start on slots that are no longer those it was granted."""
    async with stage.playing() as task_manager:
        stage.resource_manager.fail_with = Unavailable("nobody leads")
        await asyncio.sleep(60)
        stage.resource_manager.fail_with = None
        await until(lambda: len(stage.resource_manager.registered) == 2)

        with pytest.raises(Refused, match="meant for an earlier incarnation"):
            await task_manager.deploy(order(A, 0, instance="life-1"))
        await task_manager.deploy(order(B, 0, instance="life-2"))
        await stage.runner(B)


@pytest.mark.parametrize("error", [Unavailable("nobody leads"), Refused("too many slots"), NotFound("who?")])
def test_registration_is_tried_until_somebody_takes_us_in(stage: Stage, error: FlintlockError) -> None:
    """Whatever the answer is."""

    @virtual_time
    async def play() -> None:
        stage.resource_manager.fail_with = error
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(stage.task_manager.run(), name="taskmanager")
            await asyncio.sleep(30)
            assert stage.resource_manager.registered == []
            stage.resource_manager.fail_with = None
            await until(lambda: bool(stage.resource_manager.heartbeats))
            run.cancel()

    play()


@virtual_time
async def test_an_answer_of_a_leader_who_is_outdated_by_now_is_not_followed(stage: Stage) -> None:
    """A newer leader was heard of while the registration was on its way: it is tried again, nothing breaks."""
    stage.guard.check(FencingToken(Epoch(5), "newer"))
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(stage.task_manager.run(), name="taskmanager")
        await until(lambda: len(stage.resource_manager.registered) > 2)
        assert stage.guard.token == FencingToken(Epoch(5), "newer")
        assert stage.resource_manager.heartbeats == []

        stage.resource_manager.lead(epoch=6)
        await until(lambda: bool(stage.resource_manager.heartbeats))
        run.cancel()

    assert stage.guard.token == stage.resource_manager.token


@virtual_time
async def test_a_taskmanager_that_stops_leaves_nothing_behind(stage: Stage) -> None:
    """Runners and engine are gone before good-bye is said; their attempts are not reported failed."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(A)
        await stage.runner(B)

    assert in_order(stage.story, "kill 0", "engine gone", "good-bye life-1")
    assert in_order(stage.story, "kill 1", "engine gone", "good-bye life-1")
    assert stage.job_masters.reports == []


@virtual_time
async def test_a_taskmanager_stops_though_nobody_answers(stage: Stage) -> None:
    """Undelivered reports and an absent leader do not hold it up."""
    stage.job_masters.fail_with = Unavailable("nobody there")
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        (await stage.runner(A)).say(TaskRunning())
        await task_manager.deploy(order(B, 1))
        (await stage.runner(B)).say(TaskFinished())
        await until(lambda: stage.job_masters.tries > 2)
        stage.resource_manager.fail_with = Unavailable("nobody there")
        stopped_s = asyncio.get_running_loop().time()

    assert asyncio.get_running_loop().time() - stopped_s < 5
    assert "engine gone" in stage.story


@virtual_time
async def test_a_crash_is_survived_though_nobody_hears_of_it(stage: Stage) -> None:
    """The next engine starts soon, even if the failures cannot be delivered."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await stage.runner(A)
        stage.job_masters.fail_with = stage.resource_manager.fail_with = Unavailable("nobody there")
        stage.job_masters.delay_s = 1000
        stage.engine.die("exit code 137")
        died_s = asyncio.get_running_loop().time()
        await until(lambda: len(stage.engines) == 2)

        assert asyncio.get_running_loop().time() - died_s < 10


@virtual_time
async def test_a_deployment_sent_again_runs_once(stage: Stage) -> None:
    """A duplicate is harmless, during and after."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await task_manager.deploy(order(A))
        (await stage.runner(A)).say(TaskFinished())
        await until(lambda: "release 0: True" in stage.story)
        await task_manager.deploy(order(A))
        await asyncio.sleep(10)

    assert stage.story.count("run 0") == 1
    assert stage.news(A) == [TaskFinished()]


@virtual_time
async def test_a_cancel_that_comes_before_its_deployment_wins(stage: Stage) -> None:
    """Reported CANCELED, and never started."""
    async with stage.playing() as task_manager:
        await task_manager.command(CancelTask(attempt=A))
        await task_manager.deploy(order(A))
        await asyncio.sleep(10)

    assert stage.news(A) == [TaskCanceled()]
    assert stage.runners == {}


@virtual_time
async def test_files_are_removed_by_the_engine(stage: Stage) -> None:
    """Directories of an ended job go through Spark's own file systems."""
    async with stage.playing() as task_manager:
        await task_manager.remove_files(RemoveFiles(job_id=A.job_id, directories=("work/x", "out/.staging")))

        assert stage.engine.removed == [("work/x", "out/.staging")]


def test_output_is_read_piece_by_piece(stage: Stage) -> None:
    """From any byte on, from the end, and past it; only what is there."""
    path = stage.services.log_path(A)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"0123456789")

    async def piece(offset: int, limit: int = 4) -> tuple[bytes, int, int, bool]:
        query = LogQuery(task_manager=TaskManagerId("tm"), attempt=A, offset=offset, limit=limit)
        chunk = await stage.task_manager.read_log(query)
        return chunk.data, chunk.offset, chunk.size, chunk.complete

    async def read() -> None:
        assert await piece(0) == (b"0123", 0, 10, True)
        assert await piece(8) == (b"89", 8, 10, True)
        assert await piece(-3) == (b"789", 7, 10, True)
        assert await piece(-30) == (b"0123", 0, 10, True)
        assert await piece(99) == (b"", 10, 10, True)
        with pytest.raises(NotFound, match="no output of attempt"):
            await stage.task_manager.read_log(LogQuery(task_manager=TaskManagerId("tm"), attempt=B))

    asyncio.run(read())


def test_a_lower_epoch_is_refused_and_a_higher_one_adopted() -> None:
    """Nothing that an old leader commands is accepted once a newer one was heard."""
    guard = TokenGuard()
    guard.check(FencingToken(Epoch(2), "a"))
    guard.check(FencingToken(Epoch(2), "a"))
    guard.check(FencingToken(Epoch(3), "b"))

    with pytest.raises(Fenced, match="epoch 2 is over: this TaskManager follows epoch 3"):
        guard.check(FencingToken(Epoch(2), "a"))
    assert guard.token == FencingToken(Epoch(3), "b")


@pytest.mark.parametrize("session", ["a", "z"])
def test_one_epoch_has_one_leader(session: str) -> None:
    """Another session of the same epoch is refused, whatever it is called."""
    guard = TokenGuard()
    guard.check(FencingToken(Epoch(3), "m"))

    with pytest.raises(Fenced, match="epoch 3 belongs to another leader"):
        guard.check(FencingToken(Epoch(3), session))


def test_a_command_without_a_token_is_refused() -> None:
    """Who commands must say for whom."""
    with pytest.raises(Fenced, match="must carry its leader's token"):
        TokenGuard().check(None)
