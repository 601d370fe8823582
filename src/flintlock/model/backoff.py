"""How long to wait before the next try of something that failed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final

from msgspec import Struct

_MOST_DOUBLINGS: Final = 62  # beyond that every delay is the maximum, and floats stay small


class Backoff(Struct, frozen=True, kw_only=True):
    """Delays that double with each failure in a row, from the initial one up to the maximum."""

    initial_s: float
    maximum_s: float

    def delay_s(self, failures: int) -> float:
        """Return the delay after so many failures in a row: none after no failure, never more than the maximum."""
        if failures <= 0:
            return 0.0
        return min(self.maximum_s, self.initial_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))

    def delays(self) -> Iterator[float]:
        """Yield the delay after the first failure, after the second one, and so on, without end."""
        return map(self.delay_s, count(1))
