from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flintlock.ha.zookeeper.leadership_deadline import STEP_DOWN_AT, LeadershipDeadline

SESSION = 7


def deadline(timeout_s: float = 10.0, acknowledged_s: float = 100.0) -> LeadershipDeadline:
    return LeadershipDeadline(session=SESSION, timeout_s=timeout_s, acknowledged_s=acknowledged_s)


def test_an_answered_leader_may_write() -> None:
    assert deadline().check(106.9) is None


def test_unanswered_for_seven_tenths_of_the_session_timeout_the_term_is_over() -> None:
    term = deadline()

    reason = term.check(107.0)

    assert reason == "ZooKeeper has not answered for 7.0 s of a session timeout of 10 s"
    assert term.over == reason


def test_each_answer_counts_from_when_its_question_was_sent() -> None:
    term = deadline()

    term.acknowledged(105.0)
    term.acknowledged(103.0)  # an answer that was overtaken

    assert term.ends_s == 112.0
    assert term.check(111.9) is None


def test_from_suspended_on_nothing_is_written_and_back_with_the_session_it_goes_on() -> None:
    term = deadline()

    term.suspended()
    assert term.check(101.0) == "the connection to ZooKeeper is lost"
    assert term.over is None
    term.connected(SESSION, 10.0)

    assert term.check(101.0) is None


def test_suspended_the_clock_runs_on() -> None:
    term = deadline()
    term.suspended()

    term.check(107.0)
    term.connected(SESSION, 10.0)

    assert term.over is not None


def test_a_connection_without_an_answer_is_not_enough() -> None:
    term = deadline()
    term.suspended()
    term.connected(SESSION, 10.0)

    assert term.check(107.0) is not None


def test_lost_ends_it_at_once() -> None:
    term = deadline()

    term.lost()

    assert term.check(100.0) == "the ZooKeeper session has expired"


def test_another_session_means_that_it_was_lost() -> None:
    term = deadline()

    term.connected(SESSION + 1, 10.0)

    assert term.over is not None


def test_what_is_over_stays_over_with_its_first_reason() -> None:
    term = deadline()
    term.end("its latch was removed")

    term.lost()
    term.connected(SESSION, 10.0)
    term.acknowledged(200.0)

    assert term.check(100.0) == "its latch was removed"


def test_the_shortest_timeout_that_was_granted_counts() -> None:
    term = deadline()

    term.connected(SESSION, 4.0)
    assert term.ends_s == 102.8
    term.connected(SESSION, 20.0)
    assert term.ends_s == 102.8


@given(
    st.lists(st.tuples(st.floats(0.001, 3.0), st.sampled_from(["ask", "answered", "suspend", "connect", "look"]))),
    st.floats(0.4, 60.0),
)
def test_it_never_may_write_when_the_ensemble_may_have_let_another_one_lead(
    events: list[tuple[float, str]], timeout_s: float
) -> None:
    """The ensemble receives a request between its sending and its answer, and waits a whole timeout from then."""
    term, now_s = deadline(timeout_s), 100.0
    asked_s: list[float] = []
    acknowledged_s = 100.0  # the earliest moment at which the ensemble can have received the last request of the leader
    for passed_s, event in events:
        now_s += passed_s
        match event:
            case "ask":
                asked_s.append(now_s)
            case "answered" if asked_s:
                acknowledged_s = asked_s.pop(0)
                term.acknowledged(acknowledged_s)
            case "suspend":
                term.suspended()
                asked_s.clear()
            case "connect":
                term.connected(SESSION, timeout_s)
            case _:
                pass
        if term.check(now_s) is None:
            assert now_s < acknowledged_s + timeout_s
            assert now_s < acknowledged_s + STEP_DOWN_AT * timeout_s + 1e-6
