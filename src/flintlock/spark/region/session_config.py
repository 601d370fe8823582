"""What a task's Spark session is set to. Without PySpark: the pool sets warm sessions up by the same rule."""

from __future__ import annotations

from flintlock.model.tasks import DeployTask


def default_config(slots: int) -> dict[str, str]:
    """Return what a session is set to if its job says nothing: UTC, and a shuffle partition for each slot."""
    return {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": str(max(slots, 1))}


def session_config(task: DeployTask) -> dict[str, str]:
    """Return what the task's session is set to: what the job says beats the defaults, its deployment beats both."""
    own = {key: value for key, value in task.graph.config.items() if key.startswith("spark.")}
    return {**default_config(len(task.slots)), **own, **task.session_config}
