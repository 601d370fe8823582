"""Durations between two readings of a wall clock."""

from __future__ import annotations

from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.times import elapsed_ms


def test_a_clock_that_was_set_back_gives_no_negative_duration() -> None:
    assert elapsed_ms(1_000, 4_000) == 3_000
    assert elapsed_ms(4_000, 1_000) == 0


def test_a_query_is_not_behind_for_less_than_no_time() -> None:
    figures = QueryFigures(name="q", batch=3, started_ms=1_000, duration_ms=500, behind_since_ms=90_000)
    assert figures.behind_ms == 0
