"""The attempts on one engine, from admission until nothing of them is left.

Each attempt is two tasks. Its *work* (fetch artifacts, take a runner, receive its messages) may be cancelled at any
time. The other waits for that and then cleans up: runner killed, Spark session released, or, where that cannot be
confirmed, the engine itself gone. Only the TaskManager's own end interrupts it: the end of every attempt is reported.

A runner that does not end although it was killed (it hangs in the kernel, on a dead network file system for example)
would keep its attempt and its slots for ever. As in Flink, that ends the whole TaskManager: its JobMasters learn of the
loss, and the pending kill keeps the runner from ever running user code again.

A process that is stopped (SIGSTOP) neither works nor dies. While anything runs, all processes are observed once a
second: a runner that stays stopped is killed and its task fails; an engine that does is ended, and its tasks fail with
that cause.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import structlog

from flintlock.gateways.engine import Engine, RunnerPool, TaskRunner
from flintlock.model import log_events
from flintlock.model.access.confinement import undeclared_sink
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand, TaskQuery
from flintlock.model.diagnostics import EngineUiPage, ReadEngineUi
from flintlock.model.errors import Corrupt, FlintlockError, JobFailed, NotFound, Refused, Unavailable
from flintlock.model.ids import AttemptId
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    PublicationFailed,
    PublishFiles,
    RemoveFiles,
    TaskFailed,
    TaskFinished,
    TaskNews,
    TaskProgress,
    TaskRunning,
)
from flintlock.taskmanager.core import (
    InterruptTask,
    KillTask,
    Report,
    StartPublishing,
    StartTask,
    StopPublishing,
    TaskManagerCore,
    TaskManagerEffect,
)
from flintlock.taskmanager.lease import CurrentLease
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.stopped_processes import OBSERVATION_INTERVAL_S, STRIKES, StoppedProcessDetector
from flintlock.taskmanager.task_logs import with_output_tail

_RunnerNews: TypeAlias = TaskRunning | TaskProgress | TaskFinished | TaskFailed

_CAUSE_WAIT_S: Final = 3.0
_RELEASE_S: Final = 20.0
#: How long a runner may take to end once it was killed.
_KILLED_S: Final = 30.0
_STOPPED: Final = f"{STRIKES * OBSERVATION_INTERVAL_S:.0f} s"
log = structlog.get_logger()


@dataclass
class _RunningAttempt:
    """The tasks and the runner of one attempt."""

    order: DeployTask
    interrupt: asyncio.Event = field(default_factory=asyncio.Event)  # set by cancel
    fetching: bool = True  # until its artifacts are local: before that, its work is cancelled without asking a runner
    runner: TaskRunner | None = None  # written by its work
    work: asyncio.Task[None] | None = None  # written as it starts


class EngineSession:
    """Runs attempts on one engine, in a TaskGroup that ends after the engine has."""

    def __init__(
        self,
        services: TaskManagerServices,
        *,
        core: TaskManagerCore,
        engine: Engine,
        runners: RunnerPool,
        tasks: asyncio.TaskGroup,
        report: Callable[[AttemptId, TaskNews], None],
        lease: CurrentLease,
    ) -> None:
        self._services: Final = services
        self._core: Final = core
        self._engine: Final = engine
        self._runners: Final = runners
        self._tasks: Final = tasks
        self._report: Final = report
        self._lease: Final = lease
        self._busy = asyncio.Event()  # set as work arrives, cleared when an observation finds none
        self._attempts: dict[AttemptId, _RunningAttempt] = {}  # each removed once it is torn down
        self._under_way: set[asyncio.Task[None]] = set()  # attempts and publications; each removed when it is done
        self._publishing: dict[AttemptId, asyncio.Task[None]] = {}  # the publications among them
        # Why the engine has to be replaced: a session of it cannot be ended, or it was stopped.
        self._must_restart: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        self._stopped: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        self._cause_known = asyncio.Event()  # set once the core knows why the engine died
        self._engine_gone = asyncio.Event()  # set once nothing of the engine is left

    def deploy(self, order: DeployTask) -> None:
        """Admit and start an attempt. Raises Refused."""
        self._perform(self._core.deploy(order))

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Carry out a command to an attempt and return its answer. See TaskManagerGateway."""
        match command:
            case CancelTask(attempt=attempt):
                self._perform(self._core.cancel(attempt))
                return CommandAccepted()
            case _:
                return await self._query(command)

    async def _query(self, query: TaskQuery) -> TaskAnswer:
        self._core.check_runs(query.attempt)
        runner = self._attempts[query.attempt].runner
        if runner is None:
            raise Unavailable(f"attempt {query.attempt} has no runner yet")
        return await runner.command(query)

    def discard(self, attempt: AttemptId) -> None:
        """Begin to cancel an attempt that no JobMaster wants. Harmless if it is not here."""
        self._perform(self._core.discard(attempt))

    def publish(self, order: PublishFiles) -> None:
        """Begin to publish an accepted attempt."""
        self._perform(self._core.publish(order))

    async def remove_files(self, order: RemoveFiles) -> None:
        """Remove directories of an ended job."""
        await self._engine.remove_directories(order.directories)

    async def read_ui(self, query: ReadEngineUi) -> EngineUiPage:
        """Return a page of Spark's UI of the engine. Raises Refused, Unavailable."""
        return await self._engine.read_ui(query.path, query.root)

    def runner_pids(self) -> dict[int, AttemptId]:
        """Return the processes of the attempts that run."""
        return {
            own.runner.pid: attempt
            for attempt, own in self._attempts.items()
            if own.runner is not None and own.runner.pid is not None
        }

    def engine_pids(self) -> tuple[int, ...]:
        """Return the engine's processes."""
        return self._engine.pids

    async def ended(self) -> str:
        """Return why this session is over: the engine died, or has to be replaced."""
        died = self._tasks.create_task(self._engine.died(), name="engine-death")
        try:
            await asyncio.wait({died, self._must_restart, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                return self._stopped.result()  # its death by SIGKILL follows from that
            # A session that cannot be ended may be the first sign of a death, whose own cause is the one to report.
            await asyncio.wait({died}, timeout=_CAUSE_WAIT_S)
            return died.result() if died.done() else self._must_restart.result()
        finally:
            died.cancel()

    def shut_down(self, cause: str) -> None:
        """Refuse deployments and stop all work, because the engine is dead or about to be ended."""
        self._core.engine_died(cause)
        self._cause_known.set()
        for own in self._attempts.values():
            if own.work is not None:
                own.work.cancel()
        for task in self._publishing.values():
            task.cancel()

    async def finish(self) -> None:
        """Return once every attempt is torn down and reported; call it when the engine is gone."""
        self._engine_gone.set()
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def end_all(self, patience_s: float) -> None:
        """Cancel every attempt and return once all are torn down; kill those that take longer than `patience_s`."""
        for attempt in self._core.running():
            self._perform(self._core.cancel(attempt))
        try:
            async with asyncio.timeout(patience_s):
                await self._wait_until_idle()
        except TimeoutError:
            for attempt in self._core.running():
                self._perform(self._core.kill(attempt))
            await self._wait_until_idle()

    async def replace_engine(self, why: str) -> None:
        """End this session, and wait to be cancelled with it."""
        self._require_restart(why)
        await asyncio.get_running_loop().create_future()

    async def kill_stopped_processes(self) -> None:
        """Kill processes that stay stopped, until cancelled; nothing is observed while nothing runs."""
        processes, detector = self._services.processes, StoppedProcessDetector()
        if processes is None:
            return
        while True:
            await self._busy.wait()
            runners, engine, template = self.runner_pids(), self._engine.pids, self._runners.pids
            observed = (*runners, *engine, *template)
            for pid in detector.observe({pid: processes.is_stopped(pid) for pid in observed}):
                processes.kill(pid)
                if pid in engine:
                    if not self._stopped.done():
                        self._stopped.set_result(f"its process {pid} was stopped, and killed after {_STOPPED}")
                elif pid in runners:
                    self._lose(runners[pid], f"the runner was stopped (process {pid}), and killed after {_STOPPED}")
                else:
                    for attempt in runners.values():
                        self._lose(attempt, f"the template of runners was stopped, and killed after {_STOPPED}")
            await asyncio.sleep(OBSERVATION_INTERVAL_S)
            if self._core.is_empty():
                self._busy.clear()

    def _lose(self, attempt: AttemptId, why: str) -> None:
        log.warning(log_events.RUNNER_KILLED, attempt=str(attempt), reason=why)
        failure = Failure(kind=FailureKind.RUNNER_LOST, message=why, exception="RunnerLost")
        self._perform(self._core.lose(attempt, failure))

    async def _wait_until_idle(self) -> None:
        while self._core.running():
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    def _perform(self, effects: tuple[TaskManagerEffect, ...]) -> None:
        for effect in effects:
            match effect:
                case StartTask(order=order):
                    self._busy.set()
                    own = self._attempts[order.attempt] = _RunningAttempt(order)
                    own.work = self._tasks.create_task(self._work(own), name=f"work-{order.attempt}")
                    self._start(self._attempt(own, own.work), f"attempt-{order.attempt}")
                case InterruptTask(attempt=attempt):
                    own = self._attempts[attempt]
                    own.interrupt.set()
                    if own.fetching and own.work is not None:
                        own.work.cancel()
                case KillTask(attempt=attempt):
                    own = self._attempts[attempt]
                    own.interrupt.set()
                    if own.fetching and own.work is not None:
                        own.work.cancel()
                    elif own.runner is not None:  # else its work finds the interrupt as it gets the runner
                        self._start(self._kill(own.runner, attempt), f"kill-{attempt}")
                case StartPublishing(order=order):
                    self._busy.set()
                    task = self._start(self._publish(order), f"publish-{order.attempt}")
                    self._publishing[order.attempt] = task
                    task.add_done_callback(partial(self._published, order.attempt))
                case StopPublishing(attempt=attempt):
                    self._publishing[attempt].cancel()
                case Report(attempt=attempt, news=news):
                    self._report(attempt, with_output_tail(news, self._services.log_path(attempt)))

    def _start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _attempt(self, own: _RunningAttempt, work: asyncio.Task[None]) -> None:
        """Wait for the work to end, then tear the attempt down, whatever happened."""
        attempt = own.order.attempt
        with self._services.pin_blobs(artifact.blob for artifact in own.order.graph.artifacts):
            try:
                await asyncio.wait({work})
            finally:
                await self._tear_down(own)
                del self._attempts[attempt]
        self._perform(self._core.torn_down(attempt))
        if not self._core.running():
            self._services.set_watchdog_deadline(math.inf)

    async def _work(self, own: _RunningAttempt) -> None:
        attempt = own.order.attempt
        try:
            artifacts = await self._fetch_artifacts(own.order)
            own.fetching = False
            if not own.interrupt.is_set():
                own.runner = await self._runners.take(own.order)
            if not own.interrupt.is_set() and own.runner is not None:
                await self._drive_runner(own.runner, own, artifacts)
        except FlintlockError as error:
            self._perform(self._core.received(attempt, TaskFailed(failure=_failure(error))))
        except OSError as error:  # a full or unwritable disk fails this attempt, not the TaskManager
            failure = Failure(kind=FailureKind.RUNNER_LOST, message=str(error), exception=type(error).__name__)
            self._perform(self._core.received(attempt, TaskFailed(failure=failure)))

    async def _drive_runner(self, runner: TaskRunner, own: _RunningAttempt, artifacts: Mapping[str, str]) -> None:
        attempt = own.order.attempt
        path = self._services.log_path(attempt)
        await self._services.prepare_log(path)
        if self._lease.has_lapsed():  # this process was stopped meanwhile: the task may run elsewhere by now
            await own.interrupt.wait()
            return
        watch = self._tasks.create_task(self._cancel_on_request(runner, own), name=f"cancel-{attempt}")
        try:
            async for news in runner.run(own.order, str(path), artifacts):
                self._perform(self._core.received(attempt, _confined(own.order, news)))
        finally:
            watch.cancel()

    async def _cancel_on_request(self, runner: TaskRunner, own: _RunningAttempt) -> None:
        """Wait for a cancel, then ask the runner to stop; kill it if it does not."""
        await own.interrupt.wait()
        try:
            async with asyncio.timeout(own.order.cancel_timeout_s):
                await runner.command(CancelTask(attempt=own.order.attempt))
                await asyncio.get_running_loop().create_future()
        except (FlintlockError, TimeoutError):
            log.info(
                log_events.RUNNER_KILLED,
                attempt=str(own.order.attempt),
                reason="it did not stop in time",
            )
            await self._kill(runner, own.order.attempt)

    async def _kill(self, runner: TaskRunner, attempt: AttemptId) -> None:
        """Kill a runner and return once it is gone; end this process if it cannot be killed."""
        try:
            async with asyncio.timeout(_KILLED_S):
                await runner.kill()
        except TimeoutError:
            self._services.end_process(
                f"the runner of attempt {attempt} (process {runner.pid}) was killed and has not ended within"
                f" {_KILLED_S:g} s: it hangs in the kernel"
            )
            await runner.kill()

    async def _tear_down(self, own: _RunningAttempt) -> None:
        """Return once nothing of the attempt is left."""
        if own.runner is not None:
            await self._kill(own.runner, own.order.attempt)
        if self._core.suspects_engine(own.order.attempt):
            await self._wait_for_engine_cause()
        confirmed = own.runner is None or await self._release_session(own.runner)
        if not confirmed:
            self._require_restart(f"the Spark session of attempt {own.order.attempt} could not be ended")
        if not confirmed or self._core.engine_cause is not None:
            await self._engine_gone.wait()  # what it left in the engine ends with the engine

    def _require_restart(self, why: str) -> None:
        if not self._must_restart.done():
            self._must_restart.set_result(why)

    async def _release_session(self, runner: TaskRunner) -> bool:
        """End the runner's Spark session; False if that cannot be confirmed while the engine is alive."""
        if runner.session is None or self._core.engine_cause is not None:
            return True
        try:
            async with asyncio.timeout(_RELEASE_S):
                return await self._engine.release_session(runner.session)
        except (FlintlockError, TimeoutError):
            return False

    async def _wait_for_engine_cause(self) -> None:
        """Wait briefly for the engine's own cause of death: a runner that lost its connection knows none."""
        try:
            async with asyncio.timeout(_CAUSE_WAIT_S):
                await self._cause_known.wait()
        except TimeoutError:
            log.info(log_events.ENGINE_STILL_ALIVE, reason="a runner lost its connection, but the engine did not die")

    async def _fetch_artifacts(self, order: DeployTask) -> dict[str, str]:
        fetched: dict[str, str] = {}
        for artifact in order.graph.artifacts:
            try:
                fetched[artifact.name] = str(await self._services.fetch_blob(artifact.blob))
            except NotFound as error:
                raise NotFound(f"the artifact {artifact.name!r} is gone: {error.public}") from error
            except Corrupt as error:
                raise NotFound(f"the artifact {artifact.name!r} is damaged: {error.public}") from error
        return fetched

    async def _publish(self, order: PublishFiles) -> None:
        try:
            async for step in self._engine.publish(order.sinks):
                self._report(order.attempt, step)
        except asyncio.CancelledError:
            if self._core.engine_cause is None:
                raise
            self._report(order.attempt, PublicationFailed(reason=f"the Spark engine died: {self._core.engine_cause}"))
        except JobFailed as error:
            news = PublicationFailed(reason=error.public, permanent=error.permanent, stopped=True)
            self._report(order.attempt, news)
        except FlintlockError as error:
            self._report(order.attempt, PublicationFailed(reason=error.public))

    def _published(self, attempt: AttemptId, _: asyncio.Task[None]) -> None:
        """A publication has ended, perhaps before it began."""
        del self._publishing[attempt]
        self._core.published(attempt)


def _confined(order: DeployTask, news: _RunnerNews) -> _RunnerNews:
    """Return what a runner reports; a failure in its place if it names files that are not its region's.

    User code runs in the runner, so its word alone must not decide which files are moved and removed.
    """
    if not isinstance(news, TaskFinished):
        return news
    problem = undeclared_sink(news.sinks, order.graph, order.region, order.attempt)
    if problem is None:
        return news
    log.error(log_events.FOREIGN_FILES_REFUSED, method="run", job_id=order.attempt.job_id, reason=problem)
    message = f"the task reported files that are not its own: {problem}"
    return TaskFailed(failure=Failure(kind=FailureKind.INTERNAL, message=message, exception="ForeignOutput"))


def _failure(error: FlintlockError) -> Failure:
    kind = FailureKind.RUNNER_LOST
    if isinstance(error, NotFound):
        kind = FailureKind.MISSING_ARTIFACT
    elif isinstance(error, Refused):
        kind = FailureKind.CONFIGURATION
    return Failure(kind=kind, message=error.public, exception=type(error).__name__)
