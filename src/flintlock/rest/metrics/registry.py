"""Metrics in two forms: Prometheus' text and Flink's lists of ids.

One CollectorRegistry has the metrics of this process; its components register there, and so does REST for submissions.
What there is *now* (jobs by state, slots, TaskManagers' own numbers) is read from the gateways for each scrape, so that
nothing of it can become stale; it replaces families of the same name that a component has registered.

Rejected: keeping gauges of jobs and slots up to date. A JobManager that no longer leads would still show them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flintlock.api import cluster as shapes
from flintlock.model.jobs import JobCounts
from flintlock.model.slots import RegisteredTaskManagers, TaskManagerInfo

Values: TypeAlias = Mapping[str, float]
"""Numbers by the id that Flink's metrics endpoints know them by."""

AGGREGATIONS: Final = ("min", "max", "avg", "sum")
_NOT_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_]")
_SUBMISSION_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ClusterView(Struct, frozen=True):
    """What the leader knows at one time."""

    jobs: JobCounts
    resources: RegisteredTaskManagers


class SubmissionTimer:
    """Counts submissions by outcome and duration. One for each registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        durations = Histogram(
            "flintlock_rest_submission_seconds",
            "How long POST /jobs took to be answered, uploads included.",
            ["outcome"],
            registry=registry,
            buckets=_SUBMISSION_BUCKETS,
        )
        # All of them now: a series that starts with its first event hides that event from rate().
        self._accepted: Final = durations.labels("accepted")
        self._refused: Final = durations.labels("refused")
        self._failed: Final = durations.labels("failed")

    def observe(self, status: int, duration_s: float) -> None:
        """Record the outcome of a submission."""
        outcome = self._accepted if status < 400 else self._refused if status < 500 else self._failed
        outcome.observe(duration_s)


def families(registry: CollectorRegistry, now: ClusterView | None) -> list[Metric]:
    """Return the metrics of this process and, if there is a leader, those of the cluster (`now`)."""
    fresh = [_gauge("flintlock_leader", "Whether this JobManager can reach a leader.", float(now is not None))]
    if now is not None:
        fresh += _cluster_families(now)
        fresh += _task_manager_families(now.resources.task_managers)
    names = {family.name for family in fresh}
    return [*(family for family in registry.collect() if family.name not in names), *fresh]


def prometheus_text(found: Sequence[Metric]) -> bytes:
    """Write families as Prometheus reads them."""
    return generate_latest(_Collected(found))


def jobmanager_values(found: Sequence[Metric], now: ClusterView | None) -> dict[str, float]:
    """Return the same by id: a sample's name, and the values of its labels behind dots; and what Flink has names for.

    Buckets of histograms are left out: their sum and count are here, the buckets in /metrics.
    """
    values = {
        _id(sample.name, sample.labels.values()): sample.value
        for family in found
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }
    if now is not None:
        task_managers = now.resources.task_managers
        values["numRunningJobs"] = now.jobs.running
        values["numRegisteredTaskManagers"] = len(task_managers)
        values["numPendingTaskManagers"] = now.resources.starting
        values["taskSlotsTotal"] = sum(tm.slots for tm in task_managers)
        values["taskSlotsAvailable"] = sum(tm.free_slots for tm in task_managers)
    return values


def task_manager_values(info: TaskManagerInfo) -> dict[str, float]:
    """Return what a TaskManager measures of itself."""
    return {_plain(name): value for name, value in info.metrics.items()}


def listed(values: Values, wanted: Sequence[str]) -> list[shapes.Metric]:
    """Return all ids, or the values of those that are wanted. Unknown ones are left out, as Flink does it."""
    if not wanted:
        return [shapes.Metric(id=name) for name in sorted(values)]
    return [shapes.Metric(id=name, value=number_text(values[name])) for name in wanted if name in values]


def aggregated(
    many: Sequence[Values], wanted: Sequence[str], aggregations: Iterable[str]
) -> list[shapes.AggregatedMetric]:
    """Return all ids of many, or the wanted ones with these aggregations of their values."""
    if not wanted:
        return [shapes.AggregatedMetric(id=name) for name in sorted({name for values in many for name in values})]
    found: list[shapes.AggregatedMetric] = []
    for name in wanted:
        numbers = [float(values[name]) for values in many if name in values]
        if numbers:
            total = sum(numbers)
            summary = {"min": min(numbers), "max": max(numbers), "avg": total / len(numbers), "sum": total}
            found.append(shapes.AggregatedMetric(id=name, **{key: summary[key] for key in aggregations}))
    return found


def number_text(value: float) -> str:
    """Write a number as Flink does: integers without a decimal point."""
    if value != value:  # noqa: PLR0124 the one number that differs from itself
        return "NaN"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _cluster_families(now: ClusterView) -> list[Metric]:
    jobs = GaugeMetricFamily("flintlock_jobs", "Jobs by state.", labels=["state"])
    for status, count in now.jobs.by_status.items():
        jobs.add_metric([status], count)
    slots = GaugeMetricFamily("flintlock_slots", "Slots by use.", labels=["use"])
    task_managers = now.resources.task_managers
    free = sum(tm.free_slots for tm in task_managers)
    slots.add_metric(["free"], free)
    slots.add_metric(["taken"], sum(tm.slots for tm in task_managers) - free)
    return [
        jobs,
        slots,
        _gauge("flintlock_taskmanagers", "Registered TaskManagers.", len(task_managers)),
        _gauge("flintlock_taskmanagers_starting", "TaskManagers that are starting.", now.resources.starting),
        _gauge("flintlock_slot_requests_waiting", "Requests in the queue.", now.resources.waiting),
    ]


def _task_manager_families(task_managers: Iterable[TaskManagerInfo]) -> list[Metric]:
    """Return a family for each number that TaskManagers measure, with a sample for each that does."""
    made: dict[str, GaugeMetricFamily] = {}
    for info in task_managers:
        own: dict[str, float] = {}  # two names may become one: then the last counts
        for name, value in info.metrics.items():
            own[f"flintlock_taskmanager_{_NOT_A_NAME.sub('_', name)}"] = value
        for name, value in own.items():
            family = made.setdefault(name, GaugeMetricFamily(name, "Measured by TaskManagers.", labels=["taskmanager"]))
            family.add_metric([info.id], value)
    return [*made.values()]


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _id(name: str, labels: Iterable[str]) -> str:
    return ".".join([name, *map(_plain, labels)])


def _plain(text: str) -> str:
    """Replace the separator of `get=a,b`."""
    return text.replace(",", "_")


class _Collected(Collector):
    """Families that were collected already."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found: Final = found

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._found
