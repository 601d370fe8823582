"""Which occurrences of a recurring failure are logged."""

from __future__ import annotations

from flintlock.model.failures.repeated_failures import RepeatedFailure


def test_the_first_occurrence_is_due_and_then_only_a_reminder() -> None:
    failure = RepeatedFailure(remind_s=60.0)
    due = [second for second in range(130) if failure.occurred("full", float(second))]
    assert due == [0, 60, 120]


def test_another_reason_is_due_at_once() -> None:
    failure = RepeatedFailure()
    assert failure.occurred("full", 1.0)
    assert failure.occurred("locked", 1.1)
    assert not failure.occurred("locked", 1.2)


def test_after_a_success_the_next_failure_is_the_first_one() -> None:
    failure = RepeatedFailure()
    assert not failure.ended()
    failure.occurred("full", 1.0)
    assert failure.ended()
    assert not failure.ended()
    assert failure.occurred("full", 1.1)
