from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from flintlock.model.backoff import Backoff


@given(failures=st.integers(1, 10_000), initial_s=st.floats(0.001, 100), maximum_s=st.floats(100, 100_000))
def test_delays_grow_to_the_maximum_and_never_beyond(failures: int, initial_s: float, maximum_s: float) -> None:
    backoff = Backoff(initial_s=initial_s, maximum_s=maximum_s)

    delay_s = backoff.delay_s(failures)

    assert initial_s <= delay_s <= maximum_s
    assert backoff.delay_s(failures + 1) in (delay_s * 2, maximum_s)


def test_nothing_is_delayed_before_the_first_failure() -> None:
    assert Backoff(initial_s=1, maximum_s=8).delay_s(0) == 0


def test_delays_never_end() -> None:
    assert list(islice(Backoff(initial_s=1, maximum_s=8).delays(), 6)) == [1, 2, 4, 8, 8, 8]
