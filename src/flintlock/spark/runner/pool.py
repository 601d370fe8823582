"""The pool of runners of one TaskManager: a template process, and runners that wait with their session opened.

A runner that waits has been forked, has its channel and its Spark session, and has had the server build what every
session builds once: its task then costs no more than the same query in a session that exists already. One is taken
for each task and replaced in the background: at once if none is left, otherwise when the task has ended or has shown
itself to be a long one, so that a short task has the machine for itself.

Sessions that wait expire on the server, so runners that have waited long are replaced. When the engine changes, those
that wait for the old one are killed. When the template dies, its runners die with it, and another is started.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.cgroups import Cgroups
from flintlock.host.children import forget_child, record_child
from flintlock.model import log_events
from flintlock.model.errors import Unavailable
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.tasks import DeployTask
from flintlock.spark.framing import frame, read_message
from flintlock.spark.region.session_config import default_config
from flintlock.spark.runner.defaults import EngineServices, RunnerDefaults
from flintlock.spark.runner.handle import ForkedRunner
from flintlock.spark.runner_messages import (
    FROM_TEMPLATE,
    Analyzed,
    Capture,
    DedicatedEngine,
    Exited,
    Fork,
    Forked,
    Kill,
    Prepare,
    TemplateReady,
)

log = structlog.get_logger(__name__)

#: A task that runs longer than this no longer keeps its replacement waiting.
REFILL_DELAY_S: Final = 0.5
#: Spark ends sessions that were idle for an hour.
WARM_AGE_S: Final = 1200.0
#: How long is waited before a template, or a runner that could not be prepared, is tried again.
RETRY_S: Final = 1.0
TEMPLATE_START_S: Final = 60.0
TEMPLATE_EXIT_S: Final = 5.0


class PoolSettings(Struct, frozen=True, kw_only=True):
    """How a pool is made."""

    scratch_dir: str  # the pool's own; directories of tasks are made below it, and removed
    run_dir: str  # where processes are recorded
    slots: int = 2  # of the TaskManager: what a session is prepared for
    warm: int = 2  # how many runners wait
    dedicated: DedicatedEngine | None = None
    memory: int = 0  # bytes that a runner may use whose task says nothing else; 0: no limit
    worker_memory: int = 0  # bytes that each of Spark's Python workers may use: the engine sees to it
    output_limit: int = 64 << 20  # bytes of each attempt's output that are kept
    cgroups: Cgroups | None = None  # where groups for runners can be made
    python: str = sys.executable
    environment: dict[str, str] | None = None  # of the template; where None: this process's


@asynccontextmanager
async def runner_pool(settings: PoolSettings) -> AsyncGenerator[ForkingPool]:
    """Run a pool; on exit none of its processes is left. `use_engine` tells it where to open sessions."""
    shutil.rmtree(settings.scratch_dir, ignore_errors=True)  # of a pool that was killed: numbers begin again
    Path(settings.scratch_dir).mkdir(parents=True)  # noqa: ASYNC240 - once, at the start
    async with asyncio.TaskGroup() as tasks:
        pool = ForkingPool(settings, tasks)
        supervisor = tasks.create_task(pool.supervise(), name="runner-template")
        refiller = tasks.create_task(pool.refill(), name="runner-refill")
        try:
            yield pool
        finally:
            refiller.cancel()
            supervisor.cancel()
            await asyncio.gather(supervisor, refiller, return_exceptions=True)
            pool.abandon("the pool is closed")


class ForkingPool:
    """Hands out runners, warm ones first. Made by `runner_pool`."""

    def __init__(self, settings: PoolSettings, tasks: asyncio.TaskGroup) -> None:
        self._settings: Final = settings
        self._home: Final = RunnerDefaults(
            scratch_dir=settings.scratch_dir,
            dedicated=settings.dedicated,
            memory=settings.memory,
            worker_memory=settings.worker_memory,
            output_limit=settings.output_limit,
            cgroups=settings.cgroups,
        )
        self._tasks: Final = tasks
        self._numbers: Final = count(1)
        self._engine: EngineServices | None = None  # set by use_engine
        self._control: socket.socket | None = None  # to the template, while it is ready
        self._ready: Final = asyncio.Event()  # set while there is a template
        self._template_pid: int | None = None  # as long as its process is not seen to end
        self._runners: Final[dict[int, ForkedRunner]] = {}  # until they have ended
        self._warm: Final[list[ForkedRunner]] = []  # oldest first
        self._changed: Final = asyncio.Event()  # wakes refill
        self._ended: Final = asyncio.Event()  # a runner has ended

    def use_engine(self, engine: EngineServices | None) -> None:
        """Open sessions on this engine from now on (None: there is none). Runners that wait for another are killed."""
        if engine is self._engine:
            return
        self._engine = engine
        for runner in self._runners.values():
            if not runner.taken:  # waits, or is being prepared to
                self.kill(runner.number)
        self._warm.clear()
        self._changed.set()

    async def take(self, task: DeployTask) -> ForkedRunner:
        """Return a runner for this task. Raises Unavailable if none can be started."""
        if task.graph.engine is EngineKind.DEDICATED:
            return await self._forked(self._engine, taken=True)
        return await self._taken()

    async def analyze(self, graph: JobGraph, log_path: str, artifacts: Mapping[str, str]) -> Analyzed:
        """Resolve the schemas of all steps of a graph, in a runner of its own, on the shared engine."""
        runner = await self._taken()
        try:
            return await runner.analyze(graph, log_path, artifacts)
        finally:
            await runner.kill()

    @property
    def pids(self) -> tuple[int, ...]:
        """The template's process, while there is one."""
        return () if self._template_pid is None else (self._template_pid,)

    def waiting(self) -> int:
        """Return how many runners wait for a task."""
        return len(self._warm)

    def alive(self) -> int:
        """Return how many runners there are, waiting or not."""
        return len(self._runners)

    async def supervise(self) -> None:
        """Keep a template running; ends only when cancelled."""
        while True:
            try:
                await self._template()
                log.warning(log_events.TEMPLATE_ENDED)
            except OSError as error:
                log.warning(log_events.TEMPLATE_NOT_STARTED, reason=str(error))
            finally:
                self.abandon("the template process ended")
            await asyncio.sleep(RETRY_S)

    async def refill(self) -> None:
        """Keep as many runners waiting as there should be; ends only when cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WARM_AGE_S / 4):
                    await self._changed.wait()
            self._changed.clear()
            self._retire()
            while self._engine is not None and len(self._warm) < self._settings.warm:
                await self._ready.wait()
                await self._leave_room()
                if not await self._warmed():
                    await asyncio.sleep(RETRY_S)

    def abandon(self, why: str) -> None:
        """Count every runner as gone: the template, without which none lives, is."""
        self._ready.clear()
        self._warm.clear()
        for runner in [*self._runners.values()]:
            self._gone(Exited(runner=runner.number, code=-9, fork_error=why))
            shutil.rmtree(runner.scratch, ignore_errors=True)

    async def _taken(self) -> ForkedRunner:
        engine = self._engine
        if engine is None:
            raise Unavailable("the engine is not ready")
        self._retire()
        if self._warm:
            runner = self._warm.pop(0)
            runner.taken = True
        else:
            runner = await self._forked(engine, taken=True)
            runner.prepare(_prepare(engine, {}, warm_up=False))  # the task sets its session up by itself
        self._changed.set()
        return runner

    async def _warmed(self) -> bool:
        """Prepare one more runner; False if that went wrong."""
        engine = self._engine
        if engine is None:
            return True
        try:
            runner = await self._forked(engine)
        except Unavailable as error:
            log.warning(log_events.RUNNER_NOT_STARTED, reason=error.public)
            return False
        runner.prepare(_prepare(engine, default_config(self._settings.slots), warm_up=True))
        problem = await runner.prepared()
        if problem is None and engine is self._engine and runner.alive:
            self._warm.append(runner)
            return True
        self.kill(runner.number)
        if problem is not None and engine is self._engine:
            log.warning(log_events.RUNNER_NOT_PREPARED, reason=problem)
            return False
        return True

    async def _leave_room(self) -> None:
        """Wait a moment while a task runs and another runner is there for the next one."""
        if not self._warm or not any(runner.in_use for runner in self._runners.values()):
            return
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REFILL_DELAY_S):
                await self._ended.wait()

    def _retire(self) -> None:
        """Drop waiting runners that have ended, and kill those whose session may have expired."""
        now_s = asyncio.get_running_loop().time()
        for runner in [*self._warm]:
            if not runner.alive or now_s - runner.born_s > WARM_AGE_S:
                self._warm.remove(runner)
                self.kill(runner.number)

    async def _forked(self, engine: EngineServices | None, *, taken: bool = False) -> ForkedRunner:
        try:
            async with asyncio.timeout(TEMPLATE_START_S):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable("the template of runners does not start") from None
        own, theirs = socket.socketpair()
        own.setblocking(False)
        try:
            streams = await asyncio.open_connection(sock=own)
            number = next(self._numbers)
            runner = ForkedRunner(number, self._home, streams, engine=engine, tasks=self._tasks, template=self)
            runner.taken = taken
            self._runners[number] = runner
            if not self._say(Fork(runner=number), theirs):
                self._gone(Exited(runner=number, fork_error="the template does not listen"))
        finally:
            theirs.close()
        await runner.started()
        return runner

    async def _template(self) -> None:
        """Start a template and hear it to its end."""
        own, theirs = socket.socketpair()
        own.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                self._settings.python, "-P", "-m", "flintlock.spark.runner.template",
                str(theirs.fileno()), str(os.getpid()),
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
                env=self._settings.environment,
            )  # fmt: skip
        self._template_pid = process.pid
        record = record_child(Path(self._settings.run_dir), "template", process.pid)
        reader, writer = await asyncio.open_connection(sock=own)
        try:
            while (message := await read_message(reader, FROM_TEMPLATE)) is not None:
                match message:
                    case TemplateReady():
                        self._control = own
                        self._ready.set()
                        self._changed.set()
                    case Forked(runner=number, pid=pid):
                        if number in self._runners:
                            self._runners[number].hear_started(pid)
                    case Exited():
                        self._gone(message)
        finally:
            self._ready.clear()
            self._control = None
            writer.close()  # at which the template kills its runners and ends
            await _ended(process)
            self._template_pid = None
            forget_child(record)

    def _gone(self, exited: Exited) -> None:
        runner = self._runners.pop(exited.runner, None)
        if runner is None:
            return
        runner.hear_exited(exited)
        if runner in self._warm:
            self._warm.remove(runner)
        self._ended.set()
        self._changed.set()
        # A program may leave much: the loop does not wait for it.
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, runner.scratch, True)

    def kill(self, number: int) -> None:
        """End a runner by force, with all that it started; harmless for one that has ended."""
        if number in self._runners:
            self._say(Kill(runner=number))

    def capture(self, number: int, path: str, limit: int) -> None:
        """Have what a runner prints written to a file, at most so many bytes of it."""
        self._say(Capture(runner=number, path=path, limit=limit))

    def _say(self, message: Fork | Kill | Capture, passed: socket.socket | None = None) -> bool:
        if self._control is None:
            return False
        try:
            if passed is None:
                self._control.send(frame(message))
            else:
                socket.send_fds(self._control, [frame(message)], [passed.fileno()])
        except OSError:
            return False
        return True


def _prepare(engine: EngineServices, config: dict[str, str], *, warm_up: bool) -> Prepare:
    session_id = str(uuid.uuid4())
    key = SparkSessionKey(user_id=f"flintlock-{session_id}", session_id=session_id)
    return Prepare(remote_url=engine.remote_url, session=key, config=config, warm_up=warm_up)


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Return when the process is gone; one that does not go by itself is killed."""
    try:
        async with asyncio.timeout(TEMPLATE_EXIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
