"""For how long a loop has stood still, as a thread sees it that looks again and again."""

from __future__ import annotations

import pytest

from flintlock.monitoring.standstill import LONGEST_GAP_S, Standstill


def looked(standstill: Standstill, from_s: float, to_s: float, due_s: float, every_s: float = 0.05) -> float:
    """Look regularly; return what was seen last."""
    seen_s = 0.0
    for look in range(round((to_s - from_s) / every_s) + 1):
        seen_s = standstill.look(from_s + look * every_s, due_s)
    return seen_s


def test_a_beat_that_does_not_come_is_counted_from_when_it_was_due() -> None:
    assert looked(Standstill(), 0.0, 8.0, due_s=1.0) == pytest.approx(7.0, abs=0.01)


def test_a_loop_that_beats_stands_still_at_no_time() -> None:
    standstill = Standstill()
    assert [standstill.look(now / 10, now / 10 + 0.01) for now in range(100)] == [0.0] * 100


def test_each_beat_is_counted_for_itself() -> None:
    standstill = Standstill()
    assert looked(standstill, 0.0, 4.0, due_s=1.0) == pytest.approx(3.0, abs=0.01)
    assert looked(standstill, 4.0, 6.0, due_s=4.5) == pytest.approx(1.5, abs=0.05)


def test_a_process_that_was_paused_has_not_stood_still() -> None:
    """Its loop goes on as soon as its threads do."""
    standstill = Standstill()
    looked(standstill, 0.0, 1.0, due_s=1.01)
    assert standstill.look(3600.0, 1.01) == LONGEST_GAP_S
    assert standstill.look(3600.05, 3600.06) == 0.0


def test_a_first_look_proves_nothing() -> None:
    assert Standstill().look(100.0, 1.0) == 0.0
