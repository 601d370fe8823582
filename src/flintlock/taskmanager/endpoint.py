"""The TaskManager's shell: keeps an engine running, stays registered, and passes orders to the engine's session."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import structlog

from flintlock.model import log_events
from flintlock.model.access.confinement import deployment_problem, publication_problem, removal_problem
from flintlock.model.application import ShutDownCluster
from flintlock.model.backoff import Backoff
from flintlock.model.commands import TaskAnswer, TaskCommand
from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery, ReadEngineUi
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.ids import AttemptId, InstanceId, is_job_id
from flintlock.model.slots import LivenessProbe
from flintlock.model.tasks import (
    DeploymentAnswer,
    DeployTask,
    LogChunk,
    LoggedJobs,
    LoggedJobsQuery,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    RemoveLogs,
)
from flintlock.taskmanager import task_logs
from flintlock.taskmanager.core import TaskManagerCore
from flintlock.taskmanager.engine_session import EngineSession
from flintlock.taskmanager.lease import CurrentLease
from flintlock.taskmanager.outbox import LeasedReports, Outbox
from flintlock.taskmanager.process_queries import answer_process_query
from flintlock.taskmanager.registration import Registration
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.taskmanager.work import LeasedWork

_ENGINE_START_BACKOFF: Final = Backoff(initial_s=0.5, maximum_s=30.0)
_LAST_REPORTS_S: Final = 5.0
_LEADER_CHECK_S: Final = 1.0
log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class _OpenEngine:
    """A warm engine, its session, and the work on it as it is registered."""

    core: TaskManagerCore
    session: EngineSession
    outbox: Outbox
    lease: CurrentLease
    work: LeasedWork
    registration: Registration


class TaskManager:
    """Implements TaskManagerGateway. It works while `run` runs; cancelled, `run` ends everything that it started."""

    def __init__(self, services: TaskManagerServices, guard: TokenGuard) -> None:
        self._services: Final = services
        self._guard: Final = guard
        self._open: _OpenEngine | None = None  # written by run: None while there is no warm engine
        self._logged: Final = task_logs.LoggedJobPages(services.log_directory)
        self._ended: tuple[AttemptId, ...] = ()  # written as each engine's session ends, for the next one
        self._engines = 0  # started so far
        self._starting = False  # whether an engine is being started; written by _run_engine
        self._shut_down: Final = asyncio.Event()  # set when the cluster shuts down
        self._instance: InstanceId | None = None  # the incarnation whose work may be here; written by _set_instance
        self._instance_changed = asyncio.Event()  # set, and replaced, whenever that changes

    async def run(self) -> None:
        """Serve until cancelled, or until the cluster shuts down."""
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self._keep_engine(), name="engine")]
            if self._services.unregistered_timeout_s < math.inf:
                beside.append(tasks.create_task(self._end_without_a_leader(), name="unregistered"))
            await self._shut_down.wait()
            log.info(log_events.CLUSTER_SHUTTING_DOWN)
            for task in beside:
                task.cancel()

    async def _end_without_a_leader(self) -> None:
        """End the TaskManager once it has had no lease for too long: no leader wants it any more.

        The time that engines take to start does not count, however slow the machine is: without one it cannot register.
        The pauses between starts that fail count.
        """
        clock_s, timeout_s = self._services.clock_s, self._services.unregistered_timeout_s
        unregistered_s, checked_s = 0.0, clock_s()
        while unregistered_s < timeout_s:
            await asyncio.sleep(min(_LEADER_CHECK_S, timeout_s))
            now_s = clock_s()
            if self._open is not None and self._open.lease.is_open():
                unregistered_s = 0.0
            elif not self._starting:
                unregistered_s += now_s - checked_s
            checked_s = now_s
        log.warning(log_events.TASKMANAGER_UNREGISTERED_TOO_LONG, timeout_s=timeout_s)
        self._shut_down.set()

    async def _keep_engine(self) -> None:
        """Keep an engine running and registered; start another when it dies, with growing pauses if it cannot start."""
        failures = 0
        while True:
            try:
                cause = await self._run_engine()
                failures = 0
                log.error(log_events.ENGINE_DIED, reason=cause)
            except Unavailable as error:
                failures += 1
                retry_s = _ENGINE_START_BACKOFF.delay_s(failures)
                log.error(log_events.ENGINE_START_FAILED, reason=error.public, retry_s=retry_s)
                await asyncio.sleep(retry_s)

    async def deploy(self, message: DeployTask) -> DeploymentAnswer:
        """Admit the attempt; what happens to it is reported."""
        engine = self._engine()
        self._confine("deploy", message.attempt.job_id, deployment_problem(message))
        if message.instance != engine.lease.instance:
            raise Refused(f"attempt {message.attempt} is meant for an earlier incarnation of this TaskManager")
        if not engine.lease.accepts_work():
            raise Unavailable("this TaskManager has no lease to run anything: it has lost its leader")
        if engine.lease.is_longer_than(message.lease_s):
            raise Unavailable("the lease of an earlier leader lasts longer than the one of this leader")
        engine.session.deploy(message)
        log.info(log_events.TASK_DEPLOYED, attempt=str(message.attempt))
        engine.work.update_watchdog()
        return DeploymentAnswer(heartbeat=engine.work.heartbeats)

    async def command(self, message: TaskCommand) -> TaskAnswer:
        """Carry out a command to an attempt and return its answer."""
        log.info(log_events.TASK_COMMANDED, attempt=str(message.attempt), command=type(message).__name__)
        return await self._engine().session.command(message)

    async def publish(self, message: PublishFiles) -> None:
        """Begin to publish an accepted attempt."""
        self._confine("publish", message.attempt.job_id, publication_problem(message))
        self._engine().session.publish(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Remove directories that are Flintlock's own."""
        self._confine("remove_files", message.job_id, removal_problem(message))
        await self._engine().session.remove_files(message)

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return a piece of an attempt's output."""
        job_id = message.attempt.job_id
        self._confine("read_log", job_id, None if is_job_id(job_id) else f"{job_id!r} is not a job id")
        path = self._services.log_path(message.attempt)
        running = self._open is not None and message.attempt in self._open.core.running()
        return await asyncio.to_thread(task_logs.read_log, path, message, running=running)

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return a page of the jobs whose output is here."""
        if not self._services.log_directory.is_dir():
            return LoggedJobs()
        return LoggedJobs(job_ids=await asyncio.to_thread(self._logged.page, message.after, message.limit))

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Remove the output of these jobs."""
        await asyncio.to_thread(task_logs.remove_logs, self._services.log_directory, message.job_ids)

    async def query_process(self, message: ProcessQuery) -> ProcessAnswer:
        """Answer about this process, or about its engine."""
        if isinstance(message, ReadEngineUi):
            return await self._engine().session.read_ui(message)
        return await answer_process_query(message, self._services.process_logs, self._services.settings)

    async def watch_liveness(self, message: LivenessProbe) -> None:
        """Return when that incarnation is over, with all its work."""
        while self._instance == message.instance:
            await self._instance_changed.wait()

    async def shut_down(self, message: ShutDownCluster) -> None:  # noqa: ARG002 (however the cluster ended)
        """End `run`, with all that runs here."""
        self._shut_down.set()

    def _confine(self, method: str, job_id: str, problem: str | None) -> None:
        """Log and refuse what a message names that is not its job's. Raises Refused."""
        if problem is not None:
            log.error(log_events.FOREIGN_FILES_REFUSED, method=method, job_id=job_id, reason=problem)
            raise Refused(f"this TaskManager refuses {method}: {problem}")

    async def _run_engine(self) -> str:
        """Start an engine, run attempts on it until it ends, and return why it ended.

        When it ends, the engine is gone before its attempts are reported, and they are reported before the TaskManager
        unregisters: a retry never overlaps with them. A TaskManager that is cancelled takes the same path without
        reports, and so does one whose lease has lapsed: its JobMasters no longer wait for them.
        """
        services = self._services
        async with AsyncExitStack() as processes:
            self._starting = True
            try:
                engine, runners = await processes.enter_async_context(services.launcher.open())
            finally:
                self._starting = False
            async with asyncio.TaskGroup() as tasks:
                lease = CurrentLease(services.new_instance(), services.clock_s)
                outbox = Outbox(tasks, services.job_masters)
                core = TaskManagerCore(services.offer.slots, self._ended)
                reports = LeasedReports(services.offer.id, lease, outbox)
                session = EngineSession(
                    services,
                    core=core,
                    engine=engine,
                    runners=runners,
                    tasks=tasks,
                    report=reports.report,
                    lease=lease,
                )
                opened = self._open = self._compose(core, session, outbox, lease)
                self._engines += 1
                self._set_instance(lease.instance)
                background = (
                    tasks.create_task(opened.registration.run(), name="registration"),
                    tasks.create_task(opened.registration.watch_leader_changes(), name="leader-changes"),
                    tasks.create_task(session.kill_stopped_processes(), name="stopped-processes"),
                )
                cause = "the TaskManager stops"
                try:
                    cause = await session.ended()
                except asyncio.CancelledError:
                    outbox.close()
                    raise
                finally:
                    self._open = None
                    session.shut_down(cause)
                    if lease.is_open():
                        opened.registration.send_heartbeat_now()  # before reports have tasks deployed here again
                    await processes.aclose()
                    await session.finish()
                    self._ended = core.ended()
                    await self._sign_off(opened, background)
        return cause

    def _compose(
        self, core: TaskManagerCore, session: EngineSession, outbox: Outbox, lease: CurrentLease
    ) -> _OpenEngine:
        work = LeasedWork(
            self._services, core=core, session=session, outbox=outbox, lease=lease, engine_restarts=self._engines
        )
        registration = Registration(
            self._services, lease=lease, work=work, guard=self._guard, on_new_instance=self._set_instance
        )
        return _OpenEngine(core=core, session=session, outbox=outbox, lease=lease, work=work, registration=registration)

    async def _sign_off(self, engine: _OpenEngine, background: tuple[asyncio.Task[None], ...]) -> None:
        """Deliver the last reports of an engine on which nothing runs any more, then unregister."""
        try:
            if engine.lease.has_lapsed():
                engine.outbox.clear()  # the leader has declared this TaskManager lost
            await _within(engine.outbox.drained(), _LAST_REPORTS_S)
            engine.outbox.close()
            for task in background:
                task.cancel()
            await engine.registration.unregister()
        finally:
            self._set_instance(None)

    def _set_instance(self, instance: InstanceId | None) -> None:
        """Record the current incarnation, and wake the calls that watch the liveness of another."""
        self._instance = instance
        self._instance_changed.set()
        self._instance_changed = asyncio.Event()

    def _engine(self) -> _OpenEngine:
        if self._open is None:
            raise Unavailable("this TaskManager has no Spark engine at the moment")
        return self._open


async def _within(work: Awaitable[None], limit_s: float) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.warning(log_events.REPORTS_UNDELIVERED)
