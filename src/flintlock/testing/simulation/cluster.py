"""A whole cluster in one event loop, on virtual time, from a seed.

All components are the real ones: DispatcherRunner, Dispatcher, JobMasters, ResourceManager, TaskManagers, put together
by the same composition as the real processes. Only the network, the stores and Spark are simulated. Clients submit
jobs, change and cancel some, and remember the answers; meanwhile processes crash: at any step of the stores, before or
after it took effect, and at any other time. Then the faults end, the cluster is given time, and the guarantees are
checked.

A run is a pure function of its seed (and of PYTHONHASHSEED, which `soak` fixes).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.components import JobManagerComponents, JobManagerParts
from flintlock.entrypoints.term import CurrentResourceManager
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.ha.leader_info import LeaderAddresses
from flintlock.model.errors import NotFound, Unavailable
from flintlock.model.ids import BlobKey, FencingToken, InstanceId, JobId, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions
from flintlock.model.slots import ResourceOverview, TaskManagerInfo, TaskManagerRegistration, WaitingRequest
from flintlock.rpc.transport import Connector, Fence, Host
from flintlock.taskmanager.endpoint import TaskManager
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.testing.fake_spark import FakeEngineLauncher, FakeSpark
from flintlock.testing.fake_zookeeper import ENSEMBLE
from flintlock.testing.simulation.faults import FaultInjector, Faults
from flintlock.testing.simulation.ha import DurableCluster, SimulatedHa, TermProcess, leader_finder
from flintlock.testing.simulation.network import Link, SimulatedNetwork, SimulatedProcess
from flintlock.testing.simulation.operations import DurableChanges
from flintlock.testing.simulation.workload import HARDWARE
from flintlock.testing.virtual_time import now_ms

VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
_RESTART_S: Final = 1.0
_SLOT_CHECK_S: Final = 1.7
_REPEAT_S: Final = 0.2  # between two tries to reach the store through a cut
_RECOVERING: Final = frozenset({"graphs.recover", "progress.read"})
_CHANGES: Final = frozenset({"graphs.replace", "operations.put"})
_WRITES: Final = frozenset(
    {
        "put",
        "replace",
        "remove",
        "quarantine",
        "restore",
        "discard_quarantined",
        "create_dirty",
        "mark_clean",
        "record",
        "record_history",
        "expire",
    }
)


class RetainedBlobs:
    """Which jobs keep blobs; the simulation's jobs have none, but the Dispatcher's bookkeeping is checked."""

    def __init__(self) -> None:
        self.jobs: set[JobId] = set()

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Add a job."""
        self.jobs.add(job_id)

    async def release(self, job_id: JobId) -> None:
        """Remove a job."""
        self.jobs.discard(job_id)

    async def find_damaged(self, keys: Collection[BlobKey]) -> dict[BlobKey, str]:
        """Return nothing: no blob is ever damaged."""
        return {}

    async def retain_only(self, jobs: Mapping[JobId, object]) -> None:
        """Remove all jobs but these."""
        self.jobs &= set(jobs)

    async def expire_unreferenced(self, older_than_s: float) -> tuple[BlobKey, ...]:
        """Remove nothing."""
        return ()


class SimulatedCluster:
    """Some JobManagers and TaskManagers, each restarted whenever it ends, and all state that outlives them."""

    def __init__(
        self,
        random: Random,
        faults: Faults,
        *,
        job_managers: int = 1,
        task_managers: int = 2,
        slots: int = 2,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.random = random
        self.faults = faults
        self._faulty = Link(
            late=faults.late_messages, max_late_s=5.0, duplication=faults.duplicates, loss=faults.lost_messages
        )
        self.network = SimulatedNetwork(random, self._faulty)
        self.durable = DurableCluster(self.network, faults.session_timeout_s)
        self.changes = DurableChanges(self.durable.records)
        self.ensemble = self.durable.ensemble
        self.spark = FakeSpark(random, work_s=faults.work_s, failures=faults.spark_failures)
        self.crashes = 0  # so far
        self.trace: list[str] = []  # what happened, for the analysis of a failed seed
        self.violations: list[str] = []  # processes that failed, and commands of old leaders that were accepted
        self.full_disks = 0  # while it is not 0, the stores accept no write
        self.job_managers = [f"jm-{number}" for number in range(job_managers)]
        self.task_managers = [f"tm-{number}" for number in range(task_managers)]
        self.launchers: dict[str, FakeEngineLauncher] = {}
        self.clock_errors_ms: dict[str, int] = {}  # by which the wall clock of each JobManager's machine is ahead
        for name in (*self.job_managers, *self.task_managers):
            # A connection that repeats what was lost: later, but not by much, or no process could ever keep a session.
            steady = Link(late=faults.late_messages, max_late_s=faults.session_timeout_s / 6)
            self.network.set_link(name, ENSEMBLE, steady)
            self.network.set_link(ENSEMBLE, name, steady)
        self._slots = slots
        self._settings = dict(settings or {})  # of the JobManagers
        self._injector = FaultInjector(self)
        self._ha: dict[str, SimulatedHa] = {}  # of the latest process of each JobManager
        self._instances = 0
        self._declared_dead_s: dict[FencingToken, float] = {}  # when each leader was declared dead
        self._resource_managers: dict[str, CurrentResourceManager] = {}  # of the latest process of each JobManager

    def faulty(self) -> bool:
        """Return whether faults may still be injected."""
        return asyncio.get_running_loop().time() < self.faults.until_s

    def record(self, what: str) -> None:
        """Add an event to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        return self.durable.token.session.rpartition("/")[0] or self.job_managers[0]

    async def run(self) -> None:
        """Keep all processes running: one that dies is started again, as a service manager would."""
        self.durable.on_term = self._on_term
        if self.faults.closed_ports:
            for name in self.job_managers:
                self.network.refuse([other for other in self.job_managers if other != name], name)
        async with asyncio.TaskGroup() as tasks:
            for name in self.job_managers:
                tasks.create_task(self._restart_when_it_ends(name, self._job_manager), name=f"keep-{name}")
            for name in self.task_managers:
                tasks.create_task(self._restart_when_it_ends(name, self._task_manager), name=f"keep-{name}")
            self._injector.begin(tasks)
            tasks.create_task(self._check_slots(), name="check-slots")
            tasks.create_task(self._stop_losing_messages(), name="stop-losing-messages")

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        process = self.network.at(name)
        if process is not None and process.alive:
            self.record(f"{name} dies: {why}")
            self.crashes += 1
            process.crash()

    def declare_leader_dead(self) -> None:
        """Have some JobManager declare the latest leader dead, whether or not it is."""
        alive = [name for name in self.job_managers if (process := self.network.at(name)) and process.alive]
        if alive:
            name, token = self.random.choice(alive), self.durable.token
            self._declared_dead_s[token] = asyncio.get_running_loop().time()
            self.record(f"{name} believes that the leader of epoch {token.epoch} is dead")
            process = self.network.at(name)
            if process is not None and name in self._ha:
                process.spawn(self._ha[name].declare_dead(token), "declare_dead")

    async def _restart_when_it_ends(
        self, name: str, main: Callable[[SimulatedProcess], Coroutine[None, None, None]]
    ) -> None:
        while True:
            process = self.network.process(name)
            self.record(f"{name} starts")
            await asyncio.wait({process.spawn(main(process), name)})
            if process.failure is not None:
                self.violations.append(f"{name} ended by itself: {process.failure!r}")
                self.record(f"{name} ended by itself: {process.failure!r}")
            await asyncio.sleep(self.random.uniform(0.1, _RESTART_S))

    async def _job_manager(self, process: SimulatedProcess) -> None:
        ha = self._ha[process.name] = SimulatedHa(self.durable, process, partial(self._step, process))
        other = self.faults.other_timeouts and self.random.random() < self.faults.other_timeouts
        timeout_s = self.faults.heartbeat_timeout_s / (3.0 if other else 1.0)
        configuration = Configuration(
            {"heartbeat.interval": "1 s", "heartbeat.timeout": f"{timeout_s:g} s", **self._settings}
        )

        def term_transport(token: FencingToken) -> tuple[Host, Connector]:
            def on_action(what: str) -> None:
                self._check_leader_acts(token, what)
                if ha.election.paused(token) is not None:
                    self.violations.append(f"epoch {token.epoch} {what} while it did not know whether it leads")

            acting = TermProcess(process, on_action)
            return acting, acting

        components = JobManagerComponents(
            JobManagerParts(
                ha=ha,
                host=process,
                connector=process,
                blobs=RetainedBlobs(),
                configuration=configuration,
                versions=VERSIONS,
                work_dir="work",
                clock_ms=lambda: now_ms() + self.clock_errors_ms.get(process.name, 0),
                boot_time_s=asyncio.get_running_loop().time,
                random=self.random,
                hostname=process.name,
                term_transport=term_transport,
                watches_leader=self.faults.deaths_noticed,
            )
        )
        self._resource_managers[process.name] = components.resource_manager

        def on_call(_: FencingToken | None) -> None:
            token = components.dispatcher.acting()
            if token is not None:
                self._check_leader_acts(token, "answered a client")

        process.serve(DispatcherGateway, components.dispatcher.gateway, on_call)
        await components.run(LeaderAddresses(rpc=process.address, rest=""))

    def _check_leader_acts(self, token: FencingToken, what: str) -> None:
        """Check that a leader does nothing once a newer one leads. One that was declared dead learns of it later."""
        unaware_until_s = self._declared_dead_s.get(token, 0.0) + self.faults.session_timeout_s
        if token.epoch < self.durable.token.epoch and asyncio.get_running_loop().time() > unaware_until_s:
            self.violations.append(f"epoch {token.epoch} {what} after epoch {self.durable.token.epoch} began")

    async def _step(self, process: SimulatedProcess, token: FencingToken, name: str) -> None:
        """Delay, fail or crash a process on its way to the store, or back from it."""
        operation, _, when = name.partition(":")
        back = when == "after"
        if back and operation in _CHANGES:
            self.changes.check()
        process.require_alive()
        if not back and self._ha[process.name].election.paused(token) is not None:
            raise Unavailable(f"the store is out of reach at {name}")
        if not back and self.full_disks and operation.rpartition(".")[2] in _WRITES:
            raise Unavailable(f"the disk is full at {name}")
        if back and operation.rpartition(".")[2] in _WRITES and token.epoch < self.durable.token.epoch:
            newest = self.durable.token.epoch
            self.violations.append(f"epoch {token.epoch} wrote ({operation}) after epoch {newest} began")
        doomed = self.faulty() and self.random.random() < self.faults.crash_at_step
        if self.faulty() and self.faults.freeze_at_step and self.random.random() < self.faults.freeze_at_step:
            self.record(f"{process.name} at {name}")
            self._injector.freeze(process.name, self._injector.draw_freeze_s())
        if operation in _RECOVERING and self.faults.slow_reads_s:
            await asyncio.sleep(self.random.uniform(0.0, self.faults.slow_reads_s))
        sides = (ENSEMBLE, process.name) if back else (process.name, ENSEMBLE)
        await asyncio.sleep(self.network.delay_s(*sides))  # what was sent before may arrive in the meantime
        while self.network.is_cut(*sides) or self.ensemble.is_cut_off(process.name):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(_REPEAT_S)
        if doomed:
            self.crash(process.name, f"at {name}")
        process.require_alive()
        if self.faulty() and self.faults.lost_answers and self.random.random() < self.faults.lost_answers:
            self.record(f"{process.name} receives no answer at {name}")
            raise Unavailable(f"no answer at {name}")

    async def _task_manager(self, process: SimulatedProcess) -> None:
        guard = TokenGuard(asyncio.get_running_loop().time)
        launcher = self.launchers[process.name] = self.spark.launcher()
        leader = leader_finder(self.durable, process)
        services = TaskManagerServices(
            offer=TaskManagerRegistration(
                id=TaskManagerId("tm" if self.faults.equal_ids else process.name),
                instance=InstanceId(""),
                address=process.address,
                slots=self._slots,
                versions=VERSIONS,
                hardware=HARDWARE,
            ),
            launcher=launcher,
            resource_manager=lambda: process.connect(ResourceManagerGateway, leader.follow()),
            leader_moved=leader.moved,
            job_masters=lambda: process.connect(JobMasterGateway, leader.find(), lambda: guard.token),
            fetch_blob=_no_blobs,
            log_directory=Path("log"),
            prepare_log=lambda _: None,
            new_instance=self._new_instance,
            set_watchdog_deadline=_Watchdog(launcher, self.spark.context).watch,
        )
        task_manager = TaskManager(services, guard)
        process.serve(TaskManagerGateway, task_manager, self._checked_fence(process.name, guard))
        await task_manager.run()

    def _checked_fence(self, name: str, guard: TokenGuard) -> Fence:
        """Return the TaskManager's own fence, checked from outside: it admits no call of a former leader."""

        def check(token: FencingToken | None) -> None:
            followed = guard.token
            guard.check(token)
            if token is not None and followed is not None and token.epoch < followed.epoch:
                self.violations.append(
                    f"{name} accepted a command of epoch {token.epoch}, but follows epoch {followed.epoch}"
                )

        return check

    async def _check_slots(self) -> None:
        """Check again and again that no slot is granted twice, and that no request waits for a slot that is free."""
        while True:
            await asyncio.sleep(_SLOT_CHECK_S)
            for current in self._resource_managers.values():
                with suppress(Unavailable):
                    problems = slot_problems(await current.gateway.overview())
                    self.violations += [problem for problem in problems if problem not in self.violations]

    def _new_instance(self) -> InstanceId:
        self._instances += 1
        return InstanceId(f"instance-{self._instances}")

    def _on_term(self, token: FencingToken) -> None:
        self.record(f"{self.leader()} leads in epoch {token.epoch}")

    async def _stop_losing_messages(self) -> None:
        """Lose no more messages once the faults are over: no guarantee holds for a component that is unreachable."""
        await asyncio.sleep(self.faults.until_s)
        self.network.link = structs.replace(self._faulty, loss=0.0)


def slot_problems(overview: ResourceOverview) -> list[str]:
    """Return what is wrong with the allocation of slots, as a ResourceManager reports it between two of its steps."""
    problems = [
        f"{tm.id} has {tm.slots} slots: {tm.free_slots} are free, and allocated are {tm.allocated}"
        for tm in overview.task_managers
        if tm.free_slots + sum(share.slots for share in tm.allocated) > tm.slots
    ]
    problems += [
        f"{tm.id} runs nothing, but of {tm.hardware} only {tm.free_resources} is free"
        for tm in overview.task_managers
        if not tm.allocated and tm.free_resources != _whole(tm)
    ]
    for next_in_line in overview.waiting[:1]:  # order is strict: the others wait for it
        problems += [
            f"{next_in_line.name} waits for {next_in_line.slots or 'all'} slots and {next_in_line.resources}, and "
            f"{tm.id} has {tm.free_slots} and {tm.free_resources} free"
            for tm in overview.task_managers
            if tm.ready and tm.free_slots >= (next_in_line.slots or tm.slots) and _has_free(tm, next_in_line)
        ]
    return problems


def _whole(tm: TaskManagerInfo) -> Resources:
    return Resources(cpu=float(tm.hardware.cpu_cores), memory=tm.hardware.physical_memory)


def _has_free(tm: TaskManagerInfo, request: WaitingRequest) -> bool:
    """Whether a TaskManager has the cores and the memory that a request names, or the share of the slots."""
    whole, named, slots = _whole(tm), request.resources or Resources(), request.slots or tm.slots
    cpu, memory = named.cpu or whole.cpu * slots / tm.slots, named.memory or whole.memory * slots // tm.slots
    return tm.free_resources.cpu >= cpu and tm.free_resources.memory >= memory


class _Watchdog:
    """Kills the engine and its runners when a lease ends, whatever its TaskManager is doing."""

    def __init__(self, launcher: FakeEngineLauncher, context: Context) -> None:
        self._launcher = launcher
        self._context = context
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, until_s: float) -> None:
        """Set the deadline; infinity is none."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if until_s < math.inf:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(until_s, self._kill, context=self._context)

    def _kill(self) -> None:
        for engine in self._launcher.engines:
            engine.kill("killed by the watchdog: the lease has ended")


async def _no_blobs(key: BlobKey) -> Path:
    raise NotFound(f"no blob {key}")
