"""Restart strategies, with Flink's keys, defaults and arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintlock.config.configuration import Configuration
from flintlock.jobmaster.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    restart_delay,
    restart_strategy,
)
from flintlock.model.jobs import RestartHistory

FIXED = "restart-strategy.fixed-delay"
EXPONENTIAL = ExponentialDelay(
    initial_s=1.0, longest_s=60.0, multiplier=1.5, jitter=0.1, reset_s=3600.0, attempts=(1 << 31) - 1
)


def delays(strategy: RestartStrategy, *failures_s: float, random: float = 0.5) -> list[float | None]:
    """Return the answers to failures at these times."""
    history, answers = RestartHistory(), list[float | None]()
    for at_s in failures_s:
        history, delay_s = restart_delay(strategy, history, now_ms=round(at_s * 1000), random=random)
        answers.append(delay_s)
    return answers


@pytest.mark.parametrize("name", ["none", "off", "disable"])
def test_none_has_three_names(name: str) -> None:
    assert restart_strategy(Configuration({"restart-strategy.type": name})) == NoRestart()


def test_batch_jobs_are_not_restarted_unless_asked_for() -> None:
    assert restart_strategy(Configuration()) == NoRestart()


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("fixed-delay", FixedDelay(attempts=1, delay_s=1.0)),
        ("failure-rate", FailureRate(failures=1, interval_s=60.0, delay_s=1.0)),
        ("exponential-delay", EXPONENTIAL),
    ],
)
def test_defaults_are_flinks(name: str, strategy: RestartStrategy) -> None:
    assert restart_strategy(Configuration({"restart-strategy.type": name})) == strategy


def test_a_jobs_configuration_beats_the_clusters() -> None:
    cluster = Configuration({"restart-strategy.type": "fixed-delay", f"{FIXED}.attempts": "7"})
    job = {f"{FIXED}.attempts": "3", f"{FIXED}.delay": "10 s"}
    assert restart_strategy(cluster.over(job)) == FixedDelay(attempts=3, delay_s=10.0)
    assert restart_strategy(cluster.over({"restart-strategy.type": "none"})) == NoRestart()


def test_none_gives_up_at_once() -> None:
    assert delays(NoRestart(), 1) == [None]


def test_fixed_delay_tries_so_many_times() -> None:
    assert delays(FixedDelay(attempts=2, delay_s=3.0), 1, 100, 10_000) == [3.0, 3.0, None]


def test_failure_rate_bears_so_many_failures_in_its_interval() -> None:
    strategy = FailureRate(failures=2, interval_s=60.0, delay_s=1.0)
    assert delays(strategy, 0, 30, 59) == [1.0, 1.0, None]
    assert delays(strategy, 0, 30, 61, 92, 123) == [1.0] * 5


def test_exponential_delay_grows_up_to_its_longest() -> None:
    answers = delays(EXPONENTIAL, *range(0, 1200, 60))
    assert answers[:4] == [1.0, 1.5, 2.25, 3.375]
    assert answers[-1] == 60.0


def test_exponential_delay_begins_anew_after_a_calm() -> None:
    assert delays(EXPONENTIAL, 0, 10, 3700, 3710) == [1.0, 1.5, 1.0, 1.5]


def test_exponential_delay_may_give_up() -> None:
    strategy = ExponentialDelay(initial_s=1.0, longest_s=60.0, multiplier=2.0, jitter=0.0, reset_s=3600.0, attempts=2)
    assert delays(strategy, 0, 10, 20) == [1.0, 2.0, None]
    assert delays(strategy, 0, 10, 4000, 4010) == [1.0, 2.0, 1.0, 2.0]


@given(random=st.floats(0, 1), failures=st.lists(st.floats(0, 1e7), min_size=1, max_size=30).map(sorted))
def test_jitter_stays_within_its_part_and_below_the_longest(random: float, failures: list[float]) -> None:
    exact = delays(EXPONENTIAL, *failures)
    for calm, shaken in zip(exact, delays(EXPONENTIAL, *failures, random=random), strict=True):
        assert calm is not None
        assert shaken is not None
        assert abs(shaken - calm) <= calm * 0.1 + 1e-9
        assert shaken <= 60.0
