"""Figures of streaming queries: sums over their parts, and when a query falls behind."""

from __future__ import annotations

import pytest
from msgspec import structs

from flintlock.model.streaming.query_figures import (
    FALLS_BEHIND_MS,
    IDLE_MS,
    OperatorFigures,
    QueryFigures,
    SourceFigures,
    interval_ms,
    since_behind,
    with_running,
    without_data,
)


def figures(started_ms: int, duration_ms: int = 100, backlog: int | None = None, every_ms: int = 0) -> QueryFigures:
    source = SourceFigures(description="s", backlog=backlog)
    return QueryFigures(
        name="q", started_ms=started_ms, duration_ms=duration_ms, interval_ms=every_ms, sources=(source,)
    )


def followed(*batches: QueryFigures) -> QueryFigures:
    last: QueryFigures | None = None
    for batch in batches:
        last = structs.replace(batch, behind_since_ms=since_behind(last, batch))
    assert last is not None
    return last


def test_batches_that_take_longer_than_their_interval_are_behind_since_the_first_of_them() -> None:
    batches = [figures(1000 * n, duration_ms=1500, every_ms=1000) for n in range(1, 80)]
    last = followed(figures(500, every_ms=1000), *batches)
    assert (last.behind_since_ms, last.behind_ms) == (1000, 79_000 + 1500 - 1000)
    assert last.falls_behind
    assert not followed(*batches[:10]).falls_behind, "not for long"
    assert followed(*batches, figures(90_000, every_ms=1000)).behind_ms == 0, "one that is in time ends it"


def test_a_backlog_that_does_not_shrink_is_behind_and_one_that_is_worked_off_is_not() -> None:
    growing = [figures(FALLS_BEHIND_MS * n, backlog=10 * n) for n in range(1, 5)]
    assert followed(*growing).falls_behind
    assert followed(*growing).backlog == 40
    assert followed(*growing, figures(10 * FALLS_BEHIND_MS, backlog=39)).behind_ms == 0
    assert followed(figures(1, backlog=0), figures(2, backlog=0)).behind_ms == 0
    assert followed(figures(1), figures(2)).backlog is None


def test_a_batch_that_runs_for_longer_than_its_interval_is_behind_before_it_ends() -> None:
    known = figures(1000, every_ms=10_000)
    begun = with_running(known, 20_000, 0)
    assert (begun.running_since_ms, begun.behind_ms) == (20_000, 0)
    assert with_running(begun, 20_000, 9_000) is begun
    late = with_running(begun, 20_000, 11_000)
    assert (late.behind_since_ms, late.behind_ms, late.falls_behind) == (20_000, 11_000, False)
    assert with_running(late, 20_000, 20_900) is late, "it is not worth a message"
    assert with_running(late, 20_000, 3_600_000).behind_ms == 3_600_000
    assert with_running(late, 20_000, 3_600_000).falls_behind


def test_a_query_that_was_behind_stays_so_until_its_batch_has_ended_in_time() -> None:
    known = structs.replace(figures(50_000, duration_ms=1500, every_ms=1000), behind_since_ms=10_000)
    assert known.behind_ms == 41_500
    assert with_running(known, 52_000, 500).behind_ms == 42_500
    between = with_running(with_running(known, 52_000, 500), 0, 0)
    assert (between.behind_ms, between.running_since_ms, between.running_ms) == (41_500, 0, 0)


def test_a_query_that_has_no_data_left_is_not_behind_any_more() -> None:
    known = figures(1000, every_ms=1000)
    assert without_data(known) is known
    behind = structs.replace(known, behind_since_ms=500, running_since_ms=900, running_ms=80_000)
    assert behind.falls_behind
    assert without_data(behind) == known


def test_the_rates_of_a_query_that_has_had_no_data_for_a_while_are_zero() -> None:
    """They were those of its latest batch. The next batch has its own."""
    known = structs.replace(figures(1000), input_rate=3.0, processed_rate=2.0)
    known = structs.replace(known, sources=(structs.replace(known.sources[0], input_rate=3.0, backlog=4),))
    assert without_data(known, 5000, IDLE_MS - 1) is known

    idle = without_data(known, 5000, IDLE_MS)
    assert (idle.idle_since_ms, idle.input_rate, idle.processed_rate) == (5000, 0.0, 0.0)
    assert (idle.sources[0].input_rate, idle.sources[0].backlog) == (0.0, 4)
    assert without_data(idle, 5000, 2 * IDLE_MS) is idle, "which is not worth another message"
    rare = structs.replace(known, interval_ms=2 * IDLE_MS)
    assert without_data(rare, 5000, IDLE_MS) is rare, "rows that come once in an interval"


def test_a_batch_without_an_interval_is_never_late() -> None:
    hour = with_running(figures(1000), 20_000, 3_600_000)
    assert (hour.running_since_ms, hour.behind_ms) == (20_000, 0)


def test_a_query_that_has_ended_does_not_fall_behind() -> None:
    last = followed(*(figures(FALLS_BEHIND_MS * n, backlog=10 * n) for n in range(1, 5)))
    assert not structs.replace(last, active=False).falls_behind


def test_state_is_summed_over_the_operators() -> None:
    operators = (
        OperatorFigures(name="a", rows=2, memory=10, late_rows=1),
        OperatorFigures(name="b", rows=3, memory=20, late_rows=4),
    )
    one = QueryFigures(name="q", operators=operators)
    assert (one.state_rows, one.state_bytes, one.late_rows) == (5, 30, 5)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("10 seconds", 10_000), ("1 minute 30 seconds", 90_000), ("500 milliseconds", 500), ("2h", 7_200_000), ("", 0)],
)
def test_intervals_are_read_as_spark_writes_them(text: str, ms: int) -> None:
    assert interval_ms(text) == ms
