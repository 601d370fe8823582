"""What a TaskManager decides: admission, messages of runners, the end of attempts."""

from __future__ import annotations

import pytest
from tests.unit.taskmanager.orders import attempt_id, failed, order

from flintlock.model.errors import InvariantBroken, Refused
from flintlock.model.ids import AttemptId
from flintlock.model.states import checked_move
from flintlock.model.tasks import (
    FailureKind,
    PublishFiles,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)
from flintlock.taskmanager.core import (
    TASK_PHASE_MOVES,
    InterruptTask,
    KillTask,
    Report,
    StartPublishing,
    StartTask,
    TaskManagerCore,
    TaskPhase,
)

A, B, C = attempt_id(0), attempt_id(0, region=1), attempt_id(1)


@pytest.fixture
def core() -> TaskManagerCore:
    return TaskManagerCore(slots=2)


def running(core: TaskManagerCore, attempt: AttemptId = A, *slots: int) -> None:
    core.deploy(order(attempt, *slots))
    core.received(attempt, TaskRunning())


def test_a_deployed_attempt_starts(core: TaskManagerCore) -> None:
    """An attempt whose slots are free gets them, and a runner."""
    assert core.deploy(order(A, 0, 1)) == (StartTask(order(A, 0, 1)),)
    assert core.running() == (A,)


def test_deploying_again_changes_nothing(core: TaskManagerCore) -> None:
    """A duplicate is harmless while the attempt runs, and after it has ended."""
    core.deploy(order(A))
    assert core.deploy(order(A)) == ()
    core.received(A, TaskFinished())
    core.torn_down(A)
    assert core.deploy(order(A)) == ()


@pytest.mark.parametrize("slots", [(2,), (-1,), (0, 7)])
def test_slots_that_are_not_here_are_refused(core: TaskManagerCore, slots: tuple[int, ...]) -> None:
    """Slots that do not exist are not granted."""
    with pytest.raises(Refused, match="only 0 to 1"):
        core.deploy(order(A, *slots))
    assert core.is_empty()


def test_taken_slots_are_refused_until_their_attempt_has_ended(core: TaskManagerCore) -> None:
    """The refusal names the attempt; a failed attempt occupies its slots until it is torn down."""
    core.deploy(order(A, 0))
    with pytest.raises(Refused, match=f"in use by attempt {A}"):
        core.deploy(order(B, 0, 1))
    core.received(A, failed())
    with pytest.raises(Refused, match=f"in use by attempt {A}"):
        core.deploy(order(B, 0, 1))
    core.torn_down(A)
    assert core.deploy(order(B, 0, 1))


def test_a_finished_attempt_frees_its_slots_immediately(core: TaskManagerCore) -> None:
    """Its work is complete; only its runner is still to be removed."""
    running(core, A, 0)
    assert core.received(A, TaskFinished()) == (Report(A, TaskFinished()),)
    assert core.deploy(order(B, 0))
    assert core.torn_down(A) == ()


def test_running_and_progress_are_passed_on(core: TaskManagerCore) -> None:
    """A runner's messages about its work are reported immediately."""
    core.deploy(order(A))
    progress = TaskProgress(metrics=TaskMetrics(tasks_done=1), activity="writing")

    assert core.received(A, TaskRunning()) == (Report(A, TaskRunning()),)
    assert core.received(A, progress) == (Report(A, progress),)


def test_a_failure_is_reported_once_it_is_torn_down(core: TaskManagerCore) -> None:
    """A retry never overlaps with the failed attempt."""
    running(core)

    assert core.received(A, failed()) == ()
    assert core.torn_down(A) == (Report(A, failed()),)
    assert core.torn_down(A) == ()


def test_a_cancel_is_reported_once_it_is_torn_down(core: TaskManagerCore) -> None:
    """CANCELED means: the runner is gone and its Spark session released."""
    running(core)

    assert core.cancel(A) == (InterruptTask(A),)
    assert core.cancel(A) == ()
    assert core.torn_down(A) == (Report(A, TaskCanceled()),)


@pytest.mark.parametrize("last_message", [TaskFinished(), failed(), TaskRunning()])
def test_messages_of_a_cancelled_runner_are_ignored(
    core: TaskManagerCore, last_message: TaskFinished | TaskFailed | TaskRunning
) -> None:
    """A cancelled attempt is CANCELED, whether it finished or failed meanwhile."""
    running(core)
    core.cancel(A)

    assert core.received(A, last_message) == ()
    assert core.torn_down(A) == (Report(A, TaskCanceled()),)


def test_a_cancel_of_an_unknown_attempt_is_reported_and_remembered(core: TaskManagerCore) -> None:
    """It counts as ended, and is not started if its deployment arrives after its cancel."""
    assert core.cancel(A) == (Report(A, TaskCanceled()),)
    assert core.deploy(order(A)) == ()
    assert core.is_empty()


def test_a_cancel_of_an_ended_attempt_is_answered_again(core: TaskManagerCore) -> None:
    """A JobMaster that missed the report gets one."""
    running(core)
    core.received(A, failed())
    core.torn_down(A)

    assert core.cancel(A) == (Report(A, TaskCanceled()),)


@pytest.mark.parametrize("outcome", [TaskFinished(), failed()])
def test_a_cancel_comes_too_late_for_an_attempt_that_has_ended(
    core: TaskManagerCore, outcome: TaskFinished | TaskFailed
) -> None:
    """The outcome is, or will be, reported."""
    running(core)
    reported = core.received(A, outcome)

    assert core.cancel(A) == ()
    assert (*reported, *core.torn_down(A)) == (Report(A, outcome),)


def test_messages_of_unknown_attempts_are_ignored(core: TaskManagerCore) -> None:
    """Late messages of a runner that is gone."""
    assert core.received(A, TaskRunning()) == core.torn_down(A) == ()


def test_the_death_of_the_engine_fails_what_ran_on_it(core: TaskManagerCore) -> None:
    """Every attempt fails with the engine's cause; a cancelled one is still CANCELED."""
    running(core, A, 0)
    running(core, B, 1)
    core.cancel(B)

    core.engine_died("exit code 137")

    (report,) = core.torn_down(A)
    assert isinstance(report, Report)
    assert isinstance(report.news, TaskFailed)
    assert report.news.failure.kind is FailureKind.ENGINE_LOST
    assert report.news.failure.message == "the Spark engine died: exit code 137"
    assert core.torn_down(B) == (Report(B, TaskCanceled()),)


def test_an_engine_out_of_memory_is_lost_to_all_that_ran_on_it(core: TaskManagerCore) -> None:
    """One of them may have used it up; the others have done nothing. Every failure says what to change."""
    running(core)
    core.engine_died("java.lang.OutOfMemoryError: Java heap space")

    (report,) = core.torn_down(A)
    assert isinstance(report, Report)
    assert isinstance(report.news, TaskFailed)
    assert report.news.failure.kind is FailureKind.ENGINE_LOST
    assert "OutOfMemoryError" in report.news.failure.message


@pytest.mark.parametrize("kind", [FailureKind.ENGINE_LOST, FailureKind.RUNNER_LOST, FailureKind.SPARK_TASK])
def test_a_failure_caused_by_the_engines_death_is_reported_as_that(core: TaskManagerCore, kind: FailureKind) -> None:
    """A runner that only lost its connection knows less than the engine's own cause of death."""
    running(core)
    core.received(A, failed("connection refused", kind))
    core.engine_died("exit code 137")

    (report,) = core.torn_down(A)
    assert isinstance(report, Report)
    assert isinstance(report.news, TaskFailed)
    assert "exit code 137" in report.news.failure.message


def test_an_error_of_user_code_is_reported_although_the_engine_died(core: TaskManagerCore) -> None:
    """It is a reason of its own, not a consequence."""
    running(core)
    core.received(A, failed("division by zero"))
    core.engine_died("exit code 137")

    assert core.torn_down(A) == (Report(A, failed("division by zero")),)


def test_a_dead_engine_admits_no_attempt(core: TaskManagerCore) -> None:
    """The refusal contains the reason."""
    core.engine_died("exit code 137")

    with pytest.raises(Refused, match="the Spark engine is gone: exit code 137"):
        core.deploy(order(A))


def test_a_lost_connection_makes_the_engine_suspect(core: TaskManagerCore) -> None:
    """Until the engine's own cause is known."""
    running(core)
    assert not core.suspects_engine(A)
    core.received(A, failed("connection lost", FailureKind.ENGINE_LOST))
    assert core.suspects_engine(A)
    core.engine_died("exit code 137")
    assert not core.suspects_engine(A)
    assert not core.suspects_engine(B)


def test_a_runner_that_ends_silently_is_not_attributed_to_the_engine(core: TaskManagerCore) -> None:
    """The engine is alive: the runner is what was lost."""
    running(core)

    (report,) = core.torn_down(A)
    assert isinstance(report, Report)
    assert isinstance(report.news, TaskFailed)
    assert report.news.failure.kind is FailureKind.RUNNER_LOST


def test_publishing_again_while_it_is_under_way_changes_nothing(core: TaskManagerCore) -> None:
    """Once it has ended, successfully or not, it may be requested again."""
    publish = PublishFiles(attempt=A, sinks=())

    assert core.publish(publish) == (StartPublishing(publish),)
    assert core.publish(publish) == ()
    assert not core.is_empty()
    core.published(A)
    assert core.is_empty()
    assert core.publish(publish) == (StartPublishing(publish),)


def test_the_next_engine_knows_what_ended_on_the_last_one(core: TaskManagerCore) -> None:
    """A duplicate that arrives after the engine was restarted is harmless, too."""
    running(core)
    core.engine_died("exit code 137")
    core.torn_down(A)

    assert TaskManagerCore(2, core.ended()).deploy(order(A)) == ()


def test_memory_of_ended_attempts_is_bounded(core: TaskManagerCore) -> None:
    """A TaskManager that runs for months stays small; the latest ends are remembered."""
    for number in range(5000):
        core.cancel(attempt_id(number))

    assert core.deploy(order(attempt_id(4999))) == ()
    assert core.deploy(order(attempt_id(0))) != ()


def test_a_killed_attempt_counts_as_cancelled(core: TaskManagerCore) -> None:
    """Also if it was interrupted before; nothing happens once it has ended, or if it never arrived."""
    running(core)
    assert core.kill(A) == (KillTask(A),)
    assert core.received(A, TaskFinished()) == ()
    assert core.kill(A) == (KillTask(A),)
    assert core.torn_down(A) == (Report(A, TaskCanceled()),)
    assert core.kill(A) == ()
    running(core, B)
    core.received(B, TaskFinished())
    assert core.kill(B) == ()


def test_a_lost_attempt_fails_with_that_cause(core: TaskManagerCore) -> None:
    """It is reported once it is torn down; its runner's own report of its death is ignored."""
    running(core)
    stopped = failed("it was stopped", FailureKind.RUNNER_LOST)
    assert core.lose(A, stopped.failure) == (KillTask(A),)
    assert core.received(A, failed("killed by SIGKILL", FailureKind.RUNNER_LOST)) == ()
    assert core.lose(A, stopped.failure) == ()
    assert core.torn_down(A) == (Report(A, stopped),)


def test_a_lost_attempt_that_was_cancelled_stays_cancelled(core: TaskManagerCore) -> None:
    """The cancel has its effect."""
    running(core)
    core.cancel(A)
    assert core.lose(A, failed().failure) == (KillTask(A),)
    assert core.torn_down(A) == (Report(A, TaskCanceled()),)


def test_an_unwanted_attempt_is_cancelled_only_if_it_is_here(core: TaskManagerCore) -> None:
    """One that is not here is not reported, and may still be deployed."""
    running(core)
    assert core.discard(A) == (InterruptTask(A),)
    assert core.discard(B) == ()
    assert core.deploy(order(B, 1)) == (StartTask(order(B, 1)),)


def test_slots_are_used_until_their_attempt_is_over(core: TaskManagerCore) -> None:
    """A failed one uses them until it is torn down, a finished one does not."""
    running(core, A, 0)
    running(core, B, 1)
    assert core.slots_used() == 2
    core.received(A, TaskFinished())
    core.received(B, failed())
    assert core.slots_used() == 1
    core.torn_down(B)
    assert core.slots_used() == 0


@pytest.mark.parametrize("ended", [TaskPhase.CANCELING, TaskPhase.FINISHED, TaskPhase.FAILED])
def test_an_attempt_leaves_its_last_phase_only_by_being_torn_down(ended: TaskPhase) -> None:
    for phase in TaskPhase:
        with pytest.raises(InvariantBroken, match=f"illegal move {ended} -> {phase}"):
            checked_move(TASK_PHASE_MOVES, ended, phase)
