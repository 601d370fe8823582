"""The pool of runners of one TaskManager: a template process, and warm runners with an open session.

A warm runner has been forked, has its channel and its Spark session, and has had the server build what every session
builds once: its task then costs no more than the same query in an existing session. One is taken for each task and
replaced in the background: immediately if none is left, otherwise when the task has ended or has run for a while, so
that a short task has the machine for itself.

Idle sessions expire on the server, so warm runners are replaced when they are old. When the engine changes, warm
runners of the old one are killed. When the template dies, its runners die with it, and another is started.

The tasks of a job with a Python environment of its own are runners of another pool, whose template that environment's
Python runs. It has no warm runners, and ends when it was not used for a while.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct, structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.cgroups import Cgroups
from flintlock.host.processes.children import forget_child, record_child
from flintlock.host.runner_user import CONFINED, OWN, PASSABLE, RunnerUser, process_user
from flintlock.model import log_events
from flintlock.model.checking.dependencies import has_environment
from flintlock.model.errors import Unavailable
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.tasks import DeployTask
from flintlock.security.job_secrets import SecretProvider
from flintlock.spark.engine.python.worker_output import PIPES_VARIABLE
from flintlock.spark.environments import EnvironmentPlaces
from flintlock.spark.framing import frame, read_message
from flintlock.spark.region.session_config import default_config
from flintlock.spark.runner.auto_runner import AutoRunner
from flintlock.spark.runner.defaults import EngineServices, RunnerDefaults
from flintlock.spark.runner.environment_runner import EnvironmentRunner
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

#: A task that runs longer than this no longer delays the replacement of its runner.
REFILL_DELAY_S: Final = 0.5
#: Spark ends sessions that were idle for an hour.
WARM_AGE_S: Final = 1200.0
#: Pause before another attempt to start a template, or to prepare a runner.
RETRY_S: Final = 1.0
TEMPLATE_START_S: Final = 60.0
TEMPLATE_EXIT_S: Final = 5.0
#: How long the template of a Python environment waits for the next task: a job may have many.
ENVIRONMENT_IDLE_S: Final = 60.0


class PoolSettings(Struct, frozen=True, kw_only=True):
    """The settings of a pool."""

    scratch_dir: str  # the pool's own; directories of tasks are made below it, and removed
    run_dir: str  # where processes are recorded
    worker_output: str = ""  # for the pipes of runners, below scratch_dir; where empty: they have no names
    slots: int = 2  # of the TaskManager; sessions are prepared for as many
    warm: int = 2  # the number of warm runners
    dedicated: DedicatedEngine | None = None
    memory: int = 0  # bytes that a runner may use unless its task has a limit of its own; 0: no limit
    worker_memory: int = 0  # bytes that each of Spark's Python workers may use; enforced by the engine
    output_limit: int = 64 << 20  # bytes of each attempt's output that are written
    cgroups: Cgroups | None = None  # where groups for runners can be made
    secrets: tuple[SecretProvider, ...] = ()  # where the secrets of jobs are read
    environments: EnvironmentPlaces = EnvironmentPlaces(own="")  # of the Python environments of jobs
    user: RunnerUser | None = None  # whom template and runners run as; None: the user of this process
    python: str = sys.executable
    environment: dict[str, str] | None = None  # of the template; where None: this process's


@asynccontextmanager
async def runner_pool(settings: PoolSettings) -> AsyncGenerator[ForkingPool]:
    """Run a pool; on exit none of its processes is left. `use_engine` sets where it opens sessions."""
    _make_scratch(settings)
    async with _running_pool(settings, count(1)) as pool:
        yield pool


@asynccontextmanager
async def _running_pool(settings: PoolSettings, numbers: Iterator[int]) -> AsyncGenerator[ForkingPool]:
    async with asyncio.TaskGroup() as tasks:
        pool = ForkingPool(settings, tasks, numbers)
        supervisor = tasks.create_task(pool.supervise(), name="runner-template")
        refiller = tasks.create_task(pool.refill(), name="runner-refill")
        try:
            yield pool
        finally:
            refiller.cancel()
            supervisor.cancel()
            await asyncio.gather(supervisor, refiller, *pool.end_environments(), return_exceptions=True)
            pool.abandon("the pool is closed")


class ForkingPool:
    """Hands out runners, warm ones first. Made by `runner_pool`."""

    def __init__(self, settings: PoolSettings, tasks: asyncio.TaskGroup, numbers: Iterator[int]) -> None:
        self._settings: Final = settings
        self._defaults: Final = RunnerDefaults(
            scratch_dir=settings.scratch_dir,
            cores=settings.slots,
            dedicated=settings.dedicated,
            memory=settings.memory,
            worker_memory=settings.worker_memory,
            output_limit=settings.output_limit,
            cgroups=settings.cgroups,
            secrets=settings.secrets,
            environments=settings.environments,
            user=settings.user,
        )
        self._tasks: Final = tasks
        self._numbers: Final = numbers  # of runners: no two pools of a TaskManager use the same
        #: The pools of Python environments, by their Python; each is removed before it ends.
        self._environments: Final[dict[str, asyncio.Future[ForkingPool]]] = {}
        self._environment_tasks: Final[set[asyncio.Task[None]]] = set()
        self._forking = 0  # runners that are not among _runners yet
        self._engine: EngineServices | None = None  # set by use_engine
        self._control: socket.socket | None = None  # to the template, while it is ready
        self._ready: Final = asyncio.Event()  # set while there is a template
        self._template_pid: int | None = None  # until its process has ended
        self._runners: Final[dict[int, ForkedRunner]] = {}  # until their exit is reported
        self._warm: Final[list[ForkedRunner]] = []  # oldest first
        self._changed: Final = asyncio.Event()  # wakes refill
        self._runner_ended: Final = asyncio.Event()

    def use_engine(self, engine: EngineServices | None) -> None:
        """Open sessions on this engine from now on (None: there is none). Warm runners of another are killed."""
        if engine is self._engine:
            return
        self._engine = engine
        for pool in self._open_environments():
            pool.use_engine(engine)
        for runner in self._runners.values():
            if not runner.taken:  # warm, or being prepared
                self.kill(runner.number)
        self._warm.clear()
        self._changed.set()

    async def take(self, task: DeployTask) -> ForkedRunner | AutoRunner | EnvironmentRunner:
        """Return a runner for this task. Raises Unavailable if none can be started."""
        if has_environment(task.graph):
            return EnvironmentRunner(await self._take_dedicated(), partial(self._take_in_environment, task))
        return await self.take_here(task)

    async def take_here(self, task: DeployTask) -> ForkedRunner | AutoRunner:
        """Return a runner that this pool's own Python runs. Raises Unavailable if none can be started."""
        if task.graph.engine is EngineKind.AUTO:
            return AutoRunner(await self._take_shared(), self._take_dedicated)
        return await self.take_process(task)

    async def take_process(self, task: DeployTask) -> ForkedRunner:
        """Return one process, for a task whose engine is known. Raises Unavailable if none can be started."""
        dedicated = task.graph.engine is EngineKind.DEDICATED
        return await (self._take_dedicated() if dedicated else self._take_shared())

    async def analyze(self, graph: JobGraph, log_path: str, artifacts: Mapping[str, str]) -> Analyzed:
        """Resolve the schemas of all steps of a graph, in a runner of its own, on the shared engine."""
        runner = await self._take_shared()
        try:
            return await runner.analyze(graph, log_path, artifacts)
        finally:
            await runner.kill()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the templates, while there are any."""
        own = () if self._template_pid is None else (self._template_pid,)
        return (*own, *(pid for pool in self._open_environments() for pid in pool.pids))

    def waiting(self) -> int:
        """Return the number of warm runners."""
        return len(self._warm)

    def alive(self) -> int:
        """Return the number of runners, warm or in use."""
        return len(self._runners)

    async def supervise(self) -> None:
        """Keep a template running; ends only when cancelled."""
        while True:
            try:
                await self._run_template()
                log.warning(log_events.TEMPLATE_ENDED)
            except OSError as error:
                log.warning(log_events.TEMPLATE_NOT_STARTED, reason=str(error))
            finally:
                self.abandon("the template process ended")
            await asyncio.sleep(RETRY_S)

    async def refill(self) -> None:
        """Keep the configured number of warm runners; ends only when cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WARM_AGE_S / 4):
                    await self._changed.wait()
            self._changed.clear()
            self._retire()
            while self._engine is not None and len(self._warm) < self._settings.warm:
                await self._ready.wait()
                await self._wait_for_quiet()
                if not await self._prepare_one():
                    await asyncio.sleep(RETRY_S)

    def abandon(self, why: str) -> None:
        """Count every runner as exited: they die with the template, which has ended."""
        self._ready.clear()
        self._warm.clear()
        for runner in [*self._runners.values()]:
            self._on_exited(Exited(runner=runner.number, code=-9, fork_error=why))
            shutil.rmtree(runner.scratch, ignore_errors=True)

    async def unused(self, idle_s: float) -> None:
        """Return once there was no runner for this long."""
        while True:
            self._runner_ended.clear()
            try:
                async with asyncio.timeout(idle_s):
                    await self._runner_ended.wait()
            except TimeoutError:
                if not self._runners and not self._forking:
                    return

    def end_environments(self) -> tuple[asyncio.Task[None], ...]:
        """End the pools of Python environments; return the tasks to wait for."""
        for task in self._environment_tasks:
            task.cancel()
        return tuple(self._environment_tasks)

    def _open_environments(self) -> list[ForkingPool]:
        done = [opened for opened in self._environments.values() if opened.done()]
        return [opened.result() for opened in done if opened.exception() is None]

    async def _take_in_environment(self, task: DeployTask, python: str) -> ForkedRunner | AutoRunner:
        opened = self._environments.get(python)
        if opened is None:
            opened = self._environments[python] = asyncio.get_running_loop().create_future()
            serving = self._tasks.create_task(self._serve_environment(python, opened), name="runner-environment")
            self._environment_tasks.add(serving)
            serving.add_done_callback(self._environment_tasks.discard)
        # Nothing is awaited between a pool that is open and the count of its runners: it does not end in between.
        return await (await asyncio.shield(opened)).take_here(task)

    async def _serve_environment(self, python: str, opened: asyncio.Future[ForkingPool]) -> None:
        settings = structs.replace(self._settings, python=python, warm=0)
        async with _running_pool(settings, self._numbers) as pool:
            pool.use_engine(self._engine)
            opened.set_result(pool)
            try:
                await pool.unused(ENVIRONMENT_IDLE_S)
            finally:
                del self._environments[python]

    async def _take_dedicated(self) -> ForkedRunner:
        return await self._fork(self._engine, taken=True)

    async def _take_shared(self) -> ForkedRunner:
        engine = self._engine
        if engine is None:
            raise Unavailable("the engine is not ready")
        self._retire()
        if self._warm:
            runner = self._warm.pop(0)
            runner.taken = True
        else:
            runner = await self._fork(engine, taken=True)
            runner.prepare(_prepare(engine, {}, warm_up=False))  # the task configures its session itself
        self._changed.set()
        return runner

    async def _prepare_one(self) -> bool:
        """Prepare one more warm runner; False if that failed."""
        engine = self._engine
        if engine is None:
            return True
        try:
            runner = await self._fork(engine)
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

    async def _wait_for_quiet(self) -> None:
        """Wait briefly while a task runs, if a warm runner is left for the next one."""
        if not self._warm or not any(runner.in_use for runner in self._runners.values()):
            return
        self._runner_ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REFILL_DELAY_S):
                await self._runner_ended.wait()

    def _retire(self) -> None:
        """Drop warm runners that have ended, and kill those whose session may have expired."""
        now_s = asyncio.get_running_loop().time()
        for runner in [*self._warm]:
            if not runner.alive or now_s - runner.born_s > WARM_AGE_S:
                self._warm.remove(runner)
                self.kill(runner.number)

    async def _fork(self, engine: EngineServices | None, *, taken: bool = False) -> ForkedRunner:
        self._forking += 1
        try:
            return await self._forked(engine, taken=taken)
        finally:
            self._forking -= 1

    async def _forked(self, engine: EngineServices | None, *, taken: bool) -> ForkedRunner:
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
            runner = ForkedRunner(number, self._defaults, streams, engine=engine, tasks=self._tasks, control=self)
            runner.taken = taken
            self._runners[number] = runner
            if not self._send(Fork(runner=number), theirs.fileno()):
                self._on_exited(Exited(runner=number, fork_error="the template cannot be reached"))
        finally:
            theirs.close()
        await runner.started()
        return runner

    async def _run_template(self) -> None:
        """Start a template and process its messages until it ends."""
        own, theirs = socket.socketpair()
        own.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                self._settings.python, "-P", "-m", "flintlock.spark.runner.template",
                str(theirs.fileno()), str(os.getpid()), *(() if self._settings.user is None else (CONFINED,)),
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=asyncio.subprocess.DEVNULL,
                cwd=None if self._settings.user is None else self._settings.scratch_dir,
                env=_environment(self._settings), **process_user(self._settings.user),
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
                        self._on_forked(number, pid)
                    case Exited():
                        self._on_exited(message)
        finally:
            self._ready.clear()
            self._control = None
            writer.close()  # at which the template kills its runners and ends
            await _wait_for_end(process)
            self._template_pid = None
            forget_child(record)

    def _on_forked(self, number: int, pid: int) -> None:
        """A runner has its process. A template that runs as another user is not believed: the pid may be killed."""
        if self._settings.user is not None and not self._settings.user.runs(pid):
            self._on_exited(
                Exited(runner=number, fork_error=f"process {pid} is not one of {self._settings.user.name!r}")
            )
        elif number in self._runners:
            self._runners[number].on_started(pid)

    def _on_exited(self, exited: Exited) -> None:
        runner = self._runners.pop(exited.runner, None)
        if runner is None:
            return
        runner.on_exited(exited)
        if runner in self._warm:
            self._warm.remove(runner)
        self._runner_ended.set()
        self._changed.set()
        # A program may leave many files: the loop does not wait for their removal.
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, runner.scratch, True)

    def kill(self, number: int) -> None:
        """Kill a runner, with all that it started; harmless for one that has ended."""
        if number in self._runners:
            self._send(Kill(runner=number))

    def capture(self, number: int, path: str, limit: int, opened: tuple[int, ...] = ()) -> None:
        """Have a runner's output written to a file, at most `limit` bytes. `opened`: `RunnerDefaults.open_log`."""
        self._send(Capture(runner=number, path=path, limit=limit, opened=bool(opened)), *opened)

    def _send(self, message: Fork | Kill | Capture, *passed: int) -> bool:
        if self._control is None:
            return False
        try:
            if not passed:
                self._control.send(frame(message))
            else:
                socket.send_fds(self._control, [frame(message)], passed)
        except OSError:
            return False
        return True


def _prepare(engine: EngineServices, config: dict[str, str], *, warm_up: bool) -> Prepare:
    session_id = str(uuid.uuid4())
    key = SparkSessionKey(user_id=f"flintlock-{session_id}", session_id=session_id)
    return Prepare(remote_url=engine.remote_url, session=key, config=config, warm_up=warm_up)


def _make_scratch(settings: PoolSettings) -> None:
    """Make the directory of all tasks; another user can pass through it, but not list it."""
    directory = Path(settings.scratch_dir)
    shutil.rmtree(directory, ignore_errors=True)  # of a pool that was killed: numbers start again
    directory.mkdir(parents=True)
    if settings.user is not None:
        directory.chmod(PASSABLE)
    if settings.worker_output and settings.user is None:
        Path(settings.worker_output).mkdir(mode=OWN)
    elif settings.worker_output and settings.user is not None:
        settings.user.make_directory(Path(settings.worker_output))


def _environment(settings: PoolSettings) -> dict[str, str]:
    """Return the environment of the template, and so of runners."""
    given = dict(os.environ) if settings.environment is None else settings.environment
    return {**given, PIPES_VARIABLE: settings.worker_output} if settings.worker_output else given


async def _wait_for_end(process: asyncio.subprocess.Process) -> None:
    """Return when the process has ended; one that does not end by itself is killed."""
    try:
        async with asyncio.timeout(TEMPLATE_EXIT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
