"""Figures of a control plane with 1,000 TaskManagers: simulated, in one process, on one core.

All components are the real ones; network, stores and Spark are simulated, on virtual time. So the processor time of a
run is that of the JobManagers and of all TaskManagers together: more than a JobManager needs.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from random import Random
from typing import Final

from msgspec import Struct

from bench.figures import Bound, Figure
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.jobs import JobSubmission
from flintlock.model.operations import Result, Sql
from flintlock.model.states import JobStatus
from flintlock.monitoring.garbage import keep_collections_short
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.network import SimulatedProcess
from flintlock.testing.simulation.silence import silence_simulation
from flintlock.testing.virtual_time import run_virtual

SIZES: Final = (100, 1000)
SLOTS: Final = 8
JOBS_EACH: Final = 10  # for each TaskManager
WORK_S: Final = 120.0  # what a job takes at most
_CLIENTS: Final = 16
_PAUSE_S: Final = 0.2
_SETTINGS: Final = {"heartbeat.interval": "10 s", "heartbeat.timeout": "50 s"}


class Run(Struct, frozen=True, kw_only=True):
    """What one simulated run needed: seconds of its processor, and of its virtual time."""

    jobs: int
    core_s: float  # from the first submission to the last end
    lasted_s: float  # the same, on virtual time
    change_core_s: float  # from the death of the leader until the next one has all jobs and all TaskManagers
    change_s: float  # the same, on virtual time
    finished: int
    violations: tuple[str, ...]

    @property
    def change_total_s(self) -> float:
        """At most so long a leader change takes on one core: waiting and working, one after the other."""
        return self.change_core_s + self.change_s


def many_taskmanagers() -> Iterator[Figure]:
    """10,000 jobs on 1,000 TaskManagers with eight slots each, and a change of leader among them."""
    runs: dict[int, Run] = {}
    for size in SIZES:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            runs[size] = run = process.submit(simulate, size).result()
        sys.stderr.write(f"  {size} TaskManagers: {run}\n")
        if run.finished != run.jobs or run.violations:
            raise RuntimeError(f"{run.finished} of {run.jobs} jobs have finished; {run.violations[:3]}")
    small, large = (runs[size] for size in SIZES)
    size = f"{SIZES[-1]:,} TaskManagers x {SLOTS} slots, {large.jobs:,} jobs"
    yield Figure(
        name="thousand-taskmanagers-growth",
        what=f"processor time for each job, {size}, against {SIZES[0]} TaskManagers and {small.jobs:,} jobs",
        value=(large.core_s / large.jobs) / (small.core_s / small.jobs), unit="x", bound=Bound(limit=2),
        against=f"{small.core_s / small.jobs * 1e3:.2g} ms and {large.core_s / large.jobs * 1e3:.2g} ms; simulated, "
        "with all TaskManagers in the same process", samples=large.jobs,
    )  # fmt: skip
    yield Figure(
        name="thousand-taskmanagers-leader",
        what=f"{size}: death of the leader -> the next one has all jobs and all TaskManagers",
        value=large.change_total_s, unit="s", bound=Bound(limit=15),
        against=f"{large.change_s:.2g} s of virtual time and {large.change_core_s:.2g} s of one core, added",
    )  # fmt: skip
    yield Figure(
        name="thousand-taskmanagers-core",
        what=f"{size}: share of one core, from the first submission to the last end",
        value=large.core_s / large.lasted_s, unit="", bound=Bound(limit=1),
        against=f"{large.core_s:.3g} s of one core in {large.lasted_s:.3g} s of virtual time; simulated, with all "
        "TaskManagers in the same process",
    )  # fmt: skip


def simulate(size: int) -> Run:
    """Run a cluster of so many TaskManagers, in a process that collects garbage as that of a JobManager does."""
    silence_simulation()
    keep_collections_short()
    return run_virtual(_main(size))


async def _main(size: int) -> Run:
    faults = Faults(until_s=math.inf, work_s=WORK_S, heartbeat_timeout_s=50.0)
    cluster = SimulatedCluster(
        Random(size), faults, job_managers=2, task_managers=size, slots=SLOTS, settings=_SETTINGS
    )
    loop, jobs = asyncio.get_running_loop(), size * JOBS_EACH
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cluster.run(), name="cluster")
        client = cluster.network.process("client")
        await _until_registered(cluster, client, size)
        began_s, began_core_s = loop.time(), time.process_time()
        numbers = iter(range(jobs))
        async with asyncio.TaskGroup() as clients:
            for _ in range(_CLIENTS):
                clients.create_task(_submit(cluster, client, numbers), name="submitting")
        died_s, died_core_s = loop.time(), time.process_time()
        cluster.crash(cluster.leader(), "the change of leader that is measured")
        await _until_listed(cluster, client, jobs)
        await _until_registered(cluster, client, size)
        ready_s, ready_core_s = loop.time(), time.process_time()
        finished = await _until_finished(cluster, client, jobs)
        ended_s, ended_core_s = loop.time(), time.process_time()
        running.cancel()
    return Run(
        jobs=jobs, finished=finished, violations=tuple(cluster.violations),
        core_s=ended_core_s - began_core_s, lasted_s=ended_s - began_s,
        change_core_s=ready_core_s - died_core_s, change_s=ready_s - died_s,
    )  # fmt: skip


async def _submit(cluster: SimulatedCluster, client: SimulatedProcess, numbers: Iterator[int]) -> None:
    for number in numbers:
        graph = _graph(number)
        message = JobSubmission(graph=graph, idempotency_key=graph.name, digest=graph.name)
        while True:
            try:
                await client.connect(DispatcherGateway, cluster.leader()).submit_job(message)
            except FlintlockError:
                await asyncio.sleep(_PAUSE_S)
            else:
                break


async def _until_listed(cluster: SimulatedCluster, client: SimulatedProcess, jobs: int) -> None:
    """Wait until a leader has all jobs."""
    while sum((await _counts(cluster, client)).values()) < jobs:  # noqa: ASYNC110 (polled, as clients do)
        await asyncio.sleep(_PAUSE_S)


async def _until_finished(cluster: SimulatedCluster, client: SimulatedProcess, jobs: int) -> int:
    """Wait until all jobs have ended; return how many have finished."""
    while True:
        counts = await _counts(cluster, client)
        if sum(count for state, count in counts.items() if state.globally_terminal) >= jobs:
            return counts.get(JobStatus.FINISHED, 0)
        await asyncio.sleep(1.0)


async def _counts(cluster: SimulatedCluster, client: SimulatedProcess) -> dict[JobStatus, int]:
    try:
        return dict((await client.connect(DispatcherGateway, cluster.leader()).job_counts()).by_status)
    except FlintlockError:
        return {}


async def _until_registered(cluster: SimulatedCluster, client: SimulatedProcess, size: int) -> None:
    """Wait until a leader has all TaskManagers."""
    while True:
        try:
            overview = await client.connect(ResourceManagerGateway, cluster.leader()).overview()
        except FlintlockError:
            overview = None
        if overview is not None and len(overview.task_managers) == size:
            return
        await asyncio.sleep(_PAUSE_S)


def _graph(number: int) -> JobGraph:
    """Return a job with one task."""
    job_id, query, rows = JobId(f"{number:032x}"), StepName("query"), StepName("rows")
    return JobGraph(
        job_id=job_id, name=f"job-{number}", parallelism=1,
        vertices=(
            JobVertex(id=vertex_id(job_id, query), name=query, operation=Sql(query="SELECT 1")),
            JobVertex(id=vertex_id(job_id, rows), name=rows, operation=Result(), inputs=(query,)),
        ),
    )  # fmt: skip
