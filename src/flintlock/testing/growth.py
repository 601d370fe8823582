"""Whether anything grows with the number of jobs that ever ran: `python -m flintlock.testing.growth --jobs 2000`.

A simulated cluster with real components runs job after job. Tasks fail and are restarted, the leader changes, and jobs
expire. After each tenth of the jobs it is counted what there is: records and their bytes, files, tasks of the loop,
objects and memory of the process. After the first tenth none of it may grow. No step of the loop may take long, however
many jobs there were before.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from argparse import ArgumentParser
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, TypeVar

import psutil
from msgspec import Struct

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobVertex, vertex_id
from flintlock.model.jobs import JobQuery, JobSubmission
from flintlock.model.operations import Operation, Result, Sink, Source, Sql
from flintlock.testing.simulation.cluster import SimulatedCluster
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.invariants import MAX_STEP_S
from flintlock.testing.simulation.network import SimulatedProcess
from flintlock.testing.simulation.silence import silence_simulation
from flintlock.testing.simulation.users.operations import DurableChanges
from flintlock.testing.virtual_time import VirtualTimeLoop, run_virtual

T = TypeVar("T")

TENTHS: Final = 10
MOST_GROWTH: Final = 1.1  # by which a figure may differ: a run is a matter of chance
_CLIENTS: Final = 8
_RETENTION_S: Final = 60.0
_LIVENESS: Final = (
    "watch_liveness"  # calls of dead leaders, which a simulated connection, unlike a real one, does not end
)
_SETTLE_S: Final = 3 * _RETENTION_S  # after each tenth: all of its jobs expire
_CONFIG: Final = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "200 ms",
}


class Footprint(Struct, frozen=True, kw_only=True):
    """What there is after some jobs have run and expired."""

    jobs: int  # so far
    records: int
    record_bytes: int
    files: int  # other than what jobs have published
    tasks: int
    objects: int
    rss: int


class GrowthRun:
    """One cluster and the jobs that are run on it."""

    def __init__(self, jobs: int, seed: int = 1) -> None:
        self._jobs: Final = jobs
        self._random: Final = Random(seed)
        self._cluster: Final = SimulatedCluster(
            self._random,
            Faults(spark_failures=0.4, until_s=float("inf"), work_s=1.0),
            job_managers=2,
            settings={"job-result-store.retention": f"{_RETENTION_S:g} s"},
        )
        self._client: SimulatedProcess | None = None  # while it runs
        self._next = 0  # the number of the next job
        self.restarts = 0  # attempts after a first one
        self.longest_step_s = 0.0  # processor time of one step of the loop, but for those that count
        self.counts: Final[list[Footprint]] = []

    def run(self) -> list[Footprint]:
        """Run all jobs; return what there was after each tenth of them."""
        run_virtual(self._main())
        return self.counts

    async def _main(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._cluster.run(), name="cluster")
            self._client = self._cluster.network.process("client")
            for tenth in range(1, TENTHS + 1):
                async with asyncio.TaskGroup() as clients:
                    for number in range(_CLIENTS):
                        clients.create_task(self._submit_until(self._jobs * tenth // TENTHS), name=f"client-{number}")
                self._cluster.crash(self._cluster.leader(), "a tenth of the jobs has run")
                await asyncio.sleep(_SETTLE_S)
                await self._count_apart()
            running.cancel()

    async def _count_apart(self) -> None:
        """Count, and leave the step in which that is done out of the longest one."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            self.longest_step_s = max(self.longest_step_s, loop.longest_step_s)
        self.counts.append(self._count())
        await asyncio.sleep(0)
        if isinstance(loop, VirtualTimeLoop):
            loop.longest_step_s = 0.0

    async def _submit_until(self, last: int) -> None:
        while self._next < last:
            number, self._next = self._next, self._next + 1
            graph = _graph(number)
            await self._ask(lambda gateway, graph=graph: gateway.submit_job(_submission(graph)))
            while not await self._has_ended(graph.job_id):  # noqa: ASYNC110 (a job is polled, as clients do)
                await asyncio.sleep(1.0)
            self._forget_observations()

    async def _has_ended(self, job_id: JobId) -> bool:
        try:
            job = await self._ask(lambda gateway: gateway.job(JobQuery(job_id=job_id)))
        except NotFound:
            return True  # it has expired
        if job.status.globally_terminal:
            self.restarts += sum(execution.attempt > 0 for execution in job.executions)
            self.restarts += sum(job.attempts_omitted.values())
        return job.status.globally_terminal

    async def _ask(self, call: Callable[[DispatcherGateway], Awaitable[T]]) -> T:
        """Call the leader until it answers. Raises NotFound."""
        while True:
            name = self._random.choice(self._cluster.job_managers)
            try:
                return await call(self._process().connect(DispatcherGateway, name))
            except NotFound:
                raise
            except FlintlockError:
                await asyncio.sleep(0.3)

    def _process(self) -> SimulatedProcess:
        if self._client is None:
            raise RuntimeError("the clients have not begun")
        return self._client

    def _forget_observations(self) -> None:
        """Drop what the simulation itself collects, after each job: thousands of jobs would leave holes in the heap."""
        self._cluster.trace.clear()
        self._cluster.spark.ledger.clear()
        self._cluster.spark.starts.clear()

    def _count(self) -> Footprint:
        cluster, records = self._cluster, self._cluster.durable.records
        self._forget_observations()
        cluster.changes = DurableChanges(records)
        stored = [
            *records.graphs.values(),
            *(payload for _, payload in records.quarantined.values()),
            *(payload for regions in records.progress.values() for payload in regions.values()),
            *records.histories.values(),
            *(entry.payload for entry in records.results.values()),
            *(entry.snapshot for entry in records.ended.values()),
            *records.operations.values(),
            *(key.encode() for key in records.keys),
        ]
        gc.collect()
        return Footprint(
            jobs=self._next,
            records=len(stored),
            record_bytes=sum(map(len, stored)),
            files=sum(not path.startswith("out/") or "/." in path for path in cluster.spark.files.content),
            tasks=sum(_LIVENESS not in task.get_name() for task in asyncio.all_tasks()),
            objects=len(gc.get_objects()),
            rss=psutil.Process().memory_info().rss,
        )


def growth(counts: list[Footprint]) -> dict[str, float]:
    """Return by which factor each figure has grown from the first tenths to the last ones.

    The largest of three tenths each: how much there is at one time depends on chance.
    """
    early, late = counts[1:4], counts[-3:]
    figures = ("records", "record_bytes", "files", "tasks", "objects", "rss")
    return {
        name: max(getattr(each, name) for each in late) / max(1, *(getattr(each, name) for each in early))
        for name in figures
    }


def _submission(graph: JobGraph) -> JobSubmission:
    return JobSubmission(graph=graph, idempotency_key=graph.name, digest=graph.name)


def _graph(number: int) -> JobGraph:
    """Return a job with a blocking result, rows for the user, and files in one of few targets."""
    job_id = JobId(f"{number:032x}")
    steps: list[tuple[str, Operation, tuple[str, ...], Exchange]] = [
        ("source", Source(format="parquet", paths=("in",)), (), Exchange.PIPELINED),
        ("clean", Sql(query="SELECT 1"), ("source",), Exchange.BLOCKING),
        ("top", Result(), ("clean",), Exchange.PIPELINED),
        ("out", Sink(format="parquet", path=f"out/{number % (2 * _CLIENTS)}"), ("clean",), Exchange.PIPELINED),
    ]
    return JobGraph(
        job_id=job_id,
        name=f"job-{number}",
        vertices=tuple(
            JobVertex(
                id=vertex_id(job_id, name),
                name=StepName(name),
                operation=operation,
                inputs=tuple(map(StepName, inputs)),
                exchange=exchange,
            )
            for name, operation, inputs, exchange in steps
        ),
        parallelism=1,
        config=_CONFIG,
    )


def main() -> int:
    """Run the jobs and print what there is after each tenth; return 1 if a bound is exceeded."""
    parser = ArgumentParser(prog="python -m flintlock.testing.growth")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(  # noqa: S606 (the same interpreter, the same arguments)
            sys.executable,
            [sys.executable, "-m", "flintlock.testing.growth", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    silence_simulation()
    run = GrowthRun(arguments.jobs, arguments.seed)
    for counts in run.run():
        _print(
            f"{counts.jobs:7} jobs: {counts.records} records of {counts.record_bytes} bytes, {counts.files} files, "
            f"{counts.tasks} tasks, {counts.objects} objects, {counts.rss >> 20} MB"
        )
    factors = growth(run.counts)
    _print(f"{run.restarts} restarts; grown by " + ", ".join(f"{name} {value:.2f}" for name, value in factors.items()))
    _print(f"longest step of the loop: {run.longest_step_s * 1000:.0f} ms")
    return 0 if is_within_bounds(factors, run.longest_step_s) else 1


def is_within_bounds(factors: dict[str, float], longest_step_s: float) -> bool:
    """Return whether nothing has grown, and no step of the loop has taken long."""
    return max(factors.values()) <= MOST_GROWTH and longest_step_s <= MAX_STEP_S


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
