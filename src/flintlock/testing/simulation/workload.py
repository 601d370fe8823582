"""The jobs of a simulated run: drawn from the run's `Random`, with all that makes their lives differ.

Graphs branch and join over blocking results, so that one region can lose some of several inputs. Some jobs ask for
cores and memory beside slots: more than a slot's share, so that slots can be free and of no use. Steps, outputs,
restart strategies and the time of a cancel differ from job to job. In some runs (`vary_job`) jobs have priorities,
timeouts and attached clients, too.
"""

from __future__ import annotations

import math
from enum import Enum, auto
from random import Random
from typing import Final

from msgspec import Struct, field, structs

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, Resources, vertex_id
from flintlock.model.operations import Operation, Result, SaveMode, Sink, Source, Sql
from flintlock.model.slots import Hardware
from flintlock.model.states import JobStatus
from flintlock.testing.simulation.faults import Faults

UNLIMITED: Final = 1000
#: How often jobs are restarted after failures of their own: never, once, or without a limit in practice.
_RETRIES: Final = (0, 1, UNLIMITED)
_GIB: Final = 1 << 30

#: What every TaskManager of the simulation has, for two slots.
HARDWARE: Final = Hardware(cpu_cores=4, physical_memory=8 * _GIB)
#: What steps ask for: less than a slot's share, or more. 0 asks for nothing in particular.
CPU: Final = (0.0, 0.5, 2.0, 3.0)
MEMORY: Final = (0, _GIB, 6 * _GIB)


#: In how many runs jobs have more of what a user can ask for.
VARIED_RUNS: Final = 0.35


class CancelKind(Enum):
    """How a client cancels its job."""

    COMMAND = auto()
    OPERATION = auto()
    FORCE = auto()


class ObservedJob(Struct):
    """What one client requested for one job, and the answers that it received."""

    key: str
    graph: JobGraph
    retries: int  # as its restart strategy allows
    acknowledged: JobId | None = None
    cancel_sent: bool = False  # whether or not it was answered
    cancelled_ids: set[JobId] = field(default_factory=set[JobId])  # whose cancel was accepted
    statuses: list[JobStatus] = []  # as they were observed, without repeats
    ended: bool = False  # as it was observed last
    submitted_s: float | None = None  # when its client first sent it
    acknowledged_s: float = 0.0
    alive_s: float = 0.0  # when it was last known not to have ended
    working_s: float = 0.0  # when it was last known not to be ending
    ended_s: float = 0.0  # when it was first known to have ended
    cancel_kind: CancelKind = CancelKind.COMMAND
    dropped: bool = False  # an operator has dropped it from the quarantine
    restored: bool = False  # an operator has put it back from the quarantine
    forced: bool = False  # a cancel by force was sent
    rate_s: float = 0.0  # in which time its strategy allows `retries` failures; 0: in all
    timeout_s: float = 0.0  # its `job.timeout`; 0 is none
    await_s: float = 0.0  # how long its client waits for the end in one call; 0: it asks again and again
    attached_s: float = math.inf  # how long its client stays attached, if it is
    left_s: float | None = None  # when its client left
    unheard_s: float = 0.0  # the longest time in which no heartbeat of its client was answered


def draw_job(random: Random, number: int, *, joins: bool = False) -> ObservedJob:
    """Draw a job, with a restart strategy and a key of its own.

    `joins`: its steps read several blocking results, and it outlives the loss of many.
    """
    retries = random.choice([UNLIMITED, *_RETRIES])
    retries = UNLIMITED if joins else retries
    return ObservedJob(key=f"key-{number}", graph=_draw_graph(random, number, retries, joins=joins), retries=retries)


def vary_job(random: Random, job: ObservedJob) -> None:
    """Give a job a priority, a timeout, an attached client, another restart strategy, each in some cases."""
    config = dict(job.graph.config)
    if random.random() < 0.5:
        config["job.priority"] = str(random.randint(-2, 2))
    if random.random() < 0.2:
        job.timeout_s = random.choice([3.0, 20.0, 60.0])
        config["job.timeout"] = f"{job.timeout_s:g} s"
    if random.random() < 0.3:
        _draw_strategy(random, job, config)
    attached = random.random() < 0.2
    client_timeout_s = random.choice([8.0, 20.0])
    if attached and random.random() < 0.6:
        job.attached_s = random.uniform(0.0, 15.0)
    job.graph = structs.replace(job.graph, config=config, client_timeout_s=client_timeout_s if attached else None)
    job.cancel_kind = random.choice([CancelKind.COMMAND, CancelKind.OPERATION, CancelKind.FORCE])
    job.await_s = random.choice([0.0, 0.0, 1.0, 4.0])


def _draw_strategy(random: Random, job: ObservedJob, config: dict[str, str]) -> None:
    """Restart a job after growing delays, or as long as it does not fail too often."""
    if random.random() < 0.5:
        job.retries = random.choice([1, 2, UNLIMITED])
        config |= {
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "100 ms",
            "restart-strategy.exponential-delay.max-backoff": "5 s",
            "restart-strategy.exponential-delay.attempts-before-reset-backoff": str(job.retries),
        }
    else:
        job.retries = random.choice([1, 3])
        interval = random.choice(["2 s", "30 s"])
        job.rate_s = float(interval.removesuffix(" s"))
        config |= {
            "restart-strategy.type": "failure-rate",
            "restart-strategy.failure-rate.max-failures-per-interval": str(job.retries),
            "restart-strategy.failure-rate.failure-rate-interval": interval,
            "restart-strategy.failure-rate.delay": "200 ms",
        }


def draw_cancel_delay_s(random: Random, faults: Faults) -> float | None:
    """Draw how long after its acknowledgement a job is cancelled: at once, while it starts, later, or not at all."""
    if random.random() >= faults.cancels:
        return None
    return random.uniform(0.0, faults.cancels_within_s or random.choice([0.0, 0.2, 2.0, 8.0]))


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


def _draw_graph(random: Random, number: int, retries: int, *, joins: bool) -> JobGraph:
    """Draw a graph: a source, then one to four groups of steps with a blocking result each, and sinks or results.

    A group reads the source or one to three earlier blocking results. Some outputs belong to the task that makes the
    blocking result, the others read it.
    """
    job_id = JobId(f"{number:032x}")
    steps = [_Step("source", Source(format="parquet", paths=("in",)))]
    results: list[str] = []
    for group in range(random.choice([3, 4, 4, 5] if joins else [1, 2, 2, 3, 4])):
        work, last = f"work{group}", f"step{group}"
        some = random.sample(results, min(len(results), random.choice([1, 1, 2, 3])))
        if joins and results:  # two steps read the first result, the next one joins them
            some = results[1:3] if group >= 3 else results[:1]
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
                resources=Resources(cpu=random.choice(CPU), memory=random.choice(MEMORY)) if resources else None,
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
    whole = {"parallelism.default": "0"}  # jobs that set no parallelism ask for all slots of one TaskManager
    if not retries:
        return whole
    return {
        **whole,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": str(retries),
        "restart-strategy.fixed-delay.delay": "200 ms",
    }
