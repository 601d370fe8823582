"""Runs a Dispatcher for tests: stores in memory, fakes of its neighbours, faults by the name of a store's step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.endpoint import Dispatcher, dispatching
from flintlock.dispatcher.metrics import DispatcherMetrics
from flintlock.dispatcher.recovery import recover
from flintlock.dispatcher.services import DispatcherServices, TermServices
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model.errors import InvariantBroken, NotFound
from flintlock.model.ids import BlobKey, Epoch, FencingToken, InstanceId, JobId, RegionId, StepName, TaskManagerId
from flintlock.model.jobgraph import Artifact, JobGraph, JobVertex, Versions, vertex_id
from flintlock.model.jobs import JobQuery, JobSubmission
from flintlock.model.operations import Result, Source
from flintlock.model.states import JobStatus
from flintlock.model.tasks import RegionPhase, RegionRecord, ResultRows, TaskFinished
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterFactory, FakeJobMasterRunner
from flintlock.testing.fakes.fake_resourcemanager import FakeResourceManager
from flintlock.testing.fakes.fake_savepoints import FakeSavepoints
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices, MemoryStores
from flintlock.testing.virtual_time import now_ms

T = TypeVar("T")

VERSIONS: Final = Versions(flintlock="0.1.0", python="3.11.9", pyspark="4.3.0")
A: Final = JobId("a" * 32)
B: Final = JobId("b" * 32)
C: Final = JobId("c" * 32)
CODE: Final = BlobKey("sha256-" + "1" * 64)


def graph(job_id: JobId = A, *, name: str = "job", blobs: Iterable[BlobKey] = ()) -> JobGraph:
    """A small valid graph: a source, and a result named `top`."""
    return JobGraph(
        job_id=job_id,
        name=name,
        vertices=(
            JobVertex(
                id=vertex_id(job_id, "rows"), name=StepName("rows"), operation=Source(format="csv", paths=("in",))
            ),
            JobVertex(
                id=vertex_id(job_id, "top"), name=StepName("top"), operation=Result(), inputs=(StepName("rows"),)
            ),
        ),
        artifacts=tuple(Artifact(name=f"lib{index}.zip", blob=blob) for index, blob in enumerate(blobs)),
    )


def submission(
    job_id: JobId = A, *, key: str | None = None, digest: str = "d", blobs: Iterable[BlobKey] = ()
) -> JobSubmission:
    """A submission of a small valid graph."""
    return JobSubmission(graph=graph(job_id, blobs=blobs), idempotency_key=key, digest=digest)


def rows(name: str = "top") -> ResultRows:
    """One row."""
    return ResultRows(name=StepName(name), rows=1, truncated=False, arrow=b"arrow", json=b"{}")


def record(
    job_id: JobId,
    *,
    staging: tuple[str, ...] = (),
    materialised: str | None = None,
    results: tuple[ResultRows, ...] = (),
) -> RegionRecord:
    """A stored record of a job's first region."""
    paths = {} if materialised is None else {StepName("rows"): materialised}
    return RegionRecord(
        job_id=job_id,
        region=RegionId(0),
        phase=RegionPhase.FINISHED,
        attempt=0,
        task_manager=TaskManagerId("tm"),
        instance=InstanceId("tm-1"),
        outcome=TaskFinished(materialised=paths, results=results),
        staging=staging,
    )


class Faults:
    """The step hook of the memory stores: records every step, blocks or fails those that a test names."""

    def __init__(self) -> None:
        self.seen: Final[list[str]] = []
        self.failing: dict[str, Exception] = {}
        self.failing_once: dict[str, Exception] = {}  # each goes when it has been raised
        self.held: Final[dict[str, asyncio.Event]] = {}
        self.dead = False  # no step returns any more
        self._current_to_live: int | None = None

    async def __call__(self, name: str) -> None:
        if self._current_to_live is not None:
            self.dead = self._current_to_live == 0
            self._current_to_live -= not self.dead
        if self.dead:
            await asyncio.Event().wait()
        self.seen.append(name)
        if name in self.held:
            await self.held[name].wait()
        if name in self.failing:
            raise self.failing[name]
        if name in self.failing_once:
            raise self.failing_once.pop(name)
        await asyncio.sleep(0)

    def hold(self, name: str) -> asyncio.Event:
        """Block every caller at this step until the event is set."""
        self.held[name] = asyncio.Event()
        return self.held[name]

    def die_after(self, steps: int) -> None:
        """Let so many steps return, and then none, as if the process had been killed."""
        self._current_to_live = steps

    def clear_death(self) -> None:
        """Let all steps return again, as in a new process."""
        self._current_to_live, self.dead = None, False

    def writes(self, *, since: int = 0) -> list[str]:
        """Return the writes about jobs that took effect, by name, in order."""
        written = ("put", "remove", "quarantine", "create_dirty", "mark_clean", "record")
        done = [name.removesuffix(":after") for name in self.seen[since:] if name.endswith(":after")]
        return [name for name in done if name.rpartition(".")[2] in written and name != "retention_clock.record"]


class FakeBlobs:
    """Satisfies BlobReferences; the blobs in `missing` are reported as missing."""

    def __init__(self) -> None:
        self.references: dict[JobId, tuple[BlobKey, ...]] = {}
        self.missing: set[BlobKey] = set()
        self.fail_with: Exception | None = None
        self.unreadable: Exception | None = None  # raised when blobs are checked
        self.expired_after_s: list[float] = []  # one entry for each call
        self.ended_expired_after_s: list[float] = []

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        wanted = tuple(keys)
        for key in wanted:
            if key in self.missing:
                raise NotFound(f"there is no blob {key}")
        self.references[job_id] = wanted

    async def release(self, job_id: JobId) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        self.references.pop(job_id, None)

    async def find_damaged(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        if self.unreadable is not None:
            raise self.unreadable
        return {key: f"no blob {key} is stored here" for key in keys if key in self.missing}

    async def retain_only(self, jobs: Mapping[JobId, Collection[BlobKey]]) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        self.references = {job_id: tuple(keys) for job_id, keys in jobs.items()}

    async def expire_unreferenced(self, older_than_s: float, ended_s: float) -> tuple[BlobKey, ...]:
        self.expired_after_s.append(older_than_s)
        self.ended_expired_after_s.append(ended_s)
        if self.fail_with is not None:
            raise self.fail_with
        return ()


class DispatcherHarness:
    """One JobManager with fakes. The cluster outlasts every Dispatcher that leads on it."""

    def __init__(
        self,
        cluster: MemoryCluster | None = None,
        config: Mapping[str, str] | None = None,
        holder: str = "jm",
        *,
        unshared_checkpoints: str = "",
    ) -> None:
        self.cluster: Final = cluster or MemoryCluster()
        self.faults: Final = Faults()
        self.blobs: Final = FakeBlobs()
        self.resource_manager: Final = FakeResourceManager()
        self.job_masters: Final = FakeJobMasterFactory(now_ms)
        self.ha: Final = MemoryHaServices(self.cluster, holder, self.faults)
        self.registry: Final = CollectorRegistry()
        self.lost_leaders: dict[JobId, int] | Exception = {}  # while they worked on each job
        self.clock_error_ms = 0  # by which the JobManager's wall clock is ahead
        self.savepoints: Final = FakeSavepoints()
        self.services: Final = DispatcherServices(
            blobs=self.blobs,
            configuration=Configuration(config),
            versions=VERSIONS,
            clock_ms=lambda: now_ms() + self.clock_error_ms,
            boot_time_s=lambda: asyncio.get_running_loop().time(),
            metrics=DispatcherMetrics(self.registry),
            lost_leaders=self._read_lost_leaders,
            count_lost_leader=self._count_lost_leader,
            savepoints=self.savepoints,
            unshared_checkpoints=unshared_checkpoints,
        )

    async def _read_lost_leaders(self, job_ids: Collection[JobId]) -> Mapping[JobId, int]:
        if isinstance(self.lost_leaders, Exception):
            raise self.lost_leaders
        self.lost_leaders = {job_id: count for job_id, count in self.lost_leaders.items() if job_id in job_ids}
        return self.lost_leaders

    async def _count_lost_leader(self, job_id: JobId) -> None:
        if isinstance(self.lost_leaders, Exception):
            raise self.lost_leaders
        self.lost_leaders = {**self.lost_leaders, job_id: self.lost_leaders.get(job_id, 0) + 1}

    def stores(self) -> MemoryStores:
        """Stores of a term that is newer than any before."""
        epoch = self.cluster.token.epoch + 1
        self.cluster.token = FencingToken(Epoch(epoch), f"jm-{epoch}")
        return self.ha.stores(self.cluster.token)

    def term(self, stores: Stores) -> TermServices:
        token = self.cluster.token
        return TermServices(
            stores=stores,
            job_masters=self.job_masters,
            resource_manager=self.resource_manager,
            gate=LeaderGate(lambda: self.ha.election.paused(token)),
        )

    def disconnect_stores(self) -> None:
        """Disconnect the present leader from the stores: it writes nothing."""
        self.cluster.pauses[self.cluster.token] = "the stores are out of reach"

    def reconnect_stores(self) -> None:
        """Let every leader reach the stores again."""
        self.cluster.pauses.clear()

    @asynccontextmanager
    async def leading(self) -> AsyncGenerator[Dispatcher]:
        """Lead one term: recover, dispatch; on exit it is as if leadership was lost.

        A test that waits for something that never happens fails after a (virtual) month.
        """
        stores = self.stores()
        async with asyncio.timeout(30 * 86400):
            term = self.term(stores)
            recovery = await recover(stores, self.services, term.gate)
            async with dispatching(self.services, term, recovery) as dispatcher:
                yield dispatcher

    def runner(self, job_id: JobId = A) -> FakeJobMasterRunner:
        return self.job_masters.runner(job_id)

    async def submitted(self, dispatcher: DispatcherGateway, job_id: JobId = A) -> FakeJobMasterRunner:
        """Submit a job and return its runner, which runs."""
        await dispatcher.submit_job(submission(job_id))
        await until(lambda: any(runner.job.graph.job_id == job_id for runner in self.job_masters.made))
        await until(lambda: self.runner(job_id).status is JobStatus.RUNNING)
        return self.runner(job_id)


async def until(condition: Callable[[], bool]) -> None:
    """Let virtual time pass until the condition holds. One that never will is a Livelock or fails here."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("the condition never came to hold")


async def empty(dispatcher: Dispatcher) -> None:
    """Wait until the Dispatcher has no more registered jobs."""

    def is_empty() -> bool:
        try:
            dispatcher.assert_empty()
        except InvariantBroken:
            return False
        return True

    await until(is_empty)


async def status(dispatcher: Dispatcher, job_id: JobId = A) -> JobStatus:
    """Return the job's status as a client sees it."""
    return (await dispatcher.job(JobQuery(job_id=job_id))).status


async def outcome_of(call: Awaitable[T]) -> T | Exception:
    """Return what a call answers, or the error that it raises."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the test checks it
        return error


async def settle() -> None:
    """Let everything that can happen now happen."""
    await asyncio.sleep(0.01)
