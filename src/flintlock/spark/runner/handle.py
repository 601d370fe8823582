"""The TaskManager's handle of one runner: its socket, its exit, and the work that the runner cannot do itself.

A runner has no access to Hadoop's file systems: its TaskManager lists files for it (`task_files`), and adds what the
engine has counted to what the runner reports.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeAlias

import msgspec
import structlog
from msgspec import structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.cgroups import Group
from flintlock.host.logs.log_tail import tail
from flintlock.host.processes.daemon_threads import run_in_daemon_thread
from flintlock.model import log_events
from flintlock.model.access.secret_references import secret_names
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import FlintlockError, Refused, Unavailable
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.operations import Program
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)
from flintlock.security.job_secrets import read_secrets
from flintlock.spark.engine.executors.demand import has_executors
from flintlock.spark.engine.publication.publish_plan import MaterialisedStep, StagedSink
from flintlock.spark.framing import frame, read_message
from flintlock.spark.runner.defaults import EngineServices, OperationMetrics, RunnerControl, RunnerDefaults
from flintlock.spark.runner.exit_reasons import ending, lost, program_exited
from flintlock.spark.runner.queries import RunnerQueries
from flintlock.spark.runner.task_files import TaskFiles
from flintlock.spark.runner_messages import (
    FROM_RUNNER,
    Analyze,
    Analyzed,
    BuildEnvironment,
    CommandAnswered,
    CommandTask,
    DriverNeeded,
    EnvironmentBuilt,
    Exited,
    FromRunner,
    Prepare,
    Prepared,
    ProgramExited,
    RequestRepartition,
    Run,
    StateRepartitioned,
    ToRunner,
    Worked,
)

log = structlog.get_logger(__name__)

#: How long the exit of a process may be reported after its socket has closed.
EXIT_S: Final = 5.0

#: How long the last messages of a process may be read after its exit was reported.
DRAIN_S: Final = 30.0

#: Tasks that took longer than this are measured; for others the numbers of the plan are used, which cost nothing.
WORTH_MEASURING_S: Final = 0.5

RunnerNews: TypeAlias = TaskRunning | TaskProgress | TaskFinished | TaskFailed


class ForkedRunner:
    """One process for one task. Made by the pool."""

    def __init__(
        self,
        number: int,
        defaults: RunnerDefaults,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        engine: EngineServices | None,
        tasks: asyncio.TaskGroup,
        control: RunnerControl,
    ) -> None:
        self.number: Final = number
        self.born_s: Final = asyncio.get_running_loop().time()
        self.scratch: Final = defaults.scratch(number)  # the directory of its task; removed after its exit
        self._defaults: Final = defaults
        self._reader, self._writer = streams
        self._engine: Final = engine
        self._tasks: Final = tasks
        self._control: Final = control
        self._limits = defaults.limits()  # replaced by run
        self._group: Group | None = None  # set by run, removed when it has ended
        self._killed_for_memory = False  # set when it has ended
        self._session: SparkSessionKey | None = None  # set by prepare
        self._started: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self._exited: Final[asyncio.Future[Exited]] = asyncio.get_running_loop().create_future()
        self._queries: Final = RunnerQueries(self._send)
        self._in_use = False  # whether it has a task
        self.taken = False  # whether the pool has handed it out
        self.needs_driver = False  # whether its program can be begun again with a driver of its own

    @property
    def session(self) -> SparkSessionKey | None:
        """The Spark session that it uses, once it has one."""
        return self._session

    @property
    def engine(self) -> EngineServices | None:
        """The engine that its session belongs to."""
        return self._engine

    @property
    def alive(self) -> bool:
        """Whether its exit was not reported yet."""
        return not self._exited.done()

    @property
    def pid(self) -> int | None:
        """Its process, while it is running."""
        started = self._started.done() and self._started.exception() is None
        return self._started.result() if started and self.alive else None

    @property
    def in_use(self) -> bool:
        """Whether it has a task and has not ended."""
        return self._in_use and self.alive

    async def started(self) -> int:
        """Return its pid once it was forked. Raises Unavailable if it could not be."""
        return await asyncio.shield(self._started)

    def on_started(self, pid: int) -> None:
        """The template has forked it."""
        if not self._started.done():
            self._started.set_result(pid)

    def on_exited(self, exited: Exited) -> None:
        """The template has reaped it, or could not fork it."""
        group, self._group = self._group, None
        if group is None:
            self._finish(exited)
            return
        self._killed_for_memory = group.killed_for_memory()
        # Its processes may take a while to end: a thread waits for that, and the end counts only then.
        removal = asyncio.get_running_loop().run_in_executor(None, group.remove)
        removal.add_done_callback(lambda _: self._finish(exited))

    def _finish(self, exited: Exited) -> None:
        if not self._exited.done():
            self._exited.set_result(exited)
        if not self._started.done():
            why = exited.fork_error or ending(exited.code)
            self._started.set_exception(Unavailable(f"a runner could not be started: {why}"))
        if self._in_use:
            # Its socket closes with it, unless a process that it forked has it open: that one is not waited for.
            asyncio.get_running_loop().call_later(DRAIN_S, self._reader.feed_eof)
        else:
            self._writer.close()

    def prepare(self, message: Prepare) -> None:
        """Have it open its Spark session."""
        self._session = message.session
        self._send(message)

    async def prepared(self) -> str | None:
        """Wait until its session is open; return the problem, or None. Only before it has a task."""
        message = await self._next()
        match message:
            case Prepared(problem=problem):
                return problem
            case None:
                return "it ended"
            case _:
                return f"it sent {type(message).__name__}"

    async def run(  # noqa: PLR0912 - one case for each message
        self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]
    ) -> AsyncIterator[RunnerNews]:
        """Run the task; the last item is TaskFinished or TaskFailed. `artifacts`: the local path of each one."""
        self._in_use = True
        began_s = asyncio.get_running_loop().time()
        files = TaskFiles(task, self._engine, self._tasks)
        try:
            await self._make_scratch()
            await self._confine(task)
            await self._capture(log_path)
            problem = await files.changed_inputs() or await files.unshared_path()
            secrets = problem or await self._read_secrets(task.graph)
            if isinstance(secrets, Failure):
                yield TaskFailed(failure=secrets)
                return
            self._send(
                Run(
                    task=task,
                    log_path=log_path if self._defaults.user is None else "",
                    scratch=str(self.scratch),
                    artifacts=dict(artifacts),
                    limits=self._limits,
                    cores=self._defaults.cores,
                    dedicated=self._defaults.dedicated if task.graph.engine is EngineKind.DEDICATED else None,
                    secrets=secrets,
                )
            )
            if files.has_targets:
                self._tasks.create_task(self._send_targets(files), name=f"targets-{task.attempt}")
            while True:
                message = await self._next()
                match message:
                    case TaskRunning() | TaskProgress():
                        yield message
                    case Prepared(problem=str(problem)):
                        yield _failed(FailureKind.ENGINE_LOST, f"no Spark session could be opened: {problem}")
                        return
                    case Prepared():
                        pass
                    case StagedSink() | MaterialisedStep():
                        files.begin_listing(message)
                    case RequestRepartition():
                        self._tasks.create_task(self._repartition(message), name=f"repartition-{task.attempt}")
                    case Worked():
                        long = asyncio.get_running_loop().time() - began_s > WORTH_MEASURING_S
                        worth = long or any(isinstance(v.operation, Program) for v in task.graph.vertices)
                        yield await self._complete(message, files, worth_measuring=worth)
                        return
                    case TaskFailed():
                        yield await files.explain(message)
                        return
                    case ProgramExited(code=code):
                        self._writer.close()  # it exits then
                        await self._wait_for_exit()
                        yield TaskFailed(failure=program_exited(code, _program(task.graph), tail(log_path)))
                        return
                    case DriverNeeded(failure=failure):
                        self.needs_driver = True
                        yield TaskFailed(failure=failure)
                        return
                    case Analyzed() | EnvironmentBuilt() | CommandAnswered() | None:
                        yield TaskFailed(failure=await self._lost(log_path))
                        return
        finally:
            self._queries.close("the runner is being ended")
            self._writer.close()

    async def build_environment(
        self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]
    ) -> AsyncIterator[RunnerNews | EnvironmentBuilt]:
        """Build the Python environment of the task's job, or find it: the last item is EnvironmentBuilt or TaskFailed.

        The environment is not removed until this runner is killed.
        """
        self._in_use = True
        await self._make_scratch()
        await self._confine(task)
        await self._capture(log_path)
        self._send(
            BuildEnvironment(
                task=task,
                scratch=str(self.scratch),
                places=self._defaults.environments,
                has_executors=has_executors(self._defaults.master_of(task.graph)),
                artifacts=dict(artifacts),
                limits=self._limits,
            )
        )
        while True:
            message = await self._next()
            match message:
                case TaskRunning() | TaskProgress():
                    yield message
                case EnvironmentBuilt() | TaskFailed():
                    yield message
                    return
                case _:
                    yield TaskFailed(failure=await self._lost(log_path))
                    return

    async def analyze(self, graph: JobGraph, log_path: str, artifacts: Mapping[str, str]) -> Analyzed:
        """Resolve every step's schema without running the graph."""
        self._in_use = True
        try:
            await self._make_scratch()
            await self._capture(log_path)
            secrets = await self._read_secrets(graph)
            if isinstance(secrets, Failure):
                return Analyzed(failure=secrets)
            self._send(
                Analyze(
                    graph=graph,
                    log_path=log_path if self._defaults.user is None else "",
                    scratch=str(self.scratch),
                    artifacts=dict(artifacts),
                    limits=self._limits,
                    secrets=secrets,
                )
            )
            while True:
                message = await self._next()
                match message:
                    case Analyzed():
                        return message
                    case Prepared(problem=str(problem)):
                        raise Unavailable(f"no Spark session could be opened: {problem}")
                    case None:
                        return Analyzed(failure=await self._lost(log_path))
                    case _:
                        pass
        finally:
            self._writer.close()

    async def command(self, command: TaskCommand) -> TaskAnswer:
        """Pass a command to the task and return its answer."""
        match command:
            case CancelTask():  # the task's end is its answer
                if self.alive:
                    self._send(CommandTask(command=command))
                return CommandAccepted()
            case _:
                return await self._queries.ask(command)

    async def kill(self) -> None:
        """Kill it, with all that it started, and return once it is gone."""
        if self.alive:
            self._control.kill(self.number)
        await asyncio.shield(self._exited)
        self._writer.close()

    async def exited(self) -> Exited:
        """Return how it ended, once it has."""
        return await asyncio.shield(self._exited)

    async def _make_scratch(self) -> None:
        """Make the directory of its task. Raises OSError."""
        await run_in_daemon_thread(lambda: self._defaults.make_scratch(self.scratch), name="scratch")

    async def _capture(self, log_path: str) -> None:
        """Have its output written to the log. Raises OSError."""
        opened = await run_in_daemon_thread(lambda: self._defaults.open_log(log_path), name="open-log")
        try:
            self._control.capture(self.number, log_path, self._defaults.output_limit, opened)
        finally:
            for one in opened:
                os.close(one)

    async def _confine(self, task: DeployTask) -> None:
        """Determine the task's limits, and put the runner into a control group with them where there are groups."""
        limits = self._defaults.limits(task)
        group = self._defaults.group(self.number, limits, dedicated=task.graph.engine is EngineKind.DEDICATED)
        if group is not None:
            try:
                group.add(await self.started())
            except OSError as error:
                log.warning(log_events.CGROUP_NOT_ENTERED, runner=self.number, reason=str(error))
                await asyncio.to_thread(group.remove)
            else:
                self._group = group
                limits = structs.replace(limits, in_cgroup=True)
        self._limits = limits

    async def _read_secrets(self, graph: JobGraph) -> dict[str, str] | Failure:
        """Return the secrets that a graph refers to, or why one cannot be used."""
        names = secret_names(graph)
        try:
            return await asyncio.to_thread(read_secrets, names, self._defaults.secrets) if names else {}
        except Refused as error:
            return Failure(kind=FailureKind.CONFIGURATION, message=error.public)

    async def _send_targets(self, files: TaskFiles) -> None:
        """Check, while the runner analyses, which targets have data; it waits for the result before it writes."""
        self._send(await files.check_targets())

    async def _repartition(self, wanted: RequestRepartition) -> None:
        """Have the engine repartition a state for the runner, which waits for that."""
        problem = ""
        try:
            if self._engine is None:
                raise Unavailable("the TaskManager has no Spark engine")
            await self._engine.repartition_state(wanted.checkpoint, wanted.partitions, wanted.config)
        except FlintlockError as error:
            problem = error.public
        self._send(StateRepartitioned(problem=problem))

    async def _complete(self, worked: Worked, files: TaskFiles, *, worth_measuring: bool) -> TaskFinished | TaskFailed:
        """Add what only the engine can determine: files, rows and bytes."""
        measured: OperationMetrics | None = None

        async def count() -> dict[StepName, TaskMetrics]:
            nonlocal measured
            measured = await self._measure(worked, worth=worth_measuring)
            counted = measured.operations if measured is not None else {}
            return {step: counted[name] for step, name in worked.operations.items() if name in counted}

        outcome = await files.complete(worked.finished, count())
        if measured is None or isinstance(outcome, TaskFailed):
            return outcome
        return structs.replace(outcome, metrics=_merge(outcome.metrics, measured.session))

    async def _measure(self, worked: Worked, *, worth: bool) -> OperationMetrics | None:
        if self._engine is None or self._session is None or not (worked.operations or worth):
            return None
        return await self._engine.measure(self._session, tuple(worked.operations.values()))

    async def _lost(self, log_path: str) -> Failure:
        """Return the failure of a runner that ended without reporting an outcome."""
        exited = await self._wait_for_exit()
        if exited is None:
            how, code = "closed the connection to its TaskManager", None
        else:
            how, code = f"ended because {exited.fork_error}" if exited.fork_error else ending(exited.code), exited.code
        return lost(how, tail(log_path), self._limits, code=code, oom_killed=self._killed_for_memory)

    async def _wait_for_exit(self) -> Exited | None:
        """Return how the runner ended after its connection did; None if it had to be killed."""
        try:
            async with asyncio.timeout(EXIT_S):
                return await self.exited()
        except TimeoutError:
            await self.kill()
            return None

    async def _next(self) -> FromRunner | None:
        """Return the next message that is not an answer; those go to who waits for them."""
        while True:
            message = await self._read()
            match message:
                case CommandAnswered():
                    self._queries.receive(message)
                    continue
                case TaskRunning():
                    self._queries.open()
                case TaskProgress() | Prepared() | StagedSink() | RequestRepartition():
                    pass
                case _:
                    self._queries.close("the runner has ended its task")
            return message

    async def _read(self) -> FromRunner | None:
        try:
            return await read_message(self._reader, FROM_RUNNER)
        except msgspec.DecodeError:  # user code wrote to a descriptor that is not its own
            self._control.kill(self.number)
            return None

    def _send(self, message: ToRunner) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))


def _failed(kind: FailureKind, message: str) -> TaskFailed:
    return TaskFailed(failure=Failure(kind=kind, message=message))


def _program(graph: JobGraph) -> StepName:
    """Return the step of a graph that is a program."""
    return next(vertex.name for vertex in graph.vertices if isinstance(vertex.operation, Program))


def _merge(reported: TaskMetrics, measured: TaskMetrics) -> TaskMetrics:
    """Return the larger of two counts of the same work: Spark reports progress periodically, and measures later."""
    return TaskMetrics(
        **{name: max(getattr(reported, name), getattr(measured, name)) for name in reported.__struct_fields__}
    )
