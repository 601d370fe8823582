"""Which nodes get no containers: those that fail again and again, for a while, and never too many of them."""

from __future__ import annotations

from flintlock.yarn.node_failures import ExclusionRules, NodeFailures

RULES = ExclusionRules(failures=2, duration_s=100.0)


def failures(rules: ExclusionRules = RULES, **times_s: tuple[float, ...]) -> NodeFailures:
    found = NodeFailures(rules)
    for at_s, host in sorted((at_s, host) for host, times in times_s.items() for at_s in times):
        found.failed(host, at_s)
    return found


def test_a_node_is_excluded_once_enough_containers_have_failed_there() -> None:
    assert failures(a=(1.0,)).excluded(10, 2.0) == frozenset()
    assert failures(a=(1.0, 2.0), b=(2.0,)).excluded(10, 2.0) == {"a"}


def test_a_failure_counts_for_a_while() -> None:
    found = failures(a=(1.0, 50.0))
    assert found.excluded(10, 100.9) == {"a"}
    assert found.excluded(10, 101.0) == frozenset()
    found.failed("a", 102.0)
    assert found.excluded(10, 102.0) == {"a"}, "with the one of 50 s"


def test_at_most_half_of_the_nodes_are_excluded_those_that_failed_last() -> None:
    found = failures(a=(1.0, 2.0), b=(3.0, 4.0), c=(5.0, 6.0))
    assert found.excluded(4, 7.0) == {"b", "c"}
    assert found.excluded(3, 7.0) == {"c"}
    assert found.excluded(1, 7.0) == frozenset()


def test_without_a_limit_no_node_is_excluded() -> None:
    found = failures(ExclusionRules(failures=0, duration_s=100.0), a=(1.0, 2.0, 3.0))
    assert found.excluded(10, 3.0) == frozenset()
