"""How far a task is: what Spark tells of its stages, added up over all of the task's actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from flintlock.model.tasks import TaskMetrics, TaskProgress

#: Progress is told at most this often.
PROGRESS_S: Final = 0.2


class Progress:
    """Listens to one Connect session, and tells whoever wants to know."""

    def __init__(self, tell: Callable[[TaskProgress], None]) -> None:
        self._tell: Final = tell
        self._stages: Final[dict[int, Any]] = {}  # the last word on each stage
        self._records = 0  # what plans say that they have read
        self._bytes = 0  # the size of the files that they have opened
        self._activity = ""  # what goes on now
        self._told_s = 0.0

    @property
    def metrics(self) -> TaskMetrics:
        """What is known now."""
        stages = self._stages.values()
        return TaskMetrics(
            read_records=self._records,
            # A query may end before Spark tells of its last stage.
            read_bytes=sum(stage.num_bytes_read for stage in stages) or self._bytes,
            stages_done=sum(1 for stage in stages if stage.done),
            stages_total=len(stages),
            tasks_done=sum(stage.num_completed_tasks for stage in stages),
            tasks_total=sum(stage.num_tasks for stage in stages),
        )

    def read(self, records: int, size: int) -> None:
        """Take what an executed plan tells of its own."""
        self._records += records
        self._bytes += size

    def doing(self, activity: str) -> None:
        """Tell what begins now."""
        self._activity = activity
        self._say()

    def __call__(self, stages: Iterable[Any] | None, **_: object) -> None:
        """Take what Spark tells while an action runs: it calls its progress handlers so."""
        for stage in stages or ():
            self._stages[stage.stage_id] = stage
        if self._stages and time.monotonic() - self._told_s >= PROGRESS_S:
            self._say()

    def _say(self) -> None:
        self._told_s = time.monotonic()
        self._tell(TaskProgress(metrics=self.metrics, activity=self._activity))
