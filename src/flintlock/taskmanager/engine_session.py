"""One life of the engine: the attempts that run on it, from admission to the last trace of them.

Each attempt is two tasks. Its *work* (fetch artifacts, take a runner, listen to it) may be cancelled at any moment. The
other waits for that and then clears away: runner killed, Spark session released, or, where that cannot be confirmed,
the engine itself gone. Nothing but the TaskManager's own end interrupts it: every attempt is told to have ended.

A process that is stopped (SIGSTOP) neither works nor dies. While anything runs, it is looked at once a second: a runner
that stays stopped is killed and its task fails; an engine that does is ended, and its tasks fail with that cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from flintlock.gateways.engine import Engine, ProcessTable, Runner, RunnerPool
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, FlintlockError, NotFound, Refused
from flintlock.model.ids import AttemptId, BlobKey
from flintlock.model.tasks import (
    CancelTask,
    DeployTask,
    Failure,
    FailureKind,
    PublicationFailed,
    PublishFiles,
    RemoveFiles,
    TaskFailed,
    TaskNews,
)
from flintlock.taskmanager.core import (
    Effect,
    InterruptTask,
    KillTask,
    Report,
    StartPublishing,
    StartTask,
    TaskManagerCore,
)
from flintlock.taskmanager.stopped_processes import LOOK_S, LOOKS, StoppedProcessDetector

_CAUSE_WAIT_S: Final = 3.0
_RELEASE_S: Final = 20.0
_STOPPED: Final = f"{LOOKS * LOOK_S:.0f} s"
log = structlog.get_logger()
HoldBlobs: TypeAlias = Callable[[Iterable[BlobKey]], AbstractContextManager[None]]
"""Keeps local copies of blobs from being removed while the context lasts: runners link to them."""


@dataclass
class _Attempt:
    """What stands behind one attempt."""

    order: DeployTask
    interrupt: asyncio.Event = field(default_factory=asyncio.Event)  # set by cancel
    fetching: bool = True  # until its artifacts are there: what it does then is given up without asking
    runner: Runner | None = None  # written by its work
    work: asyncio.Task[None] | None = None  # written as it starts


class EngineSession:
    """Runs attempts on one engine. Use as the body of a TaskGroup that ends after the engine has."""

    def __init__(
        self,
        *,
        core: TaskManagerCore,
        engine: Engine,
        runners: RunnerPool,
        tasks: asyncio.TaskGroup,
        fetch_blob: Callable[[BlobKey], Awaitable[Path]],
        hold_blobs: HoldBlobs,
        log_path: Callable[[AttemptId], Path],
        prepare_log: Callable[[Path], None],
        report: Callable[[AttemptId, TaskNews], None],
        emptied: Callable[[], None],
        processes: ProcessTable | None,
    ) -> None:
        self._core = core
        self._engine = engine
        self._runners = runners
        self._tasks = tasks
        self._fetch_blob = fetch_blob
        self._hold_blobs = hold_blobs
        self._log_path = log_path
        self._prepare_log = prepare_log
        self._report = report
        self._emptied = emptied  # called whenever no attempt is left
        self._processes = processes
        self._busy = asyncio.Event()  # set as work comes, cleared when it is found that none is left
        self._attempts: dict[AttemptId, _Attempt] = {}  # left by each attempt as its last deed
        self._under_way: set[asyncio.Task[None]] = set()  # attempts and publications; each leaves when it is done
        self._publishing: set[asyncio.Task[None]] = set()  # the publications among them
        self._condemned: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        self._stopped: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()  # as is its engine
        self._lost = asyncio.Event()  # set once the engine's death is known here, with its cause
        self._gone = asyncio.Event()  # set once nothing of the engine is left

    def deploy(self, order: DeployTask) -> None:
        """Admit and start an attempt. Raises Refused."""
        self._perform(self._core.deploy(order))

    def cancel(self, order: CancelTask) -> None:
        """Begin to end an attempt."""
        self._perform(self._core.cancel(order.attempt))

    def discard(self, attempt: AttemptId) -> None:
        """Begin to end an attempt that nobody wants. Harmless if it is not here."""
        self._perform(self._core.discard(attempt))

    def publish(self, order: PublishFiles) -> None:
        """Begin to publish an accepted attempt."""
        self._perform(self._core.publish(order))

    async def remove_files(self, order: RemoveFiles) -> None:
        """Remove directories of an ended job."""
        await self._engine.remove_directories(order.directories)

    def running(self) -> tuple[AttemptId, ...]:
        """Return the attempts that are not yet torn down."""
        return self._core.running()

    def slots_used(self) -> int:
        """Return how many slots are held by attempts that may still be at work."""
        return self._core.slots_used()

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

    def held(self) -> dict[AttemptId, tuple[int, ...]]:
        """Return the attempts that are not yet torn down, with their slots."""
        return self._core.held()

    async def ended(self) -> str:
        """Return why this life is over: the engine died, or can no longer be trusted."""
        died = self._tasks.create_task(self._engine.died(), name="engine-death")
        try:
            await asyncio.wait({died, self._condemned, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                return self._stopped.result()  # that it was then killed is no news
            # A session that cannot be ended may be the first sign of a death, whose own cause is the one worth telling.
            await asyncio.wait({died}, timeout=_CAUSE_WAIT_S)
            return died.result() if died.done() else self._condemned.result()
        finally:
            died.cancel()

    def doom(self, cause: str) -> None:
        """Admit nobody any more and stop all work, because the engine is dead or about to be ended."""
        self._core.engine_died(cause)
        self._lost.set()
        for own in self._attempts.values():
            if own.work is not None:
                own.work.cancel()
        for task in self._publishing:
            task.cancel()

    async def finish(self) -> None:
        """The engine is gone: return once every attempt is torn down and reported with that cause."""
        self._gone.set()
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def end_all(self, patience_s: float) -> None:
        """End every attempt and return once nothing of them is left; those that take longer than this are killed."""
        for attempt in self._core.running():
            self._perform(self._core.cancel(attempt))
        try:
            async with asyncio.timeout(patience_s):
                await self._none_runs()
        except TimeoutError:
            for attempt in self._core.running():
                self._perform(self._core.kill(attempt))
            await self._none_runs()

    async def look_after_processes(self) -> None:
        """Kill what stays stopped; nothing is looked at while nothing runs. Ends only when cancelled."""
        processes, stoppages = self._processes, StoppedProcessDetector()
        if processes is None:
            return
        while True:
            await self._busy.wait()
            runners, engine, template = self.runner_pids(), self._engine.pids, self._runners.pids
            everyone = (*runners, *engine, *template)
            for pid in stoppages.look({pid: processes.is_stopped(pid) for pid in everyone}):
                processes.kill(pid)
                if pid in engine:
                    if not self._stopped.done():
                        self._stopped.set_result(f"its process {pid} was stopped, and killed after {_STOPPED}")
                elif pid in runners:
                    self._lose(runners[pid], f"the runner was stopped (process {pid}), and killed after {_STOPPED}")
                else:
                    for attempt in runners.values():
                        self._lose(attempt, f"the template of runners was stopped, and killed after {_STOPPED}")
            await asyncio.sleep(LOOK_S)
            if self._core.is_empty():
                self._busy.clear()

    def _lose(self, attempt: AttemptId, why: str) -> None:
        log.warning(log_events.RUNNER_KILLED, attempt=str(attempt), reason=why)
        failure = Failure(kind=FailureKind.RUNNER_LOST, message=why, exception="RunnerLost")
        self._perform(self._core.lose(attempt, failure))

    async def _none_runs(self) -> None:
        while self._core.running():
            await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)

    def _perform(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case StartTask(order=order):
                    self._busy.set()
                    own = self._attempts[order.attempt] = _Attempt(order)
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
                    elif own.runner is not None:  # else it is not used when it comes
                        self._start(own.runner.kill(), f"kill-{attempt}")
                case StartPublishing(order=order):
                    self._busy.set()
                    task = self._start(self._publish(order), f"publish-{order.attempt}")
                    self._publishing.add(task)
                    task.add_done_callback(self._publishing.discard)
                case Report(attempt=attempt, news=news):
                    self._report(attempt, news)

    def _start(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = self._tasks.create_task(work, name=name)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _attempt(self, own: _Attempt, work: asyncio.Task[None]) -> None:
        """Wait for the work to end, then remove every trace of it, whatever happened."""
        attempt = own.order.attempt
        with self._hold_blobs(artifact.blob for artifact in own.order.graph.artifacts):
            try:
                await asyncio.wait({work})
            finally:
                await self._tear_down(own)
                del self._attempts[attempt]
        self._perform(self._core.torn_down(attempt))
        if not self._core.running():
            self._emptied()

    async def _work(self, own: _Attempt) -> None:
        attempt = own.order.attempt
        try:
            artifacts = await self._artifacts(own.order)
            own.fetching = False
            if not own.interrupt.is_set():
                own.runner = await self._runners.take(own.order)
            if not own.interrupt.is_set() and own.runner is not None:
                await self._converse(own.runner, own, artifacts)
        except FlintlockError as error:
            self._perform(self._core.heard(attempt, TaskFailed(failure=_failure(error))))
        except OSError as error:  # a full or unwritable disk is this attempt's misfortune, not everybody's
            failure = Failure(kind=FailureKind.RUNNER_LOST, message=str(error), exception=type(error).__name__)
            self._perform(self._core.heard(attempt, TaskFailed(failure=failure)))

    async def _converse(self, runner: Runner, own: _Attempt, artifacts: Mapping[str, str]) -> None:
        attempt = own.order.attempt
        path = self._log_path(attempt)
        self._prepare_log(path)
        watch = self._tasks.create_task(self._obey(runner, own), name=f"cancel-{attempt}")
        try:
            async for news in runner.run(own.order, str(path), artifacts):
                self._perform(self._core.heard(attempt, news))
        finally:
            watch.cancel()

    async def _obey(self, runner: Runner, own: _Attempt) -> None:
        """Wait for a cancel, then ask the runner to stop; kill it if it does not."""
        await own.interrupt.wait()
        try:
            async with asyncio.timeout(own.order.cancel_timeout_s):
                await runner.interrupt()
                await asyncio.get_running_loop().create_future()
        except (FlintlockError, TimeoutError):
            log.warning(
                log_events.RUNNER_KILLED, attempt=str(own.order.attempt), reason="did not obey the cancel in time"
            )
            await runner.kill()

    async def _tear_down(self, own: _Attempt) -> None:
        """Return once nothing of the attempt is left."""
        if own.runner is not None:
            await own.runner.kill()
        if self._core.suspects_engine(own.order.attempt):
            await self._engine_cause_known()
        confirmed = own.runner is None or await self._released(own.runner)
        if not confirmed and not self._condemned.done():
            self._condemned.set_result(f"the Spark session of attempt {own.order.attempt} could not be ended")
        if not confirmed or self._core.engine_cause is not None:
            await self._gone.wait()  # what it left in the engine ends with the engine

    async def _released(self, runner: Runner) -> bool:
        """End the runner's Spark session; False if that cannot be confirmed and the engine is still there."""
        if runner.session is None or self._core.engine_cause is not None:
            return True
        try:
            async with asyncio.timeout(_RELEASE_S):
                return await self._engine.release_session(runner.session)
        except (FlintlockError, TimeoutError):
            return False

    async def _engine_cause_known(self) -> None:
        """Wait a moment for the engine's own word: a runner that lost its connection knows no cause."""
        try:
            async with asyncio.timeout(_CAUSE_WAIT_S):
                await self._lost.wait()
        except TimeoutError:
            log.info(log_events.ENGINE_STILL_ALIVE, reason="a runner lost its connection, but the engine did not die")

    async def _artifacts(self, order: DeployTask) -> dict[str, str]:
        fetched: dict[str, str] = {}
        for artifact in order.graph.artifacts:
            try:
                fetched[artifact.name] = str(await self._fetch_blob(artifact.blob))
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
        except FlintlockError as error:
            self._report(order.attempt, PublicationFailed(reason=error.public))
        finally:
            self._core.published(order.attempt)


def _failure(error: FlintlockError) -> Failure:
    kind = FailureKind.RUNNER_LOST
    if isinstance(error, NotFound):
        kind = FailureKind.MISSING_ARTIFACT
    elif isinstance(error, Refused):
        kind = FailureKind.CONFIGURATION
    return Failure(kind=kind, message=error.public, exception=type(error).__name__)
