"""Which processes are started again, and when. Time is a number here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintlock.host.processes.supervision import (
    BY_INTENT,
    ObservedProcess,
    ProcessFailed,
    ProcessGivenUp,
    ProcessLeftEnded,
    StartProcess,
    Supervision,
    SupervisionEffect,
    SupervisionPolicy,
)
from flintlock.model.backoff import Backoff

POLICY = SupervisionPolicy(backoff=Backoff(initial_s=1.0, maximum_s=8.0), max_failures=3, interval_s=100.0)
RUNS = ObservedProcess(running=True)
KILLED = ObservedProcess(running=False, reason="it was killed")


def ended(code: int) -> ObservedProcess:
    return ObservedProcess(running=False, exit_code=code, reason=f"code {code}")


class Machine:
    """A machine with one process, which a supervisor looks at once a second."""

    def __init__(self, policy: SupervisionPolicy = POLICY) -> None:
        self.supervision = Supervision(policy)
        self.now_s = 0.0
        self.process = RUNS
        self.after_start = RUNS  # what becomes of the process when it is started
        self.starts: list[float] = []
        self.effects: list[SupervisionEffect] = []

    def look(self, times: int = 1, pause_s: float = 1.0) -> list[SupervisionEffect]:
        """Look so often; return what followed."""
        begun = len(self.effects)
        for _ in range(times):
            self.now_s += pause_s
            for effect in self.supervision.observe(self.now_s, {"taskmanager-0": self.process}):
                self.effects.append(effect)
                if effect == StartProcess("taskmanager-0"):
                    self.starts.append(self.now_s)
                    self.process = self.after_start
        return self.effects[begun:]


@pytest.mark.parametrize("end", [KILLED, ended(4), ended(5), ended(1)], ids=["killed", "4", "5", "1"])
def test_a_process_that_fails_is_started_again_after_a_delay(end: ObservedProcess) -> None:
    machine = Machine()
    machine.look(3)

    machine.process = end
    assert machine.look() == [ProcessFailed(name="taskmanager-0", reason=end.reason, failures=1, delay_s=1.0)]
    assert machine.look() == [StartProcess("taskmanager-0")]
    assert machine.look(50) == []


@pytest.mark.parametrize("code", sorted(BY_INTENT))
def test_a_process_that_ended_by_intent_is_never_started_again(code: int) -> None:
    machine = Machine()
    machine.look()

    machine.process = ended(code)
    (effect,) = machine.look(200)

    assert effect == ProcessLeftEnded(name="taskmanager-0", reason=f"code {code}", exit_code=code)
    assert machine.supervision.all_ended()


def test_the_delays_double_and_too_many_failures_are_given_up() -> None:
    machine = Machine()
    machine.process = machine.after_start = KILLED

    effects = machine.look(1000)

    assert [effect.delay_s for effect in effects if isinstance(effect, ProcessFailed)] == [1.0, 2.0, 4.0]
    assert len(machine.starts) == 3
    assert effects[-1] == ProcessGivenUp(name="taskmanager-0", reason="it was killed", failures=4)
    assert machine.supervision.given_up() == {"taskmanager-0": "it was killed"}
    assert not machine.supervision.all_ended()


def test_failures_are_forgotten_after_the_interval() -> None:
    machine = Machine()
    for _ in range(20):
        machine.process = KILLED
        assert len(machine.look(2)) == 2
        machine.look(99)

    assert len(machine.starts) == 20


def test_a_process_that_someone_starts_after_it_was_given_up_is_supervised_anew() -> None:
    machine = Machine()
    machine.process = machine.after_start = KILLED
    machine.look(60)
    assert machine.supervision.given_up()

    machine.process = machine.after_start = RUNS
    machine.look()
    assert machine.supervision.given_up() == {}
    machine.process = KILLED
    assert machine.look(2) == [
        ProcessFailed(name="taskmanager-0", reason="it was killed", failures=1, delay_s=1.0),
        StartProcess("taskmanager-0"),
    ]


def test_a_supervisor_that_was_paused_counts_one_failure_for_what_it_has_missed() -> None:
    machine = Machine()
    machine.look()

    machine.process = KILLED
    (failed,) = machine.look(pause_s=86_400.0)

    assert isinstance(failed, ProcessFailed)
    assert (failed.failures, failed.delay_s) == (1, 1.0)


def test_a_new_supervisor_continues_from_what_it_sees() -> None:
    seen = {"jobmanager": RUNS, "taskmanager-0": KILLED, "taskmanager-1": ended(0)}
    supervision = Supervision(POLICY)

    assert [type(effect) for effect in supervision.observe(5.0, seen)] == [ProcessFailed, ProcessLeftEnded]
    assert supervision.observe(6.0, seen) == (StartProcess("taskmanager-0"),)


def test_a_process_that_is_expected_no_more_is_forgotten() -> None:
    supervision = Supervision(POLICY)
    supervision.observe(1.0, {"taskmanager-0": KILLED, "taskmanager-1": RUNS})

    assert supervision.observe(9.0, {"taskmanager-1": RUNS}) == ()
    assert not supervision.all_ended()


@given(
    st.lists(
        st.tuples(st.sampled_from(["runs", "killed", "fails", "stopped"]), st.floats(0.1, 50.0), st.booleans()),
        max_size=60,
    )
)
def test_whatever_happens_no_start_follows_an_end_by_intent_and_starts_are_bounded(
    story: list[tuple[str, float, bool]],
) -> None:
    machine = Machine()
    looks = {"runs": RUNS, "killed": KILLED, "fails": ended(5), "stopped": ended(0)}
    for what, pause_s, comes_up in story:
        if what == "runs" or machine.process is RUNS:  # only what runs can end; someone may start it at any time
            machine.process = looks[what]
        machine.after_start = RUNS if comes_up else KILLED
        before = machine.process
        for effect in machine.look(2, pause_s):
            if isinstance(effect, StartProcess):
                assert before.exit_code not in BY_INTENT

    for first, later in zip(machine.starts, machine.starts[POLICY.max_failures + 1 :], strict=False):
        assert later - first >= POLICY.interval_s or any(isinstance(e, ProcessGivenUp) for e in machine.effects)
