"""The settings of a task's Spark session. Imports no PySpark: the pool configures warm sessions by the same rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.config.options import DEFAULT_PARALLELISM
from flintlock.model.jobgraph import JobType
from flintlock.model.tasks import DeployTask

#: Settings of streaming jobs that they cannot change. With Spark's default, a query ends without an exception when
#: another one starts on a copy of its checkpoint.
STREAMING_CONFIG: Final[Mapping[str, str]] = {"spark.sql.streaming.stopActiveRunOnRestart": "false"}


def default_config(slots: int) -> dict[str, str]:
    """Return the settings of a session whose job has none: UTC, and one shuffle partition for each slot."""
    return {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": str(max(slots, 1))}


def session_config(task: DeployTask, cores: int) -> dict[str, str]:
    """Return the settings of the task's session: the job's own over the defaults. `cores`: of the TaskManager."""
    return {
        **default_config(partitions_of(task, cores)),
        **Configuration(task.graph.config).spark(),
        **(STREAMING_CONFIG if task.graph.job_type is JobType.STREAMING else {}),
    }


def partitions_of(task: DeployTask, cores: int) -> int:
    """Return the number of shuffle partitions of a task: of a streaming query what its user has chosen for the job.

    A query takes one slot, wherever it runs next, and its state keeps its partitions.
    """
    chosen = task.graph.parallelism if task.graph.job_type is JobType.STREAMING else None
    if chosen is None or task.rescale is not None or task.region.parallelism is not None:
        return cores_of(task, cores)
    return chosen


def cores_of(task: DeployTask, cores: int) -> int:
    """Return for how many cores a task divides its work: its slots, or all cores if its user has set no parallelism.

    A streaming query that was rescaled has the partitions that its user has chosen.

    A slot is admission, not a limit: the default of one slot lets many jobs run side by side, and one that is alone
    still uses the whole engine.
    """
    if task.rescale is not None:
        return task.rescale.partitions
    graph, slots = task.graph, max(len(task.slots), 1)
    chosen = slots > 1 or task.region.parallelism or graph.parallelism or DEFAULT_PARALLELISM.key in graph.config
    return slots if chosen else max(cores, 1)
