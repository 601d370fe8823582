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
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, cast

from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.entrypoints.components import SESSION, DeploymentMode, JobManagerComponents, JobManagerParts
from flintlock.entrypoints.term import CurrentResourceManager
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.ha import payloads
from flintlock.ha.leader_info import LeaderAddresses
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import FlintlockError, NotFound, Unavailable
from flintlock.model.ids import AttemptId, BlobKey, FencingToken, InstanceId, JobId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import TaskManagerRegistration
from flintlock.model.tasks import DeployTask
from flintlock.rpc.transport import Connector, Fence, Host
from flintlock.taskmanager.endpoint import TaskManager
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.testing.fakes.fake_spark import FakeEngineLauncher, FakeSpark
from flintlock.testing.fakes.fake_zookeeper import ENSEMBLE
from flintlock.testing.simulation.blocked_loops import BlockingJob, block_loop
from flintlock.testing.simulation.checks.leader_checks import LeaderChecks
from flintlock.testing.simulation.checks.record_checks import UnexplainedAttempts
from flintlock.testing.simulation.checks.slot_checks import slot_problems
from flintlock.testing.simulation.faults import FaultInjector, Faults
from flintlock.testing.simulation.ha import DurableCluster, SimulatedHa, TermProcess, leader_finder
from flintlock.testing.simulation.network import Link, SimulatedNetwork, SimulatedProcess
from flintlock.testing.simulation.users.operations import DurableChanges
from flintlock.testing.simulation.users.savepoints import CHECKPOINTS, SimulatedSavepoints
from flintlock.testing.simulation.workers import SETTINGS, UNREGISTERED_S, AnyFleet, Fleet, WorkerAccess
from flintlock.testing.simulation.workload import HARDWARE
from flintlock.testing.simulation.yarn_attempts import AttemptGivenUp, YarnAttempts
from flintlock.testing.virtual_time import now_ms

VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
_RESTART_S: Final = 1.0
_SLOT_CHECK_S: Final = 1.7
_REMEMBERED_STARTS: Final = 500
_UNRECORDED: Final = 1000  # the first number of attempts that no JobMaster knows
_LONGEST_FAULT_S: Final = 180.0  # for which a leader may be frozen, or may not reach the stores
_FAILURES_AFTERWARDS_S: Final = 600.0  # how long Spark fails after the faults are over
_LATE_TO_THE_STORE: Final = 0.05  # with more late messages no process could keep a session
_REPEAT_S: Final = 0.2  # between two tries to reach the store through a cut
_RECOVERING: Final = frozenset({"graphs.recover", "progress.read"})
_RECORDING: Final = "progress.record"
_NO_ANSWER: Final = "no answer"
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
    """Which jobs keep blobs, as the server's references do: a job without blobs is not remembered."""

    def __init__(self) -> None:
        self.jobs: set[JobId] = set()

    def retain(self, job_id: JobId, keys: Iterable[BlobKey]) -> None:
        """Add a job that has some."""
        if tuple(keys):
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

    async def expire_unreferenced(self, older_than_s: float, ended_s: float) -> tuple[BlobKey, ...]:
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
        workers: bool = False,
        retention_s: float | None = None,
        settings: Mapping[str, str] | None = None,
        mode: Callable[[], DeploymentMode] | None = None,
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
        self.spark = FakeSpark(
            random,
            work_s=faults.work_s,
            failures=faults.spark_failures,
            publication_failures=faults.publication_failures,
            publication_step_s=faults.publication_step_s,
        )
        self.spark.hardware, self.spark.slots = HARDWARE, slots
        self.spark.on_start = self._check_start
        self.savepoints = SimulatedSavepoints(self.spark.files.content)
        self.crashes = 0  # so far
        self._mode = mode  # makes that of one process; None: a session cluster, which no request ever ends
        self.shut_downs: list[ApplicationStatus] = []  # of JobManagers whose cluster has ended for good
        self.trace: list[str] = []  # what happened, for the analysis of a failed seed
        self.late_starts: list[AttemptId] = []  # of jobs that had ended
        self.violations: list[str] = []  # processes that failed, and commands of old leaders that were accepted
        self.lost_results: list[tuple[int, frozenset[str]]] = []  # blocking results that were lost or changed, and when
        self.intact_graphs: dict[JobId, bytes] = {}  # the graphs that were damaged, as they were before
        self.retention_s = retention_s  # of ended jobs; None: longer than any run
        self.gave_up = False  # whether a JobManager has ended because the stores did not answer its recovery
        self.full_disks: Counter[str] = Counter()  # JobManagers whose writes the stores do not accept, with reasons
        self.job_managers = [f"jm-{number}" for number in range(job_managers)]
        self.task_managers = [f"tm-{number}" for number in range(task_managers)]
        self.launchers: dict[str, FakeEngineLauncher] = {}
        self.clock_errors_ms: dict[str, int] = {}  # by which the wall clock of each JobManager's machine is ahead
        for name in (*self.job_managers, *self.task_managers):
            self._connect_to_ensemble(name)
        self._slots = slots
        # Of the JobManagers. What failed jobs keep is removed before a run is over.
        self._settings = {"execution.failed-jobs.results-retention": "20 s", **(settings or {})}
        if retention_s is not None:
            self._settings["job-result-store.retention"] = f"{retention_s:g} s"
        self.fleet = self._make_fleet() if workers or faults.containers else None
        self._latest_token: FencingToken | None = None
        self._term_began_s = 0.0  # the latest one
        self.terms_ms: list[int] = []  # when each began
        self.lags_ms: list[int] = []  # by which the retention clock of each was behind then
        self._injector = FaultInjector(self)
        self.leaders = LeaderChecks(self)
        self._tasks: asyncio.TaskGroup | None = None  # while it runs
        self.unexplained_attempts = UnexplainedAttempts(self.durable.records)
        self._ha: dict[str, SimulatedHa] = {}  # of the latest process of each JobManager
        self._instances = 0
        self._begun: dict[AttemptId, DeployTask] = {}  # the attempts whose runners have begun; bounded
        self._forget_at = (
            _REMEMBERED_STARTS  # so many of them; grows with the jobs that run, or each start would search
        )
        self._running: dict[str, TaskManager] = {}  # the latest one of each process
        self._incarnations: dict[str, InstanceId] = {}  # its latest one
        self._declared_dead_s: dict[FencingToken, float] = {}  # when each leader was declared dead
        self.blocking_job: Final = BlockingJob(self)
        self._dispatchers: dict[str, CurrentDispatcher] = {}  # of the latest process of each JobManager
        self._resource_managers: dict[str, CurrentResourceManager] = {}  # of the latest process of each JobManager

    def _make_fleet(self) -> AnyFleet:
        self._settings |= SETTINGS
        if not self.faults.containers:
            return Fleet(self.random, self.network, self._run_worker, slots=self._slots)
        return YarnAttempts(self.random, self.network, self.faults, self._run_worker, self.record, slots=self._slots)

    def _connect_to_ensemble(self, name: str) -> None:
        """Let a process have a connection that repeats what was lost: later, but in time to keep a session."""
        late = min(self.faults.late_messages, _LATE_TO_THE_STORE)
        steady = Link(late=late, max_late_s=self.faults.session_timeout_s / 6)
        self.network.set_link(name, ENSEMBLE, steady)
        self.network.set_link(ENSEMBLE, name, steady)

    def faulty(self) -> bool:
        """Return whether faults may still be injected."""
        return asyncio.get_running_loop().time() < self.faults.until_s

    def settled_s(self) -> float:
        """Return since when, at the latest, the leader has been able to act as it should, unless it is recovering."""
        if self.faults.freezes_leaders or any(self.full_disks.values()):
            return max(self._term_began_s, self.faults.until_s + _LONGEST_FAULT_S)
        return self._term_began_s

    def is_retention_over(self, alive_s: float) -> bool:
        """Return whether a job that was last known to be alive then may have been removed by now."""
        return self.retention_s is not None and asyncio.get_running_loop().time() >= alive_s + self.retention_s

    def is_end_durable(self, job_id: JobId, alive_s: float) -> bool:
        """Return whether it is stored that a job has ended, or was until its retention was over."""
        records = self.durable.records
        return job_id in records.results or job_id in records.quarantined or self.is_retention_over(alive_s)

    def record(self, what: str) -> None:
        """Add an event to the trace."""
        self.trace.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    def wall_ms(self, name: str) -> int:
        """Return what the wall clock of a JobManager's machine shows."""
        return now_ms() + self.clock_errors_ms.get(name, 0)

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        return self.durable.token.session.rpartition("/")[0] or self.job_managers[0]

    def leads(self, name: str) -> FencingToken | None:
        """Return the token under which a JobManager leads, with all jobs recovered; None if it does not."""
        process, dispatcher = self.network.at(name), self._dispatchers.get(name)
        return dispatcher.leading if process and process.alive and not process.frozen and dispatcher else None

    def live_jobs(self) -> list[JobId]:
        """Return the jobs whose graphs are stored, and intact."""
        return [job_id for job_id in self.durable.records.graphs if job_id not in self.intact_graphs]

    async def run(self) -> None:
        """Keep all processes running: one that dies is started again, as a service manager would."""
        self.durable.on_term = self._on_term
        if self.faults.closed_ports:
            for name in self.job_managers:
                self.network.refuse([other for other in self.job_managers if other != name], name)
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if isinstance(self.fleet, YarnAttempts):
                tasks.create_task(self.fleet.run(self.job_managers, tasks, self._run_job_manager), name="attempts")
            else:
                for name in self.job_managers:
                    tasks.create_task(self._restart_when_it_ends(name, self._job_manager), name=f"keep-{name}")
            for name in self.task_managers:
                tasks.create_task(self._restart_when_it_ends(name, self._task_manager), name=f"keep-{name}")
            if self.fleet is not None:
                self.fleet.begin(tasks)
            self._injector.begin(tasks)
            if self.faults.blocking_times:
                blocking = self.blocking_job.run(self.faults.blocking_times, self.faults.until_s)
                tasks.create_task(blocking, name="blocking-job")
            tasks.create_task(self._check_slots(), name="check-slots")
            tasks.create_task(self.leaders.run(), name="check-leaders")
            tasks.create_task(self._end_faults(), name="end-faults")

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        process = self.network.at(name)
        if process is not None and process.alive:
            self.record(f"{name} dies: {why}")
            self.crashes += 1
            process.crash()

    async def block_loop(self, name: str, length_s: float, on_end: Callable[[], None] = lambda: None) -> None:
        """Let the event loop of a JobManager stand still, but not its threads. Does nothing if it is dead or frozen."""
        process = self.network.at(name)
        if process is None or not process.alive or process.frozen or name not in self._ha:
            return
        self.record(f"the loop of {name} stands still for {length_s:.1f} s")

        def end() -> None:
            on_end()
            self.crash(name, "its loop has stood still")

        await block_loop(process, self._ha[name], length_s, end)

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
            await self._run_process(self.network.process(name), main)
            if self.faults.lost_for_good and len(self.task_managers) > 1 and name == self.task_managers[-1]:
                self.record(f"{name} does not come back")
                return
            await asyncio.sleep(self.random.uniform(0.1, _RESTART_S))

    async def _run_process(
        self, process: SimulatedProcess, main: Callable[[SimulatedProcess], Coroutine[None, None, None]]
    ) -> None:
        """Run a process until it ends, and check that it does so only when it is requested."""
        name = process.name
        self.record(f"{name} starts")
        await asyncio.wait({process.spawn(main(process), name)})
        if process.alive:
            if self._mode is None:
                self.violations.append(f"{name} has ended, although no request has ended it")
            process.crash()
        if process.failure is not None:
            self.record(f"{name} ended by itself: {process.failure!r}")
            if _is_unanswered(process.failure):
                self.gave_up = True
            else:
                self.violations.append(f"{name} ended by itself: {process.failure!r}")

    async def _run_job_manager(self, process: SimulatedProcess) -> None:
        await self._run_process(process, self._job_manager)

    async def _run_worker(self, name: str) -> None:
        """Run the process of a worker, once."""
        self._connect_to_ensemble(name)
        process = self.network.process(name)
        self.record(f"{name} starts")
        self.task_managers.append(name)
        await asyncio.wait({process.spawn(self._task_manager(process), name)})
        process.crash()
        self.task_managers.remove(name)
        self.record(f"{name} has ended")
        if process.failure is not None:
            self.violations.append(f"{name} ended by itself: {process.failure!r}")

    async def _job_manager(self, process: SimulatedProcess) -> None:
        try:
            async with self._attending(process) as access:
                await self._serve(process, access)
        except* AttemptGivenUp:
            self.record(f"{process.name} ends: YARN has given its attempt up")
            process.crash()

    def _attending(self, process: SimulatedProcess) -> AbstractAsyncContextManager[WorkerAccess | None]:
        return nullcontext() if self.fleet is None else self.fleet.attend(process, HARDWARE)

    async def _serve(self, process: SimulatedProcess, access: WorkerAccess | None) -> None:
        storage = self.leaders.storage_health(process.name) if self.faults.read_only_members else None
        ha = self._ha[process.name] = SimulatedHa(self.durable, process, partial(self._step, process), storage)
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
                checkpoints_dir=CHECKPOINTS,
                savepoints=self.savepoints,
                clock_ms=lambda: self.wall_ms(process.name),
                boot_time_s=asyncio.get_running_loop().time,
                random=self.random,
                hostname=process.name,
                workers=None if access is None else access.open,
                term_transport=term_transport,
                watches_leader=self.faults.deaths_noticed,
                mode=SESSION if self._mode is None else self._mode(),
                lost_leaders=self.blocking_job.lost_leaders,
            )
        )
        self._resource_managers[process.name] = components.resource_manager
        self._dispatchers[process.name] = components.dispatcher

        def on_call(_: FencingToken | None) -> None:
            token = components.dispatcher.acting()
            if token is not None:
                self._check_leader_acts(token, "answered a client")

        process.serve(DispatcherGateway, components.dispatcher.gateway, on_call)
        attempt = None if access is None else access.attempt
        status = await components.run(LeaderAddresses(rpc=process.address, rest="", attempt=attempt))
        self.record(f"{process.name} has ended with {status}")
        if status.is_final:
            self.shut_downs.append(status)
            if access is not None:
                await access.finish()

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
        if not back and self.full_disks[process.name] and operation.rpartition(".")[2] in _WRITES:
            raise Unavailable(f"the disk is full at {name}")
        if back and operation.rpartition(".")[2] in _WRITES and token.epoch < self.durable.token.epoch:
            newest = self.durable.token.epoch
            self.violations.append(f"epoch {token.epoch} wrote ({operation}) after epoch {newest} began")
        if back and operation == _RECORDING:
            self.unexplained_attempts.check()
        doomed = self.faulty() and self.random.random() < self.faults.crash_at_step
        if back and operation in _CHANGES and self.faulty() and self.faults.crash_after_change:
            doomed = doomed or self.random.random() < self.faults.crash_after_change
        if self.faulty() and self.faults.freeze_at_step and self.random.random() < self.faults.freeze_at_step:
            self.record(f"{process.name} at {name}")
            self._injector.freeze(process.name, self._injector.draw_freeze_s())
        if operation in _RECOVERING and self.faults.slow_reads_s:
            await asyncio.sleep(self.random.uniform(0.0, self.faults.slow_reads_s))
        if operation == _RECORDING and self.faults.slow_records_s:
            await asyncio.sleep(self.random.uniform(0.0, self.faults.slow_records_s))
        sides = (ENSEMBLE, process.name) if back else (process.name, ENSEMBLE)
        await asyncio.sleep(self.network.delay_s(*sides))  # what was sent before may arrive in the meantime
        while self.network.is_cut(*sides) or self.ensemble.is_cut_off(process.name):  # noqa: ASYNC110 (no event)
            await asyncio.sleep(_REPEAT_S)
        if doomed:
            self.crash(process.name, f"at {name}")
        process.require_alive()
        if self.faulty() and self.faults.lost_answers and self.random.random() < self.faults.lost_answers:
            self.record(f"{process.name} receives no answer at {name}")
            raise Unavailable(f"{_NO_ANSWER} at {name}")

    def _check_start(self, task: DeployTask) -> None:
        """Check that an attempt begins once, after it was recorded with its TaskManager, and before its job ended."""
        attempt, records = task.attempt, self.durable.records
        if attempt in self.spark.endless:
            return
        if attempt in self._begun:
            self.violations.append(f"{attempt} began a second time")
        if len(self._begun) >= self._forget_at:  # what is checked of ended jobs is that nothing of them begins
            self._begun = {each: order for each, order in self._begun.items() if each.job_id in records.graphs}
            self._forget_at = max(_REMEMBERED_STARTS, 2 * len(self._begun))
        self._begun[attempt] = task
        if attempt.job_id in records.results:
            self.late_starts.append(attempt)
            return
        payload = records.progress.get(attempt.job_id, {}).get(attempt.region)
        record = None if payload is None else payloads.REGION_RECORD.decode(payload, f"attempt {attempt}")
        if record is None or (record.attempt, record.instance) != (attempt.attempt, task.instance):
            self.violations.append(f"{attempt} began at {task.instance}, but recorded is {record}")

    def damage_graph(self) -> None:
        """Damage the graph of a job that has not ended: the next leader that reads it cannot run the job."""
        graphs = self.durable.records.graphs
        job_ids = [job_id for job_id in graphs if job_id not in self.intact_graphs]
        if job_ids:
            job_id = self.random.choice(job_ids)
            self.record(f"the graph of job {job_id} is damaged")
            self.intact_graphs[job_id] = graphs[job_id]
            graphs[job_id] = graphs[job_id][:-1]

    def deploy_unrecorded(self) -> None:
        """Deploy an attempt that no JobMaster knows, as one would if the store had lost its record."""
        name = self.random.choice(self.task_managers)
        process = self.network.at(name)
        if process is None or not process.alive or process.frozen or name not in self._running or not self._begun:
            return
        like = self.random.choice(list(self._begun.values()))
        number = _UNRECORDED + len(self.spark.endless)
        attempt = AttemptId(job_id=like.attempt.job_id, region=like.attempt.region, attempt=number)
        self.record(f"{name} gets the attempt {attempt}, which is not recorded")
        self.spark.endless.add(attempt)
        order = structs.replace(like, attempt=attempt, instance=self._incarnations.get(name), lease_s=0.0)

        async def deploy() -> None:
            with suppress(FlintlockError):  # it has no lease, no engine, or the slots are in use
                await self._running[name].deploy(order)

        process.spawn(deploy(), "unrecorded")

    async def _task_manager(self, process: SimulatedProcess) -> None:
        guard = TokenGuard(asyncio.get_running_loop().time)
        launcher = self.launchers[process.name] = self.spark.launcher()
        leader = leader_finder(self.durable, process)
        is_worker = self.fleet is not None and process.name in self.fleet.machines
        services = TaskManagerServices(
            offer=TaskManagerRegistration(
                id=TaskManagerId("tm" if self.faults.equal_ids and not is_worker else process.name),
                worker=is_worker,
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
            new_instance=partial(self._new_instance, process.name),
            unregistered_timeout_s=UNREGISTERED_S if is_worker else math.inf,
            set_watchdog_deadline=_Watchdog(launcher, self.spark.context).watch,
        )
        task_manager = self._running[process.name] = TaskManager(services, guard)
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

    async def unreturned_slots(self) -> list[str]:
        """Return what of the TaskManagers the present leader believes to be in use."""
        try:
            overview = await self._resource_managers[self.leader()].gateway.overview()
        except Unavailable:
            return ["no leader says which slots are in use"]
        held = [f"{tm.free_slots} of {tm.slots} slots of {tm.id} are free" for tm in overview.task_managers]
        held = [what for what, tm in zip(held, overview.task_managers, strict=True) if tm.free_slots < tm.slots]
        return held + [f"{request.name} waits" for request in overview.waiting]

    async def _check_slots(self) -> None:
        """Check again and again that no slot is granted twice, and that no request waits for a slot that is free."""
        while True:
            await asyncio.sleep(_SLOT_CHECK_S)
            for name, current in self._resource_managers.items():
                with suppress(Unavailable):
                    problems = slot_problems(await current.gateway.overview(), self.wall_ms(name))
                    self.violations += [problem for problem in problems if problem not in self.violations]

    def _new_instance(self, process: str) -> InstanceId:
        self._instances += 1
        self._incarnations[process] = InstanceId(f"instance-{self._instances}")
        return self._incarnations[process]

    def _on_term(self, token: FencingToken) -> None:
        self._term_began_s = asyncio.get_running_loop().time()
        name, tasks = self.leader(), self._tasks
        former, self._latest_token = self._latest_token, token
        if former is not None and self.fleet is not None and self.fleet.is_given_up(former.session.rpartition("/")[0]):
            self._declared_dead_s[former] = self._term_began_s  # by the next attempt
        self.terms_ms.append(now_ms())
        self.leaders.on_term(token)
        self.lags_ms.append(now_ms() - self._retention_ms(name))
        self.record(f"{name} leads in epoch {token.epoch}")
        if tasks is None or not self.faults.unheard_successors or token.epoch == 1 or not self.faulty():
            return
        if self.random.random() < self.faults.unheard_successors:
            overview = self._resource_managers[name].gateway.overview
            tasks.create_task(self._injector.silence_successor(name, overview), name="silence-successor")

    def _retention_ms(self, name: str) -> int:
        """Return where the retention clock of a term begins: where it is recorded, else at the leader's wall clock."""
        payload = self.durable.records.cluster_records.get("retention_clock")
        if payload is None:
            return self.wall_ms(name)
        return payloads.RETENTION_READING.decode(payload, "the retention clock").clock_ms

    async def _end_faults(self) -> None:
        """Lose no more messages once the faults are over: no guarantee holds for a component that is unreachable.

        Spark fails for some time longer. A long job that is restarted without a limit must be able to end after that.
        """
        await asyncio.sleep(self.faults.until_s)
        self.network.link = structs.replace(self._faulty, loss=0.0)
        await asyncio.sleep(_FAILURES_AFTERWARDS_S)
        self.spark.failures = 0.0


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


def _is_unanswered(failure: BaseException) -> bool:
    """Return whether a JobManager has ended, as it should, because the stores did not answer it for long."""
    if isinstance(failure, BaseExceptionGroup):
        return all(map(_is_unanswered, cast("BaseExceptionGroup[BaseException]", failure).exceptions))
    return isinstance(failure, Unavailable) and failure.public.startswith(_NO_ANSWER)
