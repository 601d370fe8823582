"""Nodes on which containers fail again and again, decided: which ones get no further containers.

A node is excluded once as many containers as configured have failed there, and until that many failures are no longer
recent. However many fail, at most half of the nodes are excluded: then the cause is not a node, and an application
without nodes would wait for ever.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec import Struct


class ExclusionRules(Struct, frozen=True, kw_only=True):
    """When nodes are excluded, as configured."""

    failures: int  # 0: never
    duration_s: float  # how long a failure counts


class NodeFailures:
    """The failures of one application by the names of nodes. Equal calls in equal order give equal answers."""

    def __init__(self, rules: ExclusionRules) -> None:
        self._rules: Final = rules
        self._failures: Final[dict[str, deque[float]]] = {}  # when they happened; forgotten when they no longer count

    def failed(self, node: str, now_s: float) -> None:
        """A container on this node could not be started, or has failed."""
        if self._rules.failures:
            self._failures.setdefault(node, deque(maxlen=self._rules.failures)).append(now_s)

    def excluded(self, nodes: int, now_s: float) -> frozenset[str]:
        """Return the names of those that get no containers now, of so many nodes."""
        for node, times in list(self._failures.items()):
            while times and now_s - times[0] >= self._rules.duration_s:
                times.popleft()
            if not times:
                del self._failures[node]
        full = [node for node, times in self._failures.items() if len(times) >= self._rules.failures]
        latest_first = sorted(full, key=lambda node: (-self._failures[node][-1], node))
        return frozenset(latest_first[: nodes // 2])
