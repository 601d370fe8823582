"""The jobs of a simulated run: drawn from the run's `Random`, with all that makes their lives differ.

Graphs branch and join over blocking results, so that one region can lose some of several inputs. Some jobs ask for
cores and memory beside slots: more than a slot's share, so that slots can be free and of no use. Steps, outputs,
restart strategies and the time of a cancel differ from job to job.
"""

from __future__ import annotations

from random import Random
from typing import Final

from msgspec import Struct, field, structs

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, Resources, vertex_id
from flintlock.model.operations import Operation, Result, SaveMode, Sink, Source, Sql
from flintlock.model.slots import Hardware
from flintlock.model.states import JobStatus

UNLIMITED: Final = 1000
#: How often jobs are restarted after failures of their own: never, once, or without a limit in practice.
_RETRIES: Final = (0, 1, UNLIMITED)
_GIB: Final = 1 << 30

#: What every TaskManager of the simulation has, for two slots.
HARDWARE: Final = Hardware(cpu_cores=4, physical_memory=8 * _GIB)
#: What steps ask for: less than a slot's share, or more. 0 asks for nothing in particular.
_CPU: Final = (0.0, 0.5, 2.0, 3.0)
_MEMORY: Final = (0, _GIB, 6 * _GIB)


class ObservedJob(Struct):
    """What one client requested for one job, and the answers that it received."""

    key: str
    graph: JobGraph
    retries: int  # as its restart strategy allows
    acknowledged: JobId | None = None
    cancel_sent: bool = False  # whether or not it was answered
    cancelled_ids: set[JobId] = field(default_factory=set[JobId])  # whose cancel was accepted
    statuses: list[JobStatus] = []  # as they were observed, without repeats


def draw_job(random: Random, number: int) -> ObservedJob:
    """Draw a job, with a restart strategy and a key of its own."""
    retries = random.choice([UNLIMITED, *_RETRIES])
    return ObservedJob(key=f"key-{number}", graph=_draw_graph(random, number, retries), retries=retries)


def draw_cancel_delay_s(random: Random) -> float | None:
    """Draw how long after its acknowledgement a job is cancelled: at once, while it starts, later, or not at all."""
    if random.random() >= 0.35:
        return None
    return random.uniform(0.0, random.choice([0.0, 0.2, 2.0, 8.0]))


def with_id(graph: JobGraph, job_id: JobId) -> JobGraph:
    """Return the same job under another id."""
    return structs.replace(
        graph,
        job_id=job_id,
        vertices=tuple(structs.replace(v, id=vertex_id(job_id, v.name)) for v in graph.vertices),
    )


class _Step(Struct, frozen=True):
    name: str
    operation: Operation
    inputs: tuple[str, ...] = ()
    exchange: Exchange = Exchange.PIPELINED


def _draw_graph(random: Random, number: int, retries: int) -> JobGraph:
    """Draw a graph: a source, then one to four groups of steps with a blocking result each, and sinks or results.

    A group reads the source or one to three earlier blocking results. Some outputs belong to the task that makes the
    blocking result, the others read it.
    """
    job_id = JobId(f"{number:032x}")
    steps = [_Step("source", Source(format="parquet", paths=("in",)))]
    results: list[str] = []
    for group in range(random.choice([1, 2, 2, 3, 4])):
        work, last = f"work{group}", f"step{group}"
        some = random.sample(results, min(len(results), random.choice([1, 1, 2, 3])))
        steps.append(_Step(work, Sql(query="SELECT 1"), tuple(some) or ("source",)))
        steps.append(_Step(last, Sql(query="SELECT 1"), (work,), Exchange.BLOCKING))
        steps += [
            _Step(f"out{group}_{output}", _draw_output(random, number, group, output), (random.choice([work, last]),))
            for output in range(random.randint(1, 2))
        ]
        results.append(last)
    resources = random.random() < 0.3
    return JobGraph(
        job_id=job_id,
        name=f"job-{number}",
        vertices=tuple(
            JobVertex(
                id=vertex_id(job_id, step.name),
                name=StepName(step.name),
                operation=step.operation,
                inputs=tuple(StepName(item) for item in step.inputs),
                exchange=step.exchange,
                parallelism=None,
                resources=Resources(cpu=random.choice(_CPU), memory=random.choice(_MEMORY)) if resources else None,
            )
            for step in steps
        ),
        parallelism=random.choice([1, 2, None]),
        config=_strategy(retries),
    )


def _draw_output(random: Random, number: int, group: int, output: int) -> Operation:
    if random.random() < 0.3:
        return Result()
    mode = random.choice([SaveMode.OVERWRITE, SaveMode.APPEND])
    return Sink(format="parquet", path=f"out/{number}-{group}-{output}", mode=mode)


def _strategy(retries: int) -> dict[str, str]:
    if not retries:
        return {}
    return {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(retries),
        "restart-strategy.fixed-delay.delay": "200 ms",
    }
