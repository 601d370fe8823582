"""The progress of a task: Spark's stage metrics, summed over all of the task's actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from flintlock.model.streaming.checkpoints import QueryProgress
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.tasks import TaskMetrics, TaskProgress

#: The least time between two reports that Spark's progress handler sends.
PROGRESS_S: Final = 0.2


class Progress:
    """Progress handler of one Connect session; calls `on_progress` with what it collects."""

    def __init__(self, on_progress: Callable[[TaskProgress], None]) -> None:
        self._on_progress: Final = on_progress
        self._stages: Final[dict[int, Any]] = {}  # by stage id, as last reported by Spark
        self._records = 0  # rows read, by the metrics of executed plans
        self._bytes = 0  # the size of the files that these plans have read
        self._activity = ""  # what the task does now, for display
        self._query: QueryProgress | None = None  # of a streaming task
        self._queries: tuple[QueryFigures, ...] = ()  # of a streaming task or program
        self._reported_s = 0.0

    @property
    def metrics(self) -> TaskMetrics:
        """The sums so far."""
        stages = self._stages.values()
        return TaskMetrics(
            read_records=self._records,
            # A query may end before Spark has reported its last stage.
            read_bytes=sum(stage.num_bytes_read for stage in stages) or self._bytes,
            stages_done=sum(1 for stage in stages if stage.done),
            stages_total=len(stages),
            tasks_done=sum(stage.num_completed_tasks for stage in stages),
            tasks_total=sum(stage.num_tasks for stage in stages),
        )

    def add_read(self, records: int, size: int) -> None:
        """Add what an executed plan has read."""
        self._records += records
        self._bytes += size

    def begin(self, activity: str) -> None:
        """Report that this activity begins."""
        self._activity = activity
        self._report()

    def report_query(self, query: QueryProgress) -> None:
        """Report what a streaming query has committed."""
        self._query = query
        self._report()

    def report_figures(self, queries: tuple[QueryFigures, ...], activity: str | None = None) -> None:
        """Report how the queries of the task are doing, and what it does now. May be called from any thread."""
        self._queries = queries
        self._activity = self._activity if activity is None else activity
        self._report()

    def __call__(self, stages: Iterable[Any] | None, **_: object) -> None:
        """Record the stages of a running action, and report at most every `PROGRESS_S` seconds. Called by PySpark."""
        for stage in stages or ():
            self._stages[stage.stage_id] = stage
        if self._stages and time.monotonic() - self._reported_s >= PROGRESS_S:
            self._report()

    def _report(self) -> None:
        self._reported_s = time.monotonic()
        self._on_progress(
            TaskProgress(metrics=self.metrics, activity=self._activity, query=self._query, queries=self._queries)
        )
