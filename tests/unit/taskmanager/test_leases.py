"""Leases on virtual time: no answers, late answers, and a TaskManager that was frozen."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs
from tests.unit.taskmanager.harness import RecordingResourceManager, TaskManagerHarness, until
from tests.unit.taskmanager.orders import attempt_id, order

from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import InstanceId
from flintlock.model.slots import AttemptSlots, Heartbeat, HeartbeatAnswer, LivenessProbe
from flintlock.model.tasks import TaskCanceled, TaskFailed, TaskFinished, TaskRunning
from flintlock.taskmanager.endpoint import TaskManager, TokenGuard
from flintlock.testing.virtual_time import run_virtual, virtual_time

A, B = attempt_id(0), attempt_id(1, region=1)
LEASE_S = 20.0  # what the harness's ResourceManager grants


@pytest.fixture
def harness(tmp_path: Path) -> TaskManagerHarness:
    return TaskManagerHarness(tmp_path / "log")


def now_s() -> float:
    return asyncio.get_running_loop().time()


@virtual_time
async def test_worker_that_no_leader_takes_ends_itself_and_one_that_is_taken_in_time_does_not(
    harness: TaskManagerHarness,
) -> None:
    services = replace(harness.services, unregistered_timeout_s=300.0)
    task_manager = TaskManager(services, TokenGuard(services.clock_s))
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(task_manager.run())
        for _ in range(3):
            harness.resource_manager.fail_with = None
            await asyncio.sleep(30)
            harness.resource_manager.fail_with = Unavailable("no leader")
            await asyncio.sleep(280)
            assert not serving.done()
        await asyncio.sleep(60)
        assert serving.done()


@virtual_time
async def test_worker_whose_engine_takes_long_to_start_is_not_given_up_meanwhile(harness: TaskManagerHarness) -> None:
    services = replace(harness.services, unregistered_timeout_s=20.0)
    harness.warm_up_s = 90.0
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(TaskManager(services, TokenGuard(services.clock_s)).run())
        await asyncio.sleep(100)
        assert harness.resource_manager.heartbeats, "it is registered"
        harness.resource_manager.fail_with = Unavailable("no leader")
        await asyncio.sleep(60)
        assert serving.done()


@virtual_time
async def test_worker_whose_engine_never_starts_ends_itself(harness: TaskManagerHarness) -> None:
    services = replace(harness.services, unregistered_timeout_s=20.0)
    harness.no_engine = ["no Java"] * 1000
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(TaskManager(services, TokenGuard(services.clock_s)).run())
        await asyncio.sleep(60)
        assert serving.done()


@virtual_time
async def test_work_without_renewal_ends_before_the_leader_declares_it_lost(harness: TaskManagerHarness) -> None:
    """Runners are killed and sessions released; the engine stays; nothing is reported; a new incarnation follows."""
    harness.stops_on_interrupt = False
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0, cancel_timeout_s=600))
        (await harness.runner(A)).send(TaskRunning())
        await until(lambda: harness.news(A) == [TaskRunning()])
        sent_s = harness.resource_manager.sent_s[-1]
        harness.resource_manager.fail_with = harness.job_masters.fail_with = Unavailable("no answer")
        await until(lambda: "release 0: True" in harness.events)

        assert now_s() - sent_s == pytest.approx(0.8 * LEASE_S, abs=0.5)
        assert harness.watched[-1] == math.inf
        await asyncio.sleep(100)
        harness.resource_manager.fail_with = harness.job_masters.fail_with = None
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")
        assert harness.news(A) == [TaskRunning()]
        assert harness.resource_manager.heartbeats[-1].attempts == ()
        assert len(harness.engines) == 1
        await task_manager.deploy(order(B, 0, instance="instance-2"))
        await harness.runner(B)


@virtual_time
async def test_an_attempt_runs_under_no_longer_lease_than_the_recorded_one(harness: TaskManagerHarness) -> None:
    """A leader with a longer heartbeat.timeout takes over: the leader after that one knows the recorded length only."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, lease_s=LEASE_S))
        await harness.runner(A)
        harness.resource_manager.heartbeat_timeout_s = 10 * LEASE_S
        harness.resource_manager.lead(epoch=2)
        await until(lambda: [beat.lease_s for beat in harness.resource_manager.heartbeats[-2:]] == [LEASE_S] * 2)
        sent_s = harness.resource_manager.sent_s[-1]
        harness.resource_manager.fail_with = Unavailable("no answer")
        await until(lambda: "release 0: True" in harness.events)

        assert now_s() - sent_s == pytest.approx(0.8 * LEASE_S, abs=0.5)
        harness.resource_manager.fail_with = None
        await until(lambda: harness.resource_manager.heartbeats[-1].lease_s == 10 * LEASE_S)


@virtual_time
async def test_a_lease_of_an_earlier_leader_that_is_longer_admits_no_attempt_of_the_next(
    harness: TaskManagerHarness,
) -> None:
    """The next leader has answered no heartbeat yet, so its own, shorter lease does not apply yet."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, lease_s=LEASE_S))
        await harness.runner(A)
        harness.resource_manager.heartbeat_timeout_s = LEASE_S / 2
        harness.resource_manager.deaf = True
        harness.resource_manager.lead(epoch=2)
        await until(lambda: len(harness.resource_manager.registered) == 2)
        with pytest.raises(Unavailable, match="the lease of an earlier leader"):
            await task_manager.deploy(order(B, 1, lease_s=LEASE_S / 2))
        harness.resource_manager.deaf = False
        await until(lambda: harness.resource_manager.heartbeats[-1].lease_s == LEASE_S / 2)
        await task_manager.deploy(order(B, 1, lease_s=LEASE_S / 2))
        await harness.runner(B)


@virtual_time
async def test_leader_that_does_not_answer_in_time_is_logged_once(harness: TaskManagerHarness) -> None:
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.answer_s = 3600
        beats = len(harness.resource_manager.heartbeats)
        with capture_logs() as logs:
            await until(lambda: "release 0: True" in harness.events)

        assert len(harness.resource_manager.heartbeats) >= beats + 3
        unanswered = [entry["reason"] for entry in logs if entry["event"] == log_events.HEARTBEAT_UNANSWERED]
        assert unanswered == ["no answer in time"]


@virtual_time
async def test_a_hanging_leader_is_a_silent_one(harness: TaskManagerHarness) -> None:
    """A heartbeat without an answer blocks nothing; another is sent before the lease ends."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.answer_s = 3600
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats)
        sent_s = harness.resource_manager.sent_s[beats - 1]
        await until(lambda: "release 0: True" in harness.events)

        assert len(harness.resource_manager.heartbeats) >= beats + 3
        assert now_s() - sent_s == pytest.approx(0.8 * LEASE_S, abs=0.5)


@virtual_time
async def test_a_lease_counts_from_when_the_heartbeat_was_sent(harness: TaskManagerHarness) -> None:
    """However late the answer: the watchdog's deadline is earlier than the leader's, which counts from the receipt."""
    harness.resource_manager.answer_s = 4.0
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        sent, beats = len(harness.watched), len(harness.resource_manager.sent_s)
        await until(lambda: len(harness.watched) >= sent + 3)

        renewals = [sent_s + 0.95 * LEASE_S for sent_s in harness.resource_manager.sent_s[beats - 1 :]]
        assert harness.watched[sent:] == pytest.approx(renewals[: len(harness.watched) - sent])


@virtual_time
async def test_the_watchdog_knows_of_work_before_it_begins(harness: TaskManagerHarness) -> None:
    """It is armed with the first attempt, renewed with each heartbeat, and disarmed after the last one."""
    async with harness.running() as task_manager:
        assert set(harness.watched) <= {math.inf}
        await task_manager.deploy(order(A, 0))
        assert harness.watched[-1] < math.inf
        assert "run 0" not in harness.events
        await task_manager.deploy(order(B, 1))
        for attempt in (A, B):
            (await harness.runner(attempt)).send(TaskFinished())
            assert harness.watched[-1] < math.inf
        await until(lambda: {"release 0: True", "release 1: True"} <= set(harness.events))
        await until(lambda: harness.watched[-1] == math.inf, limit_s=1)


@virtual_time
async def test_an_attempt_does_not_begin_once_its_lease_has_lapsed(harness: TaskManagerHarness) -> None:
    """The machine slept while its runner was taken: the task may run elsewhere by now."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        harness.asleep_s = 2 * LEASE_S
        await until(lambda: "release 0: True" in harness.events)

        assert "run 0" not in harness.events
        assert harness.news(A) == []


@virtual_time
async def test_nothing_begins_on_an_engine_that_the_watchdog_is_about_to_kill(harness: TaskManagerHarness) -> None:
    """Awake again, the TaskManager may tear its work down before the watchdog is done, which was stopped with it."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.asleep_s = 2 * LEASE_S
        await until(lambda: harness.resource_manager.registered[-1].instance != "instance-1")

        assert len(harness.engines) == 2
        assert harness.news(A) == []
        await task_manager.deploy(order(B, instance=harness.resource_manager.registered[-1].instance))
        await harness.runner(B)


@virtual_time
async def test_an_engine_that_does_not_release_a_session_is_left_to_the_watchdog(harness: TaskManagerHarness) -> None:
    """While a session is not released, the watchdog stays armed with the lease's own end."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.engine.release_s = 15
        harness.resource_manager.fail_with = Unavailable("no answer")
        sent_s = harness.resource_manager.sent_s[-1]
        await until(lambda: "kill 0" in harness.events)
        await asyncio.sleep(0.95 * LEASE_S - 0.8 * LEASE_S)

        assert harness.watched[-1] == pytest.approx(sent_s + 0.95 * LEASE_S, abs=0.1)
        harness.engine.die("killed by SIGKILL")
        await until(lambda: len(harness.engines) == 2)
        assert harness.watched[-1] == math.inf
        assert harness.news(A) == []


@virtual_time
async def test_nothing_is_taken_without_a_lease(harness: TaskManagerHarness) -> None:
    """A deployment that arrives after the lease, or before the first one, starts nothing."""
    async with harness.running() as task_manager:
        harness.asleep_s += LEASE_S
        with pytest.raises(Unavailable, match="no lease"):
            await task_manager.deploy(order(A))
        harness.resource_manager.fail_with = Unavailable("no answer")
        await asyncio.sleep(5)
        with pytest.raises(Unavailable, match="no lease"):
            await task_manager.deploy(order(A, instance=harness.instance))

    assert harness.runners == {}


@virtual_time
async def test_an_idle_engine_needs_no_lease(harness: TaskManagerHarness) -> None:
    """Without a leader for an hour: nothing is killed, and the warm engine serves the next leader."""
    async with harness.running() as task_manager:
        harness.resource_manager.fail_with = Unavailable("no answer")
        await asyncio.sleep(3600)
        harness.resource_manager.fail_with = None
        harness.resource_manager.lead(epoch=2)
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")
        await task_manager.deploy(order(A, instance="instance-2"))
        await harness.runner(A)

        assert set(harness.watched[:-2]) == {math.inf}
        assert len(harness.engines) == 1


@virtual_time
async def test_after_a_freeze_no_heartbeat_is_sent_for_the_former_incarnation(harness: TaskManagerHarness) -> None:
    """The lease's clock advanced during the freeze: work is ended first, then the next incarnation registers."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        beats = len(harness.resource_manager.heartbeats)
        harness.asleep_s += 100
        await until(lambda: len(harness.resource_manager.heartbeats) > beats)

        assert harness.resource_manager.heartbeats[-1].instance == harness.instance != "instance-1"
        assert harness.events.index("release 0: True") < harness.events.index(f"registered {harness.instance}")
        assert harness.news(A) == []


@virtual_time
async def test_a_frozen_taskmanager_does_not_report_that_its_engine_was_killed(harness: TaskManagerHarness) -> None:
    """The watchdog killed everything: no stale report; the old incarnation unregisters, a new engine and one follow."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        (await harness.runner(A)).send(TaskRunning())
        await until(lambda: harness.news(A) == [TaskRunning()])
        harness.asleep_s += 100
        harness.engine.die("the engine's process was killed by SIGKILL")
        await until(lambda: "registered instance-2" in harness.events or "registered instance-3" in harness.events)

        assert harness.news(A) == [TaskRunning()]
        assert [beat.instance for beat in harness.resource_manager.unregistered] == ["instance-1"]
        assert len(harness.engines) == 2
        later = attempt_id(7)
        await until(lambda: harness.resource_manager.heartbeats[-1].instance != "instance-1")
        await task_manager.deploy(order(later, instance=harness.instance))
        await harness.runner(later)


@virtual_time
async def test_a_late_answer_after_a_freeze_renews_nothing(harness: TaskManagerHarness) -> None:
    """The heartbeat was sent before the freeze: its answer counts from then."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        harness.resource_manager.answer_s = 3.0
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats)
        harness.asleep_s += 100
        await until(lambda: harness.resource_manager.heartbeats[-1].instance != "instance-1")

        assert len(harness.resource_manager.heartbeats) == beats + 2


@virtual_time
async def test_a_liveness_call_is_answered_when_all_work_has_ended(harness: TaskManagerHarness) -> None:
    """Not before: the leader may then start the same task elsewhere."""
    async with harness.running() as task_manager, asyncio.TaskGroup() as tasks:
        await task_manager.deploy(order(A, cancel_timeout_s=5))
        await harness.runner(A)
        watching = tasks.create_task(
            task_manager.watch_liveness(LivenessProbe(instance=InstanceId("instance-1"))), name="liveness"
        )
        watching.add_done_callback(lambda _: harness.record("instance-1 is over"))
        await asyncio.sleep(60)
        assert not watching.done()
        await task_manager.watch_liveness(LivenessProbe(instance=InstanceId("never")))
        harness.resource_manager.fail_with = Unavailable("no leader")
        await until(lambda: "instance-1 is over" in harness.events)

        assert harness.events.index("release 0: True") < harness.events.index("instance-1 is over")
        await task_manager.watch_liveness(LivenessProbe(instance=InstanceId("instance-1")))


@virtual_time
async def test_a_liveness_call_is_answered_after_the_reports_of_a_dead_engine(harness: TaskManagerHarness) -> None:
    """Failures arrive with their cause before the TaskManager counts as lost."""
    async with harness.running() as task_manager, asyncio.TaskGroup() as tasks:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        watching = tasks.create_task(
            task_manager.watch_liveness(LivenessProbe(instance=InstanceId("instance-1"))), name="liveness"
        )
        watching.add_done_callback(lambda _: harness.record("instance-1 is over"))
        harness.engine.die("exit code 137")
        await watching
        await until(lambda: "instance-1 is over" in harness.events)

        assert isinstance(harness.news(A)[-1], TaskFailed)
        assert harness.events.index("report 0: TaskFailed") < harness.events.index("instance-1 is over")


@virtual_time
async def test_the_leader_knows_that_an_engine_is_dead_before_its_tasks_are_reported(
    harness: TaskManagerHarness,
) -> None:
    """Else their next attempts would be deployed to a TaskManager that is about to unregister."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await harness.runner(A)
        await until(lambda: harness.resource_manager.heartbeats[-1].attempts != ())
        assert harness.resource_manager.heartbeats[-1].engine_ready
        await asyncio.sleep(0.1)
        harness.engine.die("exit code 137")
        await until(lambda: not harness.resource_manager.heartbeats[-1].engine_ready, limit_s=0.1)

        assert harness.resource_manager.heartbeats[-1].instance == "instance-1"
        assert harness.news(A) == []
        await until(lambda: len(harness.news(A)) == 1)


@virtual_time
async def test_a_taskmanager_that_stops_answers_liveness_calls_first(harness: TaskManagerHarness) -> None:
    """The caller need not wait for the connection to break."""
    async with asyncio.TaskGroup() as tasks:
        async with harness.running() as task_manager:
            watching = tasks.create_task(
                task_manager.watch_liveness(LivenessProbe(instance=InstanceId("instance-1"))), name="liveness"
            )
            await asyncio.sleep(1)
            assert not watching.done()
        await asyncio.wait({watching}, timeout=1)

        assert watching.done()


@virtual_time
async def test_an_attempt_is_in_heartbeats_until_its_end_was_reported(harness: TaskManagerHarness) -> None:
    """An undelivered result is not taken for a loss."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        harness.job_masters.fail_with = Unavailable("no answer")
        (await harness.runner(A)).send(TaskFinished())
        await until(lambda: "release 0: True" in harness.events)
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats + 2)
        assert harness.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=()),)
        assert harness.resource_manager.heartbeats[-1].metrics["running_tasks"] == 0
        harness.job_masters.fail_with = None
        await until(lambda: harness.resource_manager.heartbeats[-1].attempts == ())

        assert harness.news(A) == [TaskFinished()]


@virtual_time
async def test_an_unwanted_attempt_is_cancelled(harness: TaskManagerHarness) -> None:
    """An unwanted attempt is cancelled; one that is not here, or has finished, is left as it is."""
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A, 0))
        await task_manager.deploy(order(B, 1))
        await harness.runner(A)
        (await harness.runner(B)).send(TaskFinished())
        await until(lambda: "release 1: True" in harness.events)
        harness.resource_manager.unwanted = (A, B, attempt_id(9))
        await until(lambda: "release 0: True" in harness.events)
        await asyncio.sleep(10)

        assert harness.runners[A].interrupted
        assert harness.news(A) == [TaskCanceled()]
        assert harness.news(B) == [TaskFinished()]
        assert harness.news(attempt_id(9)) == []


@virtual_time
async def test_heartbeats_carry_measures(harness: TaskManagerHarness) -> None:
    """Slots, tasks, memory, restarts, and what is left of the lease."""
    async with harness.running() as task_manager:
        harness.engine.die("exit code 1")
        await until(lambda: harness.resource_manager.heartbeats[-1].instance == "instance-2")
        await task_manager.deploy(order(A, 0, 1, instance="instance-2"))
        await harness.runner(A)
        beats = len(harness.resource_manager.heartbeats)
        await until(lambda: len(harness.resource_manager.heartbeats) > beats)
        measures = harness.resource_manager.heartbeats[-1].metrics
        assert measures.pop("lease_left_s") == pytest.approx(0.8 * LEASE_S - 2, abs=0.1)
        assert measures == {
            "slots_used": 2,
            "running_tasks": 1,
            "runner_memory_bytes": 10,
            "engine_memory_bytes": 200,
            "engine_restarts": 1,
            "log_lines_dropped": 0,
        }


@virtual_time
async def test_what_cannot_be_measured_costs_no_heartbeat(harness: TaskManagerHarness) -> None:
    """It counts as 0."""
    harness.processes.broken = True
    async with harness.running() as task_manager:
        await task_manager.deploy(order(A))
        await asyncio.sleep(30)

        assert harness.resource_manager.heartbeats[-1].attempts == (AttemptSlots(attempt=A, slots=(0,)),)
        assert harness.resource_manager.heartbeats[-1].metrics["engine_memory_bytes"] == 0


class MoodyResourceManager(RecordingResourceManager):
    """A leader behind a bad network: messages are delayed, lost in both directions, or fail."""

    def __init__(self, harness: TaskManagerHarness, random: Random) -> None:
        super().__init__(harness)
        self._random = random
        self.received_s: dict[InstanceId, float] = {}  # when the last heartbeat of each incarnation arrived
        self.good = True

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Receive it, perhaps; answer, perhaps."""
        if not self.good:
            await asyncio.sleep(self._random.choice([0.01, 1.0, 7.0]))
            if self._random.random() < 0.7:
                raise Unavailable("lost on its way")
        self.received_s[message.instance] = now_s()
        answer = await super().heartbeat(message)
        if not self.good:
            await asyncio.sleep(self._random.choice([0.01, 3.0, 3600.0]))
        return answer


@pytest.mark.parametrize("seed", range(20))
def test_no_work_continues_that_the_leader_has_declared_lost(tmp_path: Path, seed: int) -> None:
    """For any loss of heartbeats and answers: one lease after the last receipt, nothing of an incarnation runs."""
    random = Random(seed)
    incarnations = 0

    async def run_scenario() -> None:
        nonlocal incarnations
        harness = TaskManagerHarness(tmp_path / "log")
        harness.stops_on_interrupt = False
        leader = harness.resource_manager = MoodyResourceManager(harness, random)
        deployed: dict[InstanceId, list[int]] = {}
        async with harness.running() as task_manager:
            for number in range(200):
                leader.good = random.random() < 0.5
                known = harness.resource_manager.heartbeats[-1].instance
                attempt = attempt_id(number)
                try:
                    await task_manager.deploy(order(attempt, random.randrange(2), instance=known))
                    deployed.setdefault(known, []).append(number)
                except FlintlockError:
                    pass
                for _ in range(random.choice([1, 10, 40])):
                    await asyncio.sleep(0.5)
                    lost = [
                        instance
                        for instance, received_s in leader.received_s.items()
                        if now_s() >= received_s + LEASE_S
                    ]
                    alive = {f"run {n}" for instance in lost for n in deployed.get(instance, [])} & set(harness.events)
                    assert not [run for run in alive if f"kill {run[4:]}" not in harness.events]
        incarnations = len(leader.received_s)

    run_virtual(run_scenario())

    assert incarnations > 2  # it did come to that


@pytest.mark.parametrize("answer_s", [0.0, 3600.0], ids=["between heartbeats", "a frozen leader"])
def test_a_new_leader_is_used_as_soon_as_it_is_known(harness: TaskManagerHarness, answer_s: float) -> None:
    """Neither the next heartbeat's time nor an answer that never arrives is waited for."""

    async def events() -> None:
        async with harness.running():
            await asyncio.sleep(30)
            old, harness.resource_manager.answer_s = harness.resource_manager, answer_s
            beats = len(old.heartbeats)
            await until(lambda: len(old.heartbeats) > beats)
            await asyncio.sleep(0.1)

            harness.resource_manager = RecordingResourceManager(harness)
            assert harness.moved is not None
            harness.moved.set()
            await asyncio.sleep(0.1)

            assert len(harness.resource_manager.heartbeats) == 2, "one it does not know, and one after registering"
            assert len(old.heartbeats) == beats + 1

    run_virtual(events())
