"""What a driver knows of its application: its executors, its work, and the metrics of its jobs.

These are read from the status store: Spark collects them anyway, and reading costs no query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from py4j.protocol import Py4JJavaError

from flintlock.model.tasks import TaskMetrics

#: An object of the JVM; py4j has no types for them.
JavaObject: TypeAlias = Any

#: How long counting waits for Spark's events to reach the status store.
FLUSH_MS: Final = 500


def flush_events(context: JavaObject) -> None:
    """Wait briefly until the status store has processed all events."""
    try:
        context.listenerBus().waitUntilEmpty(FLUSH_MS)
    except Py4JJavaError:
        return  # the driver is busy: what has been counted by now is used


def job_ids(context: JavaObject) -> tuple[int, ...]:
    """Return all jobs that the status store retains."""
    return tuple(int(job.jobId()) for job in items(context.statusStore().jobsList(None)))


def executor_count(context: JavaObject) -> int:
    """Return how many executors an application has; none on a local master."""
    return max(0, int(context.getExecutorMemoryStatus().size()) - 1)  # the driver is listed, too


def has_work(context: JavaObject) -> bool:
    """Return whether tasks of an application wait or run."""
    return any(True for _ in items(context.taskScheduler().rootPool().getSortedTaskSetQueue()))


def count(context: JavaObject, jobs: Iterable[int]) -> TaskMetrics:
    """Return what was read, written and run for these jobs."""
    store = context.statusStore()
    stages: list[JavaObject] = []
    for job in jobs:
        for number in items(store.job(job).stageIds()):
            try:
                stages.append(store.lastStageAttempt(number))
            except Py4JJavaError:
                continue  # skipped, or too long ago
    stages = [stage for stage in stages if str(stage.status().toString()) != "SKIPPED"]
    return TaskMetrics(
        read_records=sum(int(stage.inputRecords()) for stage in stages),
        read_bytes=sum(int(stage.inputBytes()) for stage in stages),
        write_records=sum(int(stage.outputRecords()) for stage in stages),
        write_bytes=sum(int(stage.outputBytes()) for stage in stages),
        stages_done=sum(str(stage.status().toString()) == "COMPLETE" for stage in stages),
        stages_total=len(stages),
        tasks_done=sum(int(stage.numCompleteTasks()) for stage in stages),
        tasks_total=sum(int(stage.numTasks()) for stage in stages),
    )


def items(sequence: JavaObject) -> Iterator[JavaObject]:
    """Yield the elements of a Scala sequence."""
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()
