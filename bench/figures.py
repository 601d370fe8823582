"""What a figure is, and how numbers become one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from msgspec import Struct


class Bound(Struct, frozen=True, kw_only=True):
    """What must be reached."""

    limit: float
    at_least: bool = False

    def met_by(self, value: float) -> bool:
        """Return whether the value reaches it."""
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


class Figure(Struct, frozen=True, kw_only=True):
    """One measured figure."""

    name: str
    what: str
    value: float
    unit: str
    bound: Bound
    against: str
    low: float | None = None  # the middle half of the measurements lies between these two
    high: float | None = None
    samples: int = 1
    flink: str = ""  # what Flink 2.3 does, where it was measured
    note: str = ""
    measure: str = ""  # what measured it: a name of bench.__main__, set there

    @property
    def met(self) -> bool:
        """Whether the bound was reached."""
        return self.bound.met_by(self.value)


class Spread(Struct, frozen=True):
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float
    samples: int


def spread(values: Sequence[float]) -> Spread:
    """Return median and quartiles."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return Spread(ordered[0], ordered[0], ordered[0], len(ordered))
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(median, low, high, len(ordered))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of all lies."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Compare interleaved pairs: the spread of the quotients of neighbours."""
    return spread([a / b for a, b in zip(mine, theirs, strict=True)])
