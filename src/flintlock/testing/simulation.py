"""A whole cluster in one event loop, on virtual time, from a seed.

All rooms are the real ones: DispatcherRunner, Dispatcher, JobMasters, ResourceManager, TaskManagers, put together by
the same composition as the real processes. Only the network, the stores and Spark are simulated. Clients submit jobs,
cancel some, and remember what they were told; meanwhile processes crash: at any step of the stores, before or after
it took effect, and at any moment. Then the faults end, the cluster is given time, and the promises are checked.

A run is a pure function of its seed (and of PYTHONHASHSEED, which `soak` fixes).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping
from contextvars import Context
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct, structs

from flintlock.dispatcher.door import LeaderDoor
from flintlock.dispatcher.runner import DispatcherRunner
from flintlock.dispatcher.services import DispatcherServices
from flintlock.entrypoints.doors import ResourceManagerDoor
from flintlock.entrypoints.term import TermParts
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.ha.memory import MemoryCluster, MemoryHaServices
from flintlock.ha.tenure import STEP_DOWN_AT
from flintlock.model.configuration import Configuration
from flintlock.model.errors import NotFound, Unavailable
from flintlock.model.ids import BlobKey, InstanceId, JobId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import TaskManagerRegistration
from flintlock.taskmanager.endpoint import TaskManager, TaskManagerServices, TokenGuard
from flintlock.testing.fake_spark import FakeSpark, FakeSparkHouse
from flintlock.testing.network import Link, SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import now_ms

JOB_MANAGER: Final = "jobmanager"
VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
_RESTART_S: Final = 1.0
#: What a leader must not send while it does not know whether it leads.
_COMMANDS: Final = frozenset(f"TaskManagerGateway/{name}" for name in ("deploy", "cancel", "publish", "remove_files"))


class Faults(Struct, frozen=True, kw_only=True):
    """What goes wrong, and how often; all of it until `until_s`."""

    crash_at_step: float = 0.0  # probability that the JobManager dies at a step of the stores
    job_manager_crashes: int = 0  # at moments of their own
    task_manager_crashes: int = 0
    engine_crashes: int = 0
    spark_failures: float = 0.0
    work_s: float = 2.0  # what an output of a task takes at most
    late_messages: float = 0.0
    lost_messages: float = 0.0
    duplicates: float = 0.0
    partitions: int = 0  # between the JobManager and a TaskManager, both ways or one
    freezes: int = 0  # of TaskManagers, some past their lease
    lost_results: int = 0  # blocking results that vanish
    store_outages: int = 0  # the JobManager is cut off from the stores, some so long that it steps down
    lost_answers: float = 0.0  # probability that a step of the stores is Unavailable: before it took effect, or after
    session_timeout_s: float = 4.0
    heartbeat_timeout_s: float = 60.0
    until_s: float = 60.0

    @property
    def only_job_managers(self) -> bool:
        """Whether nobody but JobManagers can fail, and no message is lost."""
        return not (
            self.task_manager_crashes
            or self.engine_crashes
            or self.spark_failures
            or self.lost_messages
            or self.partitions
            or self.freezes
            or self.lost_results
        )


class KeptBlobs:
    """Which jobs keep blobs; the simulation's jobs have none, but the Dispatcher's bookkeeping is checked."""

    def __init__(self) -> None:
        self.jobs: set[JobId] = set()

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Keep."""
        self.jobs.add(job_id)

    async def release(self, job_id: JobId) -> None:
        """Release."""
        self.jobs.discard(job_id)

    async def unsound(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        """Miss nothing."""
        return {}

    async def retain_only(self, jobs: Mapping[JobId, object]) -> None:
        """Keep only these."""
        self.jobs &= set(jobs)

    async def expire_unreferenced(self, older_than_s: float) -> tuple[BlobKey, ...]:
        """Remove nothing."""
        return ()


class SimulatedCluster:
    """One JobManager (in many lives), some TaskManagers, and all that outlives them."""

    def __init__(self, random: Random, faults: Faults, *, task_managers: int = 2, slots: int = 2) -> None:
        self.random = random
        self.faults = faults
        self._faulty = Link(
            late=faults.late_messages, max_late_s=5.0, duplication=faults.duplicates, loss=faults.lost_messages
        )
        self.network = SimulatedNetwork(random, self._faulty, self._observe)
        self.durable = MemoryCluster(automatic=True)
        self.spark = FakeSpark(random, work_s=faults.work_s, failures=faults.spark_failures)
        self.story: list[str] = []  # what happened, for whoever reads a failed seed
        self.broken: list[str] = []  # processes that ended by themselves
        self.last_death_s = -1.0  # of a JobManager: what it was only told, and had not stored, is gone
        self.commanded: list[str] = []  # what a leader sent while it was cut off from the stores
        self._reachable = asyncio.Event()  # clear while the JobManager is cut off from the stores
        self._reachable.set()
        self._slots = slots
        self._names = [f"tm-{number}" for number in range(task_managers)]
        self._houses: dict[str, FakeSparkHouse] = {}
        self._lives = 0

    def faulty(self) -> bool:
        """Tell whether things may still go wrong."""
        return asyncio.get_running_loop().time() < self.faults.until_s

    def tell(self, what: str) -> None:
        """Add to the story."""
        self.story.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    async def run(self) -> None:
        """Keep all processes running: whoever dies is started again, as a service manager would."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_job_manager(), name="keep-jobmanager")
            for name in self._names:
                tasks.create_task(self._keep_task_manager(name), name=f"keep-{name}")
            for moment in self._moments(self.faults.job_manager_crashes):
                tasks.create_task(self._crash_later(moment, JOB_MANAGER), name="crash")
            for moment in self._moments(self.faults.task_manager_crashes):
                tasks.create_task(self._crash_later(moment, self.random.choice(self._names)), name="crash")
            for moment in self._moments(self.faults.engine_crashes):
                tasks.create_task(self._crash_engine_later(moment, self.random.choice(self._names)), name="crash")
            for moment in self._moments(self.faults.partitions):
                tasks.create_task(self._cut_later(moment, self.random.choice(self._names)), name="cut")
            for moment in self._moments(self.faults.freezes):
                tasks.create_task(self._freeze_later(moment, self.random.choice(self._names)), name="freeze")
            for moment in self._moments(self.faults.store_outages):
                tasks.create_task(self._cut_off_later(moment), name="cut-off")
            for moment in self._moments(self.faults.lost_results):
                tasks.create_task(self._lose_result_later(moment), name="lose-a-result")
            tasks.create_task(self._calm_down(), name="calm-down")

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        process = self.network.at(name)
        if process is not None and process.alive:
            self.tell(f"{name} dies: {why}")
            process.crash()
            if name == JOB_MANAGER:
                self.last_death_s = asyncio.get_running_loop().time()
                self.durable.depart(name)

    async def _keep_job_manager(self) -> None:
        while True:
            process = self.network.process(JOB_MANAGER)
            self.tell("jobmanager starts")
            await self._death(process, process.spawn(self._job_manager(process), JOB_MANAGER))
            await asyncio.sleep(self.random.uniform(0.1, _RESTART_S))

    async def _keep_task_manager(self, name: str) -> None:
        while True:
            process = self.network.process(name)
            self.tell(f"{name} starts")
            await self._death(process, process.spawn(self._task_manager(process), name))
            await asyncio.sleep(self.random.uniform(0.1, _RESTART_S))

    async def _death(self, process: SimulatedProcess, life: asyncio.Task[None]) -> None:
        await asyncio.wait({life})
        if process.failure is not None:
            self.broken.append(f"{process.name}: {process.failure!r}")
            self.tell(f"{process.name} ended by itself: {process.failure!r}")
            if process.name == JOB_MANAGER:
                self.durable.depart(JOB_MANAGER)

    async def _job_manager(self, process: SimulatedProcess) -> None:
        async def step(name: str) -> None:
            process.require_alive()
            doomed = self.faulty() and self.random.random() < self.faults.crash_at_step
            await asyncio.sleep(self.random.uniform(0.0, 0.01))  # what was sent meanwhile may arrive
            if doomed:
                self.crash(JOB_MANAGER, f"at {name}")
            await self._reach_the_stores(name)
            process.require_alive()

        ha = MemoryHaServices(self.durable, JOB_MANAGER, step)
        configuration = Configuration(
            {"heartbeat.interval": "1 s", "heartbeat.timeout": f"{self.faults.heartbeat_timeout_s:g} s"}
        )
        door = LeaderDoor()
        term = TermParts(
            host=process,
            connector=process,
            resource_manager_door=ResourceManagerDoor(),
            configuration=configuration,
            versions=VERSIONS,
            work_dir="work",
            clock_ms=now_ms,
            random=self.random,
            paused=ha.election.paused,
        )
        services = DispatcherServices(
            blobs=KeptBlobs(), configuration=configuration, versions=VERSIONS, clock_ms=now_ms
        )
        process.serve(DispatcherGateway, door)
        await DispatcherRunner(ha, services, term.open, door).run()

    async def _reach_the_stores(self, name: str) -> None:
        """Return if this step of the stores is answered; one of the election is answered later, never wrongly."""
        if name.startswith("election."):
            await self._reachable.wait()
        elif not self._reachable.is_set():
            raise Unavailable(f"the stores are out of reach at {name}")
        elif self.faulty() and self.random.random() < self.faults.lost_answers:
            self.tell(f"no answer at {name}")
            raise Unavailable(f"no answer at {name}")

    async def _cut_off_later(self, moment_s: float) -> None:
        """Cut the JobManager off from the stores; a leader steps down by its own clock if that lasts too long."""
        await asyncio.sleep(moment_s)
        if not self._reachable.is_set():
            return
        token, patience_s = self.durable.token, STEP_DOWN_AT * self.faults.session_timeout_s
        length_s = self.random.uniform(0.01, 2.0 * patience_s)
        self.tell(f"the stores are out of reach for {length_s:.2f} s")
        self._reachable.clear()
        self.durable.pauses[token] = "the stores are out of reach"
        try:
            await asyncio.sleep(min(length_s, patience_s))
            if length_s > patience_s and self.durable.token == token:
                self.tell("the leader steps down by its own clock")
                self.last_death_s = asyncio.get_running_loop().time()
                self.durable.revoke(JOB_MANAGER)
                await asyncio.sleep(length_s - patience_s)
        finally:
            self.tell("the stores can be reached")
            self._reachable.set()
            del self.durable.pauses[token]

    def _observe(self, sender: str, receiver: str, what: str) -> None:
        if sender == JOB_MANAGER and what in _COMMANDS and not self._reachable.is_set():
            self.commanded.append(f"{what} to {receiver} at {asyncio.get_running_loop().time():.3f}")

    async def _task_manager(self, process: SimulatedProcess) -> None:
        guard = TokenGuard()
        house = self._houses[process.name] = self.spark.house()
        services = TaskManagerServices(
            offer=TaskManagerRegistration(
                id=TaskManagerId(process.name),
                instance=InstanceId(""),
                address=process.address,
                slots=self._slots,
                versions=VERSIONS,
            ),
            house=house,
            resource_manager=lambda: process.connect(ResourceManagerGateway, JOB_MANAGER),
            job_masters=lambda: process.connect(JobMasterGateway, JOB_MANAGER, lambda: guard.token),
            fetch_blob=_no_blobs,
            log_directory=Path("log"),
            prepare_log=lambda _: None,
            new_instance=self._new_instance,
            watch=_Watchdog(house, self.spark.context).watch,
        )
        task_manager = TaskManager(services, guard)
        process.serve(TaskManagerGateway, task_manager, guard.check)
        await task_manager.run()

    def _new_instance(self) -> InstanceId:
        self._lives += 1
        return InstanceId(f"life-{self._lives}")

    def _moments(self, count: int) -> list[float]:
        return [self.random.uniform(1.0, self.faults.until_s) for _ in range(count)]

    async def _crash_later(self, moment_s: float, name: str) -> None:
        await asyncio.sleep(moment_s)
        self.crash(name, "at a moment of its own")

    async def _crash_engine_later(self, moment_s: float, name: str) -> None:
        await asyncio.sleep(moment_s)
        if name in self._houses and self._houses[name].engines:
            self.tell(f"the engine of {name} dies")
            self._houses[name].engines[-1].crash("java.lang.OutOfMemoryError: simulated")

    async def _cut_later(self, moment_s: float, name: str) -> None:
        await asyncio.sleep(moment_s)
        sides = [JOB_MANAGER, name]
        self.random.shuffle(sides)
        one_way, length_s = self.random.random() < 0.5, self.random.uniform(1.0, 2.0 * self.faults.heartbeat_timeout_s)
        self.tell(f"cut from {sides[0]} to {sides[1]}{'' if one_way else ' and back'} for {length_s:.1f} s")
        self.network.cut(sides[0], sides[1], one_way=one_way)
        await asyncio.sleep(length_s)
        self.tell(f"healed between {sides[0]} and {sides[1]}")
        self.network.heal(sides[0], sides[1])

    async def _freeze_later(self, moment_s: float, name: str) -> None:
        await asyncio.sleep(moment_s)
        process = self.network.at(name)
        if process is None or not process.alive:
            return
        length_s = self.random.uniform(0.5, 1.5 * self.faults.heartbeat_timeout_s)
        self.tell(f"{name} freezes for {length_s:.1f} s")
        process.freeze()
        try:
            await asyncio.sleep(length_s)
            self.tell(f"{name} goes on")
        finally:
            process.thaw()

    async def _lose_result_later(self, moment_s: float) -> None:
        await asyncio.sleep(moment_s)
        files = self.spark.files
        results = sorted({path.rpartition("/")[0] for path in files.content if path.startswith("work/")})
        if results:
            gone = self.random.choice(results)
            self.tell(f"{gone} vanishes")
            for path in files.below(gone):
                del files.content[path]

    async def _calm_down(self) -> None:
        """Lose no more messages once the faults are over: a promise needs somebody who can be reached."""
        await asyncio.sleep(self.faults.until_s)
        self.network.link = structs.replace(self._faulty, loss=0.0)


class _Watchdog:
    """Kills the engine and its runners when a lease ends, whatever its TaskManager is doing."""

    def __init__(self, house: FakeSparkHouse, context: Context) -> None:
        self._house = house
        self._context = context
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, until_s: float) -> None:
        """Wait until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(until_s, self._kill, context=self._context)

    def _kill(self) -> None:
        for engine in self._house.engines:
            engine.kill("killed by the watchdog: the lease has ended")


async def _no_blobs(key: BlobKey) -> Path:
    raise NotFound(f"no blob {key}")
