"""A TaskManager's side of one runner: its socket, its end, and what has to be looked up around its work.

What a runner cannot do is done here: it has no door to Hadoop's file systems, so its staged files are listed through
the engine as soon as they are written, and whether a target holds data already is looked up while it still analyses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import structlog
from msgspec import structs

from flintlock.gateways.engine import SparkSessionKey
from flintlock.host.cgroups import Group
from flintlock.host.log_tail import tail
from flintlock.model import log_events
from flintlock.model.commands import CancelTask, CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.operations import Program, SaveMode, Sink
from flintlock.model.staging import staged_sinks
from flintlock.model.tasks import (
    DeployTask,
    Failure,
    FailureKind,
    SinkFiles,
    StepOutput,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)
from flintlock.spark.engine.publish_plan import Listing, StagedSink, has_data, needs_look, sink_files
from flintlock.spark.framing import frame, read_message
from flintlock.spark.runner.defaults import EngineServices, OperationMetrics, RunnerDefaults, Template
from flintlock.spark.runner.exit_reasons import ending, lost, program_exited
from flintlock.spark.runner_messages import (
    FROM_RUNNER,
    Analyze,
    Analyzed,
    CommandTask,
    Exited,
    FromRunner,
    Prepare,
    Prepared,
    ProgramExited,
    Run,
    TargetsChecked,
    Worked,
)

log = structlog.get_logger(__name__)

#: How long the end of a process may take to be told after its socket has closed.
EXIT_S: Final = 5.0

#: How long the last words of a process may take to be read after its end was told.
DRAIN_S: Final = 30.0

#: Results that took longer than this are measured; of others the plan's own numbers have to do, which come for nothing.
WORTH_MEASURING_S: Final = 0.5

News: TypeAlias = TaskRunning | TaskProgress | TaskFinished | TaskFailed
_Look: TypeAlias = tuple[SinkFiles, int] | FlintlockError
"""What publishing a sink means, and its bytes; or why that is not known."""


class ForkedRunner:
    """One process for one task. Made by the pool."""

    def __init__(
        self,
        number: int,
        home: RunnerDefaults,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        *,
        engine: EngineServices | None,
        tasks: asyncio.TaskGroup,
        template: Template,
    ) -> None:
        self.number: Final = number
        self.born_s: Final = asyncio.get_running_loop().time()
        self._home: Final = home
        self._reader, self._writer = streams
        self._engine: Final = engine
        self._tasks: Final = tasks
        self._template: Final = template
        self._limits = home.limits()  # set anew by run
        self._group: Group | None = None  # set by run, removed when it has ended
        self._killed_for_memory = False  # set when it has ended
        self._session: SparkSessionKey | None = None  # set by prepare
        self._started: Final[asyncio.Future[int]] = asyncio.get_running_loop().create_future()
        self._exited: Final[asyncio.Future[Exited]] = asyncio.get_running_loop().create_future()
        self._in_use = False  # it has a task
        self.taken = False  # somebody is about to give it one

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
        """Whether it has not been seen to end."""
        return not self._exited.done()

    @property
    def pid(self) -> int | None:
        """Its process, while it is known to live."""
        started = self._started.done() and self._started.exception() is None
        return self._started.result() if started and self.alive else None

    @property
    def in_use(self) -> bool:
        """Whether it has a task and has not ended."""
        return self._in_use and self.alive

    @property
    def scratch(self) -> Path:
        """The directory that its task works in; gone when it is."""
        return Path(self._home.scratch_dir) / f"runner-{self.number}"

    async def started(self) -> int:
        """Return its pid once it lives. Raises Unavailable if it could not be forked."""
        return await asyncio.shield(self._started)

    def hear_started(self, pid: int) -> None:
        """Take the template's word that it lives."""
        if not self._started.done():
            self._started.set_result(pid)

    def hear_exited(self, exited: Exited) -> None:
        """Take the template's word that it is gone."""
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
            # Its socket closes with it, unless a process that it forked still holds it: nobody waits for that one.
            asyncio.get_running_loop().call_later(DRAIN_S, self._reader.feed_eof)
        else:
            self._writer.close()

    def prepare(self, message: Prepare) -> None:
        """Have it open its Spark session."""
        self._session = message.session
        self._send(message)

    async def prepared(self) -> str | None:
        """Wait until its session is open; return what went wrong, or None. Only before it has a task."""
        message = await self._next()
        match message:
            case Prepared(problem=problem):
                return problem
            case None:
                return "it ended"
            case _:
                return f"it said {type(message).__name__}"

    async def run(self, task: DeployTask, log_path: str, artifacts: Mapping[str, str]) -> AsyncIterator[News]:
        """Run the task; the last item is TaskFinished or TaskFailed. `artifacts` says where each one's content lies."""
        self._in_use = True
        began_s = asyncio.get_running_loop().time()
        sinks: list[asyncio.Task[_Look]] = []  # looked at while the runner goes on
        try:
            self.scratch.mkdir(parents=True)
            await self._confine(task)
            self._template.capture(self.number, log_path, self._home.output_limit)
            self._send(
                Run(
                    task=task,
                    log_path=log_path,
                    scratch=str(self.scratch),
                    artifacts=dict(artifacts),
                    limits=self._limits,
                    dedicated=self._home.dedicated if task.graph.engine is EngineKind.DEDICATED else None,
                )
            )
            self._look_at_targets(task)
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
                    case StagedSink():
                        name = f"sink-{message.step}-{task.attempt}"
                        sinks.append(self._tasks.create_task(self._look(message), name=name))
                    case Worked():
                        long = asyncio.get_running_loop().time() - began_s > WORTH_MEASURING_S
                        worth = long or any(isinstance(v.operation, Program) for v in task.graph.vertices)
                        yield await self._complete(message, sinks, worth_measuring=worth)
                        return
                    case TaskFailed():
                        yield message
                        return
                    case ProgramExited(code=code):
                        self._writer.close()  # it stays until then
                        await self._gone()
                        yield TaskFailed(failure=program_exited(code, _program(task.graph), tail(log_path)))
                        return
                    case Analyzed() | None:
                        yield TaskFailed(failure=await self._lost(log_path))
                        return
        finally:
            self._writer.close()

    async def analyze(self, graph: JobGraph, log_path: str, artifacts: Mapping[str, str]) -> Analyzed:
        """Resolve every step's schema; nothing of the graph is run."""
        self._in_use = True
        try:
            self.scratch.mkdir(parents=True)
            self._template.capture(self.number, log_path, self._home.output_limit)
            self._send(
                Analyze(
                    graph=graph,
                    log_path=log_path,
                    scratch=str(self.scratch),
                    artifacts=dict(artifacts),
                    limits=self._limits,
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

    async def kill(self) -> None:
        """End it by force, with all that it started, and return once it is gone."""
        if self.alive:
            self._template.kill(self.number)
        await asyncio.shield(self._exited)

    async def exited(self) -> Exited:
        """Return how it ended, once it has."""
        return await asyncio.shield(self._exited)

    async def _confine(self, task: DeployTask) -> None:
        """Decide what the task may use, and put the runner into a group that says so where there are groups."""
        limits = self._home.limits(task)
        group = self._home.group(self.number, limits, dedicated=task.graph.engine is EngineKind.DEDICATED)
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

    def _look_at_targets(self, task: DeployTask) -> None:
        """Look up, while the runner analyses, which targets hold data; it asks before it writes."""
        sinks = {
            vertex.name: vertex.operation.path
            for vertex in staged_sinks(task.graph, task.region)
            if isinstance(vertex.operation, Sink) and vertex.operation.path is not None and needs_look(vertex.operation)
        }
        if sinks:
            self._tasks.create_task(self._tell_targets(sinks), name=f"targets-{task.attempt}")

    async def _tell_targets(self, sinks: dict[StepName, str]) -> None:
        try:
            found = await asyncio.gather(*(self._list(path) for path in sinks.values()))
        except FlintlockError as error:
            self._send(TargetsChecked(problem=f"the sinks' targets could not be looked at: {error.public}"))
            return
        occupied = tuple(step for step, listing in zip(sinks, found, strict=True) if has_data(listing.files))
        self._send(TargetsChecked(occupied=occupied))

    async def _complete(
        self, worked: Worked, looks: Iterable[Awaitable[_Look]], *, worth_measuring: bool
    ) -> TaskFinished | TaskFailed:
        """Add what only the engine knows: files, rows and bytes."""
        try:
            measured, found = await asyncio.gather(
                self._measured(worked, worth=worth_measuring), asyncio.gather(*looks)
            )
            sinks = [_seen(look) for look in found]
        except FlintlockError as error:
            kind = FailureKind.ENGINE_LOST if isinstance(error, Unavailable) else FailureKind.SPARK_TASK
            return _failed(kind, f"what was written could not be listed: {error.public}")
        sizes = {files.step: size for files, size in sinks}
        finished = worked.finished
        return structs.replace(
            finished,
            metrics=_merged(finished.metrics, measured.session) if measured else finished.metrics,
            outputs=tuple(
                _counted(
                    output, sizes, measured.operations.get(worked.operations.get(output.step, "")) if measured else None
                )
                for output in finished.outputs
            ),
            sinks=tuple(files for files, _ in sinks),
        )

    async def _measured(self, worked: Worked, *, worth: bool) -> OperationMetrics | None:
        if self._engine is None or self._session is None or not (worked.operations or worth):
            return None
        return await self._engine.measure(self._session, tuple(worked.operations.values()))

    async def _look(self, sink: StagedSink) -> _Look:
        """Look at what a sink has written. What goes wrong is told when the runner is done."""
        try:
            return await self._sink(sink)
        except FlintlockError as error:
            return error

    async def _sink(self, sink: StagedSink) -> tuple[SinkFiles, int]:
        staged = await self._list(sink.staging, weigh=True)
        present = await self._list(sink.target) if sink.mode is SaveMode.OVERWRITE else Listing()
        return sink_files(sink, staged.files, present.files), staged.size

    async def _list(self, path: str, *, weigh: bool = False) -> Listing:
        if self._engine is None:
            raise Unavailable("there is no engine to list files with")
        return await self._engine.list_files(path, weigh=weigh)

    async def _lost(self, log_path: str) -> Failure:
        """Return what it means that the runner ended without its last word."""
        exited = await self._gone()
        if exited is None:
            how, code = "closed the connection to its TaskManager", None
        else:
            how, code = f"ended because {exited.fork_error}" if exited.fork_error else ending(exited.code), exited.code
        return lost(how, tail(log_path), self._limits, code=code, oom_killed=self._killed_for_memory)

    async def _gone(self) -> Exited | None:
        """Return how the runner ended, now that its connection has; None if it had to be ended."""
        try:
            async with asyncio.timeout(EXIT_S):
                return await self.exited()
        except TimeoutError:
            await self.kill()
            return None

    async def _next(self) -> FromRunner | None:
        try:
            return await read_message(self._reader, FROM_RUNNER)
        except msgspec.DecodeError:  # user code wrote to a descriptor that is not its own
            self._template.kill(self.number)
            return None

    def _send(self, message: Prepare | Run | TargetsChecked | Analyze | CommandTask) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))


def _failed(kind: FailureKind, message: str) -> TaskFailed:
    return TaskFailed(failure=Failure(kind=kind, message=message))


def _seen(look: _Look) -> tuple[SinkFiles, int]:
    if isinstance(look, FlintlockError):
        raise look
    return look


def _program(graph: JobGraph) -> StepName:
    """Return the step of a graph that is a program."""
    return next(vertex.name for vertex in graph.vertices if isinstance(vertex.operation, Program))


def _merged(told: TaskMetrics, measured: TaskMetrics) -> TaskMetrics:
    """Return the larger of two counts of the same work: Spark tells of progress now and then, and measures later."""
    return TaskMetrics(**{name: max(getattr(told, name), getattr(measured, name)) for name in told.__struct_fields__})


def _counted(output: StepOutput, sizes: dict[StepName, int], metrics: TaskMetrics | None) -> StepOutput:
    rows = metrics.write_records if metrics and metrics.write_records else output.rows
    size = sizes.get(output.step) or (metrics.write_bytes if metrics else 0) or output.bytes
    return structs.replace(output, rows=rows, bytes=size)
