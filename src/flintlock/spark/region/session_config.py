"""What a task's Spark session is set to. Without PySpark: the pool sets warm sessions up by the same rule."""

from __future__ import annotations

from flintlock.config.configuration import Configuration
from flintlock.model.tasks import DeployTask


def default_config(slots: int) -> dict[str, str]:
    """Return what a session is set to if its job says nothing: UTC, and a shuffle partition for each slot."""
    return {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": str(max(slots, 1))}


def session_config(task: DeployTask) -> dict[str, str]:
    """Return what the task's session is set to: the job's own settings over the defaults."""
    return {**default_config(len(task.slots)), **Configuration(task.graph.config).spark()}
