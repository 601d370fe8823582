"""Which delays of event loops `make chaos` takes for a broken promise."""

from __future__ import annotations

import pytest
from tests.chaos.loops import LONGEST_S, LoopDelay, LoopDelays, longest, loop_problems


def delay(seconds: float, *, pid: int = 7, frozen: bool = False) -> LoopDelay:
    return LoopDelay(member="jobmanager-0", pid=pid, seconds=seconds, frozen=frozen)


@pytest.mark.parametrize(
    ("found", "problems"),
    [
        ((), []),
        ((delay(0.3), delay(LONGEST_S, pid=8)), []),
        (
            (delay(0.3), delay(4.0, pid=8)),
            ["the event loop of jobmanager-0 (process 8) stood still for 4.00 s"],
        ),
        ((delay(9.0, frozen=True),), []),
        ((delay(float("inf")),), ["the event loop of jobmanager-0 (process 7) stood still for inf s"]),
    ],
)
def test_a_loop_that_stood_still_is_a_problem_unless_its_process_was_frozen(
    found: tuple[LoopDelay, ...], problems: list[str]
) -> None:
    assert loop_problems(found) == problems


def test_the_worst_of_a_process_is_remembered_when_it_has_ended() -> None:
    """Another process of the same member begins anew."""
    delays = LoopDelays()
    for one in (delay(3.0), delay(0.2), delay(0.1, pid=8)):
        delays.add(one)

    assert delays.found == (delay(3.0), delay(0.1, pid=8))
    assert longest(delays.found) == delay(3.0)


def test_a_process_that_was_frozen_later_is_left_out() -> None:
    delays = LoopDelays()
    delays.add(delay(0.2))
    delays.add(delay(8.0, frozen=True))

    assert delays.found == (delay(8.0, frozen=True),)
    assert longest(delays.found) is None
    assert loop_problems(delays.found) == []
