"""What REST returns about one step: its subtask, its times, its TaskManager. Names and types are Flink's.

A step has one subtask: the current attempt at its region (what Flink divides further is Spark's to divide).
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from flintlock.api.base import ApiStruct, CamelCase, KebabCase
from flintlock.api.jobs import VertexMetrics

UNASSIGNED = "(unassigned)"
"""Flink's text for the location of an attempt that has none yet."""


class Subtask(KebabCase, frozen=True, kw_only=True):
    """The current attempt at a step's region. `status-duration` is -1 for states that it has not been in."""

    subtask: int
    status: str
    attempt: int
    endpoint: str
    start_time: int
    end_time: int
    duration: int
    metrics: VertexMetrics
    taskmanager_id: str
    status_duration: dict[str, int]
    start_time_once_more: int = field(name="start_time")  # as older clients of Flink read it


class Spread(ApiStruct, frozen=True, kw_only=True):
    """How a number is spread over the subtasks."""

    min: int
    max: int
    avg: int
    sum: int
    median: int
    p25: int
    p75: int
    p95: int


class Aggregated(KebabCase, frozen=True, kw_only=True):
    """The numbers of all subtasks together."""

    metrics: dict[str, Spread]
    status_duration: dict[str, Spread]


class VertexDetails(CamelCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/vertices/:vertexid."""

    id: str
    name: str
    parallelism: int
    max_parallelism: int
    now: int
    subtasks: list[Subtask]
    aggregated: Aggregated


class SubtaskTimes(ApiStruct, frozen=True, kw_only=True):
    """When a subtask entered each state; 0 for states that it has not been in."""

    subtask: int
    endpoint: str
    duration: int
    timestamps: dict[str, int]


class VertexTimes(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/vertices/:vertexid/subtasktimes."""

    id: str
    name: str
    now: int
    subtasks: list[SubtaskTimes]


class VertexTaskManager(KebabCase, frozen=True, kw_only=True):
    """What of a step runs on one TaskManager."""

    endpoint: str
    status: str
    start_time: int
    end_time: int
    duration: int
    metrics: VertexMetrics
    status_counts: dict[str, int]
    taskmanager_id: str
    aggregated: Aggregated


class VertexTaskManagers(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/vertices/:vertexid/taskmanagers."""

    id: str
    name: str
    now: int
    taskmanagers: list[VertexTaskManager]


class VertexAccumulators(KebabCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/vertices/:vertexid/accumulators: Spark's accumulators are not shown here."""

    id: str
    user_accumulators: list[Any]


class SubtaskAccumulators(KebabCase, frozen=True, kw_only=True):
    """One subtask's accumulators."""

    subtask: int
    attempt: int
    endpoint: str
    user_accumulators: list[Any]


class SubtasksAccumulators(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/vertices/:vertexid/subtasks/accumulators."""

    id: str
    parallelism: int
    subtasks: list[SubtaskAccumulators]


class JobAccumulators(KebabCase, frozen=True, kw_only=True):
    """GET /jobs/:jobid/accumulators: as a client of Flink expects them, and always empty."""

    job_accumulators: list[Any]
    user_task_accumulators: list[Any]
    serialized_user_task_accumulators: dict[str, str]
