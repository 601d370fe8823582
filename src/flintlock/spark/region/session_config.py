"""The settings of a task's Spark session. Imports no PySpark: the pool configures warm sessions by the same rule."""

from __future__ import annotations

from flintlock.config.configuration import Configuration
from flintlock.model.tasks import DeployTask


def default_config(slots: int) -> dict[str, str]:
    """Return the settings of a session whose job has none: UTC, and one shuffle partition for each slot."""
    return {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": str(max(slots, 1))}


def session_config(task: DeployTask) -> dict[str, str]:
    """Return the settings of the task's session: the job's own over the defaults."""
    return {**default_config(len(task.slots)), **Configuration(task.graph.config).spark()}
