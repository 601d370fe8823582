"""Runs that are about one situation: what happens by chance in few other runs happens in these again and again.

A run is drawn with a `Random` of its own, seeded with the run's seed, so that all other runs stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from msgspec import Struct, structs

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import Exchange, JobVertex, Resources, vertex_id
from flintlock.model.operations import SaveMode, Sink, Source, Sql
from flintlock.testing.simulation.fault_draws import LONG_LEASE_S
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.workload import CPU, MEMORY, ObservedJob

SITUATION_RUNS: Final = 0.16
MEMBER_RUNS: Final = 0.06  # of the others: about single members of the cluster that are hindered
CONTAINER_RUNS: Final = 0.04  # of the rest: about containers of YARN and the attempts of their application


class Situation(Struct, frozen=True):
    """What goes wrong in a run, and what its jobs are like."""

    name: str
    faults: Faults
    shape: Callable[[Random, ObservedJob], None]


def draw_situation(seed: int) -> tuple[Random, Situation] | None:
    """Return the situation that a run is about, with the `Random` that shapes its jobs; None for most runs."""
    for kind, share, situations in (
        ("lives", SITUATION_RUNS, _SITUATIONS),
        ("members", MEMBER_RUNS, _OF_MEMBERS),
        ("containers", CONTAINER_RUNS, _OF_CONTAINERS),
    ):
        random = Random(f"{kind}-{seed}")
        if random.random() < share:
            name = random.choice(list(situations))
            faults, shape = situations[name]
            return random, Situation(name, faults(random), shape)
    return None


def _parts_of_results(random: Random) -> Faults:
    """One task makes several blocking results, of which some are lost."""
    return Faults(
        lost_results=random.choice([6, 12, 20]),
        joins=True,
        work_s=random.choice([4.0, 10.0]),
        engine_crashes=random.choice([0, 0, 2]),
        cancels=0.1,
        until_s=random.choice([20.0, 40.0]),
    )


def _with_several_results(random: Random, job: ObservedJob) -> None:
    """Let a task make a second blocking result beside each that it makes; some later steps read both."""
    job_id, vertices = job.graph.job_id, list(job.graph.vertices)
    beside: dict[StepName, StepName] = {}
    for vertex in job.graph.vertices:
        if vertex.exchange is Exchange.BLOCKING:
            name = beside[vertex.name] = StepName(f"{vertex.name}_more")
            vertices.append(structs.replace(vertex, id=vertex_id(job_id, name), name=name))
    shaped = [_reading_also(random, vertex, beside) for vertex in vertices]
    job.graph = structs.replace(job.graph, vertices=tuple(shaped))


def _reading_also(random: Random, vertex: JobVertex, beside: Mapping[StepName, StepName]) -> JobVertex:
    """Return a step that reads the results beside those that it reads; in some cases only these."""
    more = tuple(beside[name] for name in vertex.inputs if name in beside)
    if not more or not isinstance(vertex.operation, Sql):
        return vertex
    others = tuple(name for name in vertex.inputs if name not in beside)
    inputs = random.choice([vertex.inputs, (*others, *more), (*vertex.inputs, *more)])
    return structs.replace(vertex, inputs=inputs)


def _resources_of_attempts(random: Random) -> Faults:
    """Tasks ask for cores and memory, and run on while leaders change."""
    return Faults(
        job_manager_crashes=random.choice([0, 2, 5]),
        engine_crashes=random.choice([0, 2]),
        work_s=random.choice([5.0, 20.0]),
        late_messages=random.choice([0.0, 0.05]),
        until_s=random.choice([20.0, 60.0]),
    )


def _with_resources(random: Random, job: ObservedJob) -> None:
    """Let every step ask for one slot with cores, with memory, or with both: less than a slot's share, or more."""
    wanted = Resources(cpu=random.choice(CPU), memory=random.choice(MEMORY))
    vertices = tuple(structs.replace(vertex, resources=wanted) for vertex in job.graph.vertices)
    job.graph = structs.replace(job.graph, vertices=vertices, parallelism=1)


def _cancels_at_changes_of_leaders(random: Random) -> Faults:
    """A leader dies as soon as a cancel is durable, while some tasks of the job publish and others run."""
    return Faults(
        crash_after_change=0.8,
        cancels=0.95,
        cancels_within_s=20.0,
        work_s=random.choice([6.0, 15.0]),
        publication_step_s=random.choice([2.0, 6.0]),
        task_managers=2,
        until_s=60.0,
    )


def _shorter_leases(random: Random) -> Faults:
    """Leaders grant shorter leases than their predecessors, and a TaskManager hears nothing of one that took over."""
    return Faults(
        job_manager_crashes=random.choice([1, 2]),
        other_timeouts=0.5,
        unheard_successors=1.0,
        heartbeat_timeout_s=30.0,
        work_s=60.0,
        task_managers=2,
        cancels=0.0,
        until_s=60.0,
    )


def _refusals_to_frozen_leaders(random: Random) -> Faults:
    """TaskManagers refuse connections, and the leader reads their heartbeats only after it was frozen."""
    return Faults(
        refusals=random.choice([3, 6]),
        brief_freezes=random.choice([5, 10]),
        work_s=random.choice([10.0, 30.0]),
        task_managers=2,
        session_timeout_s=40.0,
        cancels=0.1,
        until_s=60.0,
    )


def _tasks_of_one_engine(random: Random) -> Faults:
    """An engine that dies takes several tasks of a job with it, again and again."""
    return Faults(
        joins=True,
        engine_crashes=random.choice([4, 8]),
        work_s=random.choice([5.0, 15.0]),
        task_managers=1,
        cancels=0.0,
        until_s=random.choice([40.0, 60.0]),
    )


def _without_restarts(random: Random, job: ObservedJob) -> None:
    """Allow a job no failure but those of the infrastructure, or one; two of its tasks run at a time."""
    job.retries = random.choice([0, 0, 1])
    config = {name: value for name, value in job.graph.config.items() if not name.startswith("restart-strategy")}
    if job.retries:
        config |= {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.attempts": str(job.retries)}
    job.graph = structs.replace(job.graph, parallelism=1, config=config)


def _deadlines(random: Random) -> Faults:
    """Jobs work longer than their timeouts allow, under several leaders."""
    return Faults(
        job_manager_crashes=random.choice([2, 4, 8]),
        work_s=random.choice([20.0, 40.0]),
        cancels=0.0,
        until_s=60.0,
    )


def _with_a_timeout(random: Random, job: ObservedJob) -> None:
    """Give a job a timeout."""
    job.timeout_s = random.choice([10.0, 20.0, 40.0])
    config = {**job.graph.config, "job.timeout": f"{job.timeout_s:g} s"}
    job.graph = structs.replace(job.graph, config=config)


def _with_independent_tasks(random: Random, job: ObservedJob) -> None:
    """Let a job have two to four tasks that do not read each other's results: some publish while others run."""
    job_id, tasks = job.graph.job_id, range(random.randint(2, 4))
    sources = [(f"source{n}", Source(format="parquet", paths=("in",)), ()) for n in tasks]
    sinks = [(f"out{n}", _sink(job, n), (f"source{n}",)) for n in tasks]
    vertices = tuple(
        JobVertex(
            id=vertex_id(job_id, name),
            name=StepName(name),
            operation=operation,
            inputs=tuple(map(StepName, inputs)),
            exchange=Exchange.PIPELINED,
            parallelism=None,
        )
        for name, operation, inputs in (*sources, *sinks)
    )
    job.graph = structs.replace(job.graph, vertices=vertices, parallelism=1)


def _sink(job: ObservedJob, number: int) -> Sink:
    return Sink(format="parquet", path=f"out/{job.key}-{number}", mode=SaveMode.OVERWRITE)


def _members_that_cannot_write(random: Random) -> Faults:
    """Single JobManagers read the stores and cannot write, in some cases until another one leads; or none can."""
    return Faults(
        read_only_members=random.choice([1, 2, 4]),
        engine_crashes=random.choice([0, 2]),
        work_s=random.choice([4.0, 15.0]),
        job_managers=random.choice([2, 3]),
        full_disks=random.choice([0, 1, 2]),
        until_s=60.0,
    )


def _broken_ports(random: Random) -> Faults:
    """JobManagers refuse all connections from some moment on, and keep their sessions."""
    return Faults(
        broken_ports=random.choice([1, 2]),
        engine_crashes=random.choice([0, 1]),
        work_s=random.choice([4.0, 20.0]),
        job_managers=random.choice([2, 3]),
        until_s=60.0,
    )


def _containers_that_are_lost(random: Random) -> Faults:
    """YARN writes containers off that run on, gives attempts up that go on, and is away."""
    return Faults(
        containers=True,
        lost_containers=random.choice([1, 3, 6]),
        abandoned_attempts=random.choice([0, 1, 3]),
        absences_of_yarn=random.choice([0, 1]),
        job_manager_crashes=random.choice([0, 1, 3]),
        task_manager_crashes=random.choice([0, 2]),
        work_s=random.choice([10.0, 30.0]),
        deaths_noticed=random.random() < 0.7,
        job_managers=random.choice([2, 3]),
        task_managers=1,
        until_s=60.0,
    )


def _attempts_of_an_application(random: Random) -> Faults:
    """The JobManager dies again and again, and the containers run on: all tasks are adopted."""
    return Faults(
        containers=True,
        absences_of_yarn=random.choice([0, 0, 1]),
        job_manager_crashes=random.choice([3, 6]),
        crash_at_step=random.choice([0.0, 0.01]),
        work_s=random.choice([10.0, 30.0]),
        heartbeat_timeout_s=LONG_LEASE_S,
        job_managers=1,
        task_managers=1,
        cancels=0.1,
        until_s=60.0,
    )


def _as_drawn(_: Random, job: ObservedJob) -> None:
    """Leave a job as it was drawn."""


def _in_one_slot(_: Random, job: ObservedJob) -> None:
    """Let each task of a job take one slot, so that several run at a time."""
    job.graph = structs.replace(job.graph, parallelism=1)


_SITUATIONS: Final[Mapping[str, tuple[Callable[[Random], Faults], Callable[[Random, ObservedJob], None]]]] = {
    "parts of results": (_parts_of_results, _with_several_results),
    "resources of attempts": (_resources_of_attempts, _with_resources),
    "cancels at changes of leaders": (_cancels_at_changes_of_leaders, _with_independent_tasks),
    "shorter leases": (_shorter_leases, _in_one_slot),
    "refusals to frozen leaders": (_refusals_to_frozen_leaders, _in_one_slot),
    "tasks of one engine": (_tasks_of_one_engine, _without_restarts),
    "deadlines": (_deadlines, _with_a_timeout),
}
#: Drawn for themselves, so that the runs about other situations stay as they are.
_OF_MEMBERS: Final[Mapping[str, tuple[Callable[[Random], Faults], Callable[[Random, ObservedJob], None]]]] = {
    "members that cannot write": (_members_that_cannot_write, _as_drawn),
    "broken ports": (_broken_ports, _as_drawn),
}
#: Likewise.
_OF_CONTAINERS: Final[Mapping[str, tuple[Callable[[Random], Faults], Callable[[Random, ObservedJob], None]]]] = {
    "containers that are lost": (_containers_that_are_lost, _with_independent_tasks),
    "attempts of an application": (_attempts_of_an_application, _with_independent_tasks),
}
