"""Leases on virtual time: what a TaskManager does when nobody answers, when answers are late, and after a freeze."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from random import Random

import pytest
from tests.unit.taskmanager.orders import attempt_id, order
from tests.unit.taskmanager.stage import Stage, ToldResourceManager, until

from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import InstanceId
from flintlock.model.slots import AttemptSlots, Heartbeat, HeartbeatAnswer, LivenessProbe
from flintlock.model.tasks import TaskCanceled, TaskFailed, TaskFinished, TaskRunning
from flintlock.testing.virtual_time import run_virtual, virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)
LEASE_S = 20.0  # what the stage's ResourceManager grants


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "log")


def now_s() -> float:
    return asyncio.get_running_loop().time()


@virtual_time
async def test_unrenewed_work_is_ended_before_the_leader_gives_it_up(stage: Stage) -> None:
    """Runners are killed, not asked, and sessions released; the engine stays; nothing is told; a new life follows."""
    stage.obedient = False
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0, cancel_timeout_s=600))
        (await stage.runner(A)).say(TaskRunning())
        await until(lambda: stage.news(A) == [TaskRunning()])
        sent_s = stage.resource_manager.sent_s[-1]
        stage.resource_manager.fail_with = stage.job_masters.fail_with = Unavailable("nobody there")
        await until(lambda: "release 0: True" in stage.story)

        assert now_s() - sent_s == pytest.approx(0.8 * LEASE_S, abs=0.5)
        assert stage.watched[-1] == math.inf
        await asyncio.sleep(100)
        stage.resource_manager.fail_with = stage.job_masters.fail_with = None
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")
        assert stage.news(A) == [TaskRunning()]
        assert stage.resource_manager.heartbeats[-1].attempts == ()
        assert len(stage.engines) == 1
        await task_manager.deploy(order(B, 0, instance="life-2"))
        await stage.runner(B)


@virtual_time
async def test_a_hanging_leader_is_a_silent_one(stage: Stage) -> None:
    """A heartbeat that gets no answer at all holds up nothing; it is asked again before the lease ends."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.resource_manager.answer_s = 3600
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats)
        sent_s = stage.resource_manager.sent_s[beats - 1]
        await until(lambda: "release 0: True" in stage.story)

        assert len(stage.resource_manager.heartbeats) >= beats + 3
        assert now_s() - sent_s == pytest.approx(0.8 * LEASE_S, abs=0.5)


@virtual_time
async def test_a_lease_counts_from_the_sending(stage: Stage) -> None:
    """However late the answer: the watchdog is told what the leader, who heard later, cannot overtake."""
    stage.resource_manager.answer_s = 4.0
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        told, beats = len(stage.watched), len(stage.resource_manager.sent_s)
        await until(lambda: len(stage.watched) >= told + 3)

        renewals = [sent_s + 0.95 * LEASE_S for sent_s in stage.resource_manager.sent_s[beats - 1 :]]
        assert stage.watched[told:] == pytest.approx(renewals[: len(stage.watched) - told])


@virtual_time
async def test_the_watchdog_knows_of_work_before_it_begins(stage: Stage) -> None:
    """It is armed with the first attempt, renewed with each heartbeat, and disarmed after the last one."""
    async with stage.playing() as task_manager:
        assert set(stage.watched) <= {math.inf}
        await task_manager.deploy(order(A, 0))
        assert stage.watched[-1] < math.inf
        assert "run 0" not in stage.story
        await task_manager.deploy(order(B, 1))
        for attempt in (A, B):
            (await stage.runner(attempt)).say(TaskFinished())
            assert stage.watched[-1] < math.inf
        await until(lambda: {"release 0: True", "release 1: True"} <= set(stage.story))
        await until(lambda: stage.watched[-1] == math.inf, limit_s=1)


@virtual_time
async def test_an_engine_that_does_not_let_go_is_left_to_the_watchdog(stage: Stage) -> None:
    """While a session is not released, the watchdog stays armed with the lease's own end."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.engine.release_s = 15
        stage.resource_manager.fail_with = Unavailable("nobody there")
        sent_s = stage.resource_manager.sent_s[-1]
        await until(lambda: "kill 0" in stage.story)
        await asyncio.sleep(0.95 * LEASE_S - 0.8 * LEASE_S)

        assert stage.watched[-1] == pytest.approx(sent_s + 0.95 * LEASE_S, abs=0.1)
        stage.engine.die("killed by SIGKILL")
        await until(lambda: len(stage.engines) == 2)
        assert stage.watched[-1] == math.inf
        assert stage.news(A) == []


@virtual_time
async def test_nothing_is_taken_without_a_lease(stage: Stage) -> None:
    """An order that arrives after the lease, or before the first one, starts nothing."""
    async with stage.playing() as task_manager:
        stage.asleep_s += LEASE_S
        with pytest.raises(Unavailable, match="no lease"):
            await task_manager.deploy(order(A))
        stage.resource_manager.fail_with = Unavailable("nobody there")
        await asyncio.sleep(5)
        with pytest.raises(Unavailable, match="no lease"):
            await task_manager.deploy(order(A))

    assert stage.runners == {}


@virtual_time
async def test_an_idle_engine_needs_no_lease(stage: Stage) -> None:
    """Nobody leads for an hour: nothing is killed, and the warm engine serves the next leader."""
    async with stage.playing() as task_manager:
        stage.resource_manager.fail_with = Unavailable("nobody there")
        await asyncio.sleep(3600)
        stage.resource_manager.fail_with = None
        stage.resource_manager.lead(epoch=2)
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")
        await task_manager.deploy(order(A))
        await stage.runner(A)

        assert set(stage.watched[:-2]) == {math.inf}
        assert len(stage.engines) == 1


@virtual_time
async def test_after_a_freeze_no_heartbeat_is_sent_for_the_life_before(stage: Stage) -> None:
    """The clock went on without us: work is ended first, then another life registers; the leader heard no lie."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        beats = len(stage.resource_manager.heartbeats)
        stage.asleep_s += 100
        await until(lambda: len(stage.resource_manager.heartbeats) > beats)

        assert stage.resource_manager.heartbeats[-1].instance == "life-2"
        assert stage.story.index("release 0: True") < stage.story.index("registered life-2")
        assert stage.news(A) == []


@virtual_time
async def test_a_frozen_taskmanager_finds_its_engine_gone_and_keeps_silent_about_it(stage: Stage) -> None:
    """The watchdog killed everything: no stale report, good-bye in the old life's name, a fresh engine, a new life."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        (await stage.runner(A)).say(TaskRunning())
        await until(lambda: stage.news(A) == [TaskRunning()])
        stage.asleep_s += 100
        stage.engine.die("the engine's process was killed by SIGKILL")
        await until(lambda: "registered life-2" in stage.story or "registered life-3" in stage.story)

        assert stage.news(A) == [TaskRunning()]
        assert [beat.instance for beat in stage.resource_manager.goodbyes] == ["life-1"]
        assert len(stage.engines) == 2
        later = attempt_id(7)
        await until(lambda: stage.resource_manager.heartbeats[-1].instance != "life-1")
        await task_manager.deploy(order(later))
        await stage.runner(later)


@virtual_time
async def test_a_late_answer_after_a_freeze_renews_nothing(stage: Stage) -> None:
    """The heartbeat was sent before the freeze: its answer counts from then."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        stage.resource_manager.answer_s = 3.0
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats)
        stage.asleep_s += 100
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")

        assert len(stage.resource_manager.heartbeats) == beats + 2


@virtual_time
async def test_a_liveness_call_is_answered_when_all_work_has_ended(stage: Stage) -> None:
    """Not before: whoever hears it may start the same task elsewhere."""
    async with stage.playing() as task_manager, asyncio.TaskGroup() as tasks:
        await task_manager.deploy(order(A, cancel_timeout_s=5))
        await stage.runner(A)
        watching = tasks.create_task(
            task_manager.watch_liveness(LivenessProbe(instance=InstanceId("life-1"))), name="liveness"
        )
        watching.add_done_callback(lambda _: stage.tell("life-1 is over"))
        await asyncio.sleep(60)
        assert not watching.done()
        await task_manager.watch_liveness(LivenessProbe(instance=InstanceId("never")))
        stage.resource_manager.fail_with = Unavailable("nobody leads")
        await until(lambda: "life-1 is over" in stage.story)

        assert stage.story.index("release 0: True") < stage.story.index("life-1 is over")
        await task_manager.watch_liveness(LivenessProbe(instance=InstanceId("life-1")))


@virtual_time
async def test_a_liveness_call_is_answered_after_the_reports_of_a_dead_engine(stage: Stage) -> None:
    """Failures arrive with their cause before the TaskManager counts as lost."""
    async with stage.playing() as task_manager, asyncio.TaskGroup() as tasks:
        await task_manager.deploy(order(A))
        await stage.runner(A)
        watching = tasks.create_task(
            task_manager.watch_liveness(LivenessProbe(instance=InstanceId("life-1"))), name="liveness"
        )
        watching.add_done_callback(lambda _: stage.tell("life-1 is over"))
        stage.engine.die("exit code 137")
        await watching
        await until(lambda: "life-1 is over" in stage.story)

        assert isinstance(stage.news(A)[-1], TaskFailed)
        assert stage.story.index("report 0: TaskFailed") < stage.story.index("life-1 is over")


@virtual_time
async def test_a_taskmanager_that_stops_answers_before_it_goes(stage: Stage) -> None:
    """The caller need not wait for the connection to break."""
    async with asyncio.TaskGroup() as tasks:
        async with stage.playing() as task_manager:
            watching = tasks.create_task(
                task_manager.watch_liveness(LivenessProbe(instance=InstanceId("life-1"))), name="liveness"
            )
            await asyncio.sleep(1)
            assert not watching.done()
        await asyncio.wait({watching}, timeout=1)

        assert watching.done()


@virtual_time
async def test_an_attempt_is_here_until_its_end_was_told(stage: Stage) -> None:
    """Nobody takes the silence of an undelivered result for loss."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        stage.job_masters.fail_with = Unavailable("nobody there")
        (await stage.runner(A)).say(TaskFinished())
        await until(lambda: "release 0: True" in stage.story)
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats + 2)
        assert stage.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=()),)
        assert stage.resource_manager.heartbeats[-1].metrics["running_tasks"] == 0
        stage.job_masters.fail_with = None
        await until(lambda: stage.resource_manager.heartbeats[-1].attempts == ())

        assert stage.news(A) == [TaskFinished()]


@virtual_time
async def test_what_nobody_wants_is_ended(stage: Stage) -> None:
    """An unwanted attempt is cancelled; one that is not here, or has finished, is left as it is."""
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await stage.runner(A)
        (await stage.runner(B)).say(TaskFinished())
        await until(lambda: "release 1: True" in stage.story)
        stage.resource_manager.unwanted = (A, B, attempt_id(9))
        await until(lambda: "release 0: True" in stage.story)
        await asyncio.sleep(10)

        assert stage.runners[A].interrupted
        assert stage.news(A) == [TaskCanceled()]
        assert stage.news(B) == [TaskFinished()]
        assert stage.news(attempt_id(9)) == []


@virtual_time
async def test_heartbeats_carry_measures(stage: Stage) -> None:
    """Slots, tasks, memory, restarts, and what is left of the lease."""
    async with stage.playing() as task_manager:
        stage.engine.die("exit code 1")
        await until(lambda: stage.resource_manager.heartbeats[-1].instance == "life-2")
        await task_manager.deploy(order(A, 0, 1))
        await stage.runner(A)
        beats = len(stage.resource_manager.heartbeats)
        await until(lambda: len(stage.resource_manager.heartbeats) > beats)
        measures = stage.resource_manager.heartbeats[-1].metrics
        assert measures.pop("lease_left_s") == pytest.approx(0.8 * LEASE_S - 2, abs=0.1)
        assert measures == {
            "slots_used": 2,
            "running_tasks": 1,
            "runner_memory_bytes": 10,
            "engine_memory_bytes": 200,
            "engine_restarts": 1,
        }


@virtual_time
async def test_what_cannot_be_measured_costs_no_heartbeat(stage: Stage) -> None:
    """It counts as 0."""
    stage.processes.broken = True
    async with stage.playing() as task_manager:
        await task_manager.deploy(order(A))
        await asyncio.sleep(30)

        assert stage.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)
        assert stage.resource_manager.heartbeats[-1].metrics["engine_memory_bytes"] == 0


class MoodyResourceManager(ToldResourceManager):
    """A leader behind a bad line: messages take their time, get lost both ways, or meet nobody."""

    def __init__(self, stage: Stage, random: Random) -> None:
        super().__init__(stage)
        self._random = random
        self.heard_s: dict[InstanceId, float] = {}  # when each life was last heard
        self.good = True

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Hear it, perhaps; answer, perhaps."""
        if not self.good:
            await asyncio.sleep(self._random.choice([0.01, 1.0, 7.0]))
            if self._random.random() < 0.7:
                raise Unavailable("lost on its way")
        self.heard_s[message.instance] = now_s()
        answer = await super().heartbeat(message)
        if not self.good:
            await asyncio.sleep(self._random.choice([0.01, 3.0, 3600.0]))
        return answer


@pytest.mark.parametrize("seed", range(20))
def test_no_work_goes_on_that_the_leader_has_given_up(tmp_path: Path, seed: int) -> None:
    """Whatever happens to heartbeats and answers: one lease after it last heard of a life, nothing of it runs."""
    random = Random(seed)
    lived = 0

    async def play() -> None:
        nonlocal lived
        stage = Stage(tmp_path / "log")
        stage.obedient = False
        leader = stage.resource_manager = MoodyResourceManager(stage, random)
        deployed: dict[InstanceId, list[int]] = {}
        async with stage.playing() as task_manager:
            for number in range(200):
                leader.good = random.random() < 0.5
                known = stage.resource_manager.heartbeats[-1].instance
                attempt = attempt_id(number)
                try:
                    await task_manager.deploy(order(attempt, random.randrange(2), instance=known))
                    deployed.setdefault(known, []).append(number)
                except FlintlockError:
                    pass
                for _ in range(random.choice([1, 10, 40])):
                    await asyncio.sleep(0.5)
                    given_up = [life for life, heard_s in leader.heard_s.items() if now_s() >= heard_s + LEASE_S]
                    alive = {f"run {n}" for life in given_up for n in deployed.get(life, [])} & set(stage.story)
                    assert not [run for run in alive if f"kill {run[4:]}" not in stage.story]
        lived = len(leader.heard_s)

    run_virtual(play())

    assert lived > 2  # it did come to that


@pytest.mark.parametrize("answer_s", [0.0, 3600.0], ids=["between heartbeats", "a frozen leader"])
def test_another_leader_is_turned_to_as_soon_as_it_is_heard_of(stage: Stage, answer_s: float) -> None:
    """Neither the next heartbeat's time nor an answer that never comes is waited for."""

    async def story() -> None:
        async with stage.playing():
            await asyncio.sleep(30)
            old, stage.resource_manager.answer_s = stage.resource_manager, answer_s
            beats = len(old.heartbeats)
            await until(lambda: len(old.heartbeats) > beats)
            await asyncio.sleep(0.1)

            stage.resource_manager = ToldResourceManager(stage)
            assert stage.moved is not None
            stage.moved.set()
            await asyncio.sleep(0.1)

            assert len(stage.resource_manager.heartbeats) == 2, "one it does not know, and one after registering"
            assert len(old.heartbeats) == beats + 1

    run_virtual(story())
