"""Figures of streaming queries: sums over their parts, and when a query falls behind."""

from __future__ import annotations

import pytest
from msgspec import structs

from flintlock.model.streaming.query_figures import (
    FALLS_BEHIND_MS,
    OperatorFigures,
    QueryFigures,
    SourceFigures,
    interval_ms,
    since_behind,
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
