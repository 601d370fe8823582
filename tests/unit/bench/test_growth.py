"""What a JobManager needs after many jobs is compared with what it needed after the first ones."""

from __future__ import annotations

import pytest
from bench.growth import Needs, figures, loop_figure


@pytest.mark.parametrize(
    ("last", "exceeded"),
    [
        (Needs(rss_mb=110, descriptors=109, files=10, store_mb=1.4), set[str]()),
        (Needs(rss_mb=120, descriptors=112, files=11, store_mb=1.6), {"rss", "descriptors", "files", "store"}),
    ],
)
def test_each_need_has_a_bound(last: Needs, exceeded: set[str]) -> None:
    first = Needs(rss_mb=100, descriptors=100, files=10, store_mb=1)

    found = list(figures(first, last))

    assert {each.name.removeprefix("growth-") for each in found if not each.met} == exceeded
    assert len(found) == 4


def test_figures_of_leaders_that_were_killed_are_figures_of_their_own() -> None:
    needs = Needs(rss_mb=100, descriptors=100, files=10, store_mb=1)

    killed = list(figures(needs, needs, 2000, killed=True))

    assert {each.name for each in killed}.isdisjoint(each.name for each in figures(needs, needs))
    assert {each.what.partition("after ")[2] for each in killed} == {"2,000 jobs, leader killed 10 times"}


@pytest.mark.parametrize(("slowest_ms", "met"), [(49.0, True), (51.0, False), (float("inf"), False)])
def test_the_loop_of_each_leader_has_a_bound(slowest_ms: float, met: bool) -> None:
    assert loop_figure([3.0, slowest_ms, 12.0], 2000, killed=True, idle_ms=2.0).met is met
