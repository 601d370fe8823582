"""The metric of log lines that a process could not write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.host.logs.log_output import QueuedLogOutput


class DroppedLogLines(Collector):
    """`flintlock_log_lines_dropped_total` of one output."""

    def __init__(self, output: QueuedLogOutput) -> None:
        self._output: Final = output

    def collect(self) -> Iterable[Metric]:
        """Return the counter."""
        yield CounterMetricFamily(
            "flintlock_log_lines_dropped", "Log lines that could not be written.", value=self._output.dropped
        )
