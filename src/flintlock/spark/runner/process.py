"""A runner process: runs one task and ends.

Forked from the template, it may be asked to open its Spark session before there is a task (`Prepare`). With its task it
gets a directory of its own to work in, and all output of it and of its children goes into the attempt's log from then
on, through the template. One thread receives commands, and each query is answered by a thread of its own; everything
else happens in the main one. Its last message is the outcome; then the template ends the process without a regular
exit, because a gRPC channel that is still open can hang an interpreter's exit.

When the TaskManager's end of the socket closes, the runner and its process group kill themselves.
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.host.memory_limit import limit_memory, relax_memory
from flintlock.model.access.secret_references import hide, redacted, with_secrets
from flintlock.model.application import APPLICATION_VARIABLE, PROGRAM_VARIABLE
from flintlock.model.checking.dependencies import has_environment
from flintlock.model.commands import CancelTask, TaskQuery
from flintlock.model.ids import StepName
from flintlock.model.jobgraph import EngineKind, JobGraph, JobType
from flintlock.model.operations import ForeachBatch, Function, Operation, Program, Source
from flintlock.model.operations.function import is_reference
from flintlock.model.tasks import (
    Analysis,
    DeployTask,
    Failure,
    FailureKind,
    Frame,
    TaskFailed,
    TaskFinished,
    TaskRunning,
)
from flintlock.spark.environments import (
    build_environment,
    environment_key,
    open_environment,
    parent_sites,
    source_of,
)
from flintlock.spark.framing import frame, messages
from flintlock.spark.region import dedicated
from flintlock.spark.region.analysis import analyze_schemas
from flintlock.spark.region.artifacts import UNPACKED, Artifacts
from flintlock.spark.region.backend import ConnectBackend, SparkBackend, connect_tokens, open_session
from flintlock.spark.region.batch import RegionTask
from flintlock.spark.region.errors.failures import Interrupted, TaskError, environment_failure, failure_of
from flintlock.spark.region.errors.forgotten_inputs import with_forgotten_input
from flintlock.spark.region.errors.missing_inputs import missing_inputs
from flintlock.spark.region.plan import StepFrames
from flintlock.spark.region.plan_hook import on_every_plan
from flintlock.spark.region.programs.lasting_tables import LastingTables
from flintlock.spark.region.programs.program import (
    ExitCode,
    check_similarity_join,
    ignore_masters,
    needs_driver,
    note_late_settings,
    refuse_relative_paths,
    run_program,
    set_environment,
)
from flintlock.spark.region.programs.relative_paths import RelativePaths
from flintlock.spark.region.programs.script_place import ScriptPlace, find_place
from flintlock.spark.region.programs.side_effects import SideEffects
from flintlock.spark.region.programs.task_directory import TaskDirectory
from flintlock.spark.region.progress import Progress
from flintlock.spark.region.session_config import session_config
from flintlock.spark.region.streaming.batch_output import bind_output
from flintlock.spark.region.streaming.program_queries import ProgramQueries, activity
from flintlock.spark.region.streaming.query import StreamingTask
from flintlock.spark.region.streaming.rescaling import RescaleFailed
from flintlock.spark.runner.answers import answer
from flintlock.spark.runner.exit_reasons import DISCONNECTED, with_limits
from flintlock.spark.runner.interruption import Interruption
from flintlock.spark.runner.output_pipe import name_pipe
from flintlock.spark.runner_messages import (
    TO_RUNNER,
    Analyze,
    Analyzed,
    BuildEnvironment,
    CommandAnswered,
    CommandTask,
    DriverNeeded,
    EnvironmentBuilt,
    FromRunner,
    Limits,
    Prepare,
    Prepared,
    ProgramExited,
    RequestRepartition,
    Run,
    StateRepartitioned,
    TargetsChecked,
    ToRunner,
    Worked,
)

#: What a first query would import, besides what this module imports itself.
_LATER: Final = (
    "pyspark.sql.connect.session",
    "pyspark.sql.connect.dataframe",
    "pyspark.sql.connect.plan",
    "pyspark.sql.connect.readwriter",
    "pyspark.sql.connect.catalog",
    "pyspark.sql.connect.udf",
    "pyspark.sql.connect.udtf",
    "pyspark.sql.connect.group",
    "pyspark.sql.connect.window",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.streaming.readwriter",
    "pyspark.sql.connect.streaming.query",
    "pyspark.sql.connect.client.core",
    "pyspark.sql.functions",
    "pyspark.sql.pandas.types",
    "pyspark.sql.pandas.functions",
    "pyspark.sql.pandas.conversion",
    "pyspark.sql.window",
    "pyspark.serializers",
    "pandas",
    "numpy",
    "pyarrow.compute",
    "pyarrow.pandas_compat",
    "numpy.rec",
    "grpc",
    "grpc._channel",
    "cloudpickle",
    "concurrent.futures.thread",
)
#: How long a runner that is done waits for its TaskManager to close the connection.
LINGER_S: Final = 5.0
#: A longer answer to a query is not sent.
MAX_ANSWER_BYTES: Final = 16 << 20
_RUN_DEDICATED: Final = "run it with --engine dedicated"
_INTERRUPTED: Final = Failure(kind=FailureKind.USER_CODE, message="the task was cancelled", exception="Interrupted")


def import_everything() -> None:
    """Import all that a task may need of PySpark, so that runners share it. Opens no channel, starts no thread."""
    for name in _LATER:
        with suppress(ImportError):
            importlib.import_module(name)


def serve(channel: socket.socket, printing: int, errors: int, pipe: str = "") -> None:
    """Serve one task over this socket, and return when its outcome was sent.

    `printing` and `errors` are the descriptors for the task's standard output and standard error; `pipe` is the path of
    the named pipe of the latter, if it has one.
    """
    # Exit handlers of the template's modules must not run in a runner. There is no public way to clear them.
    clear: Callable[[], None] = getattr(atexit, "_clear")  # noqa: B009
    clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _redirect(os.devnull, 0, os.O_RDONLY)
    try:
        RunnerProcess(channel, printing, errors, pipe).serve()
    except OSError:  # nothing can be sent any more
        os._exit(DISCONNECTED)


class RunnerProcess:
    """One forked process, from its first message to its outcome."""

    def __init__(self, channel: socket.socket, printing: int, errors: int, pipe: str = "") -> None:
        self._channel: Final = channel
        self._printing: Final = printing
        self._errors: Final = errors
        self._pipe: Final = pipe
        self._send_lock: Final = threading.Lock()
        self._inbox: Final = messages(channel, TO_RUNNER)  # read by the main thread, then by the receiving one
        self._targets: Final[queue.SimpleQueue[TargetsChecked]] = queue.SimpleQueue()
        self._repartitioned: Final[queue.SimpleQueue[StateRepartitioned]] = queue.SimpleQueue()
        self._interruption: Final = Interruption()
        self._drain: Final = threading.Event()  # set when a streaming task is to end after its batch
        self._streaming: StreamingTask | None = None  # set when a query is about to run
        self._progress: Final = Progress(self._send)
        self._backend: SparkBackend | None = None  # set once a session is open
        self._receiver: threading.Thread | None = None  # reads the inbox once there is a task
        self._over = False  # set before the outcome is sent
        self._end_lock: Final = threading.Lock()
        self._credentials: tuple[str, ...] = ()  # of the Spark session; set with it

    def serve(self) -> None:
        """Process messages until the task arrives, then run it."""
        for message in self._inbox:
            match message:
                case Prepare():
                    self._prepare(message)
                case Run():
                    self._end(self._run(message))
                    return
                case Analyze():
                    self._end(self._analyze(message))
                    return
                case BuildEnvironment():
                    self._build(message)
                    return
                case CommandTask() | TargetsChecked() | StateRepartitioned():
                    self._handle(message)

    def _prepare(self, message: Prepare) -> None:
        self._credentials = (*connect_tokens(message.remote_url), message.session.session_id)
        if self._pipe:
            name_pipe(self._pipe, message.session.user_id)
        try:
            backend = open_session(message.remote_url, message.session)
            self._backend = backend
            backend.configure(message.config)
            if message.warm_up:
                backend.warm_up()
        except Exception as error:  # noqa: BLE001 - after any error this runner cannot be used
            self._send(Prepared(problem=hide(f"{type(error).__name__}: {error}", self._credentials)))
        else:
            self._send(Prepared())

    def _build(self, message: BuildEnvironment) -> None:
        """Have the environment there and in use until the TaskManager ends this process."""
        source, parents = source_of(message.task.graph, message.artifacts), parent_sites()
        try:
            self._redirect_output(message.scratch)
            _limit_memory(message.limits)
            self._send(TaskRunning())
            receiver = self._start_receiving()

            def build(directory: Path) -> None:
                self._progress.begin("building the Python environment")
                build_environment(source, directory, parents)

            with self._interruption.armed():
                cache = message.places.of(has_executors=message.has_executors)
                environment = open_environment(cache, environment_key(source, parents), build)
        except Interrupted:
            self._end(TaskFailed(failure=_INTERRUPTED))
        except Exception as error:  # noqa: BLE001 - the TaskManager waits for an outcome
            self._end(TaskFailed(failure=environment_failure(error)))
        else:
            self._send(EnvironmentBuilt(python=environment.python))
            receiver.join()

    def _run(self, message: Run) -> Worked | ProgramExited | DriverNeeded | TaskFailed:
        task = structs.replace(message.task, graph=with_secrets(message.task.graph, message.secrets))
        message = structs.replace(message, task=task)
        program = next((v for v in task.graph.vertices if isinstance(v.operation, Program)), None)
        attempt = _Attempt(message.limits, step=program.name if program is not None else None)
        paths = RelativePaths(task.graph.directory)
        effects = SideEffects(message.scratch)
        try:
            artifacts = self._begin(message)
            if program is not None and isinstance(program.operation, Program):
                set_environment(program.operation)
            if task.graph.engine is EngineKind.DEDICATED:
                # Before any other thread exists: the JVM is forked with code between fork and exec.
                dedicated.start(message, artifacts, directory=paths.directory)
            _limit_memory(message.limits)  # after the driver's JVM was started, whose heap has its own limit
            self._send(TaskRunning())
            self._start_receiving()
            with self._interruption.armed():
                if program is not None and isinstance(program.operation, Program):
                    self._program(message, program.operation, artifacts, attempt, paths=paths, effects=effects)
                    done = Worked(finished=TaskFinished())
                else:
                    done = self._region(message, artifacts, attempt, paths)
            metrics = dedicated.metrics() if task.graph.engine is EngineKind.DEDICATED else self._progress.metrics
            return structs.replace(done, finished=structs.replace(done.finished, metrics=metrics))
        except Interrupted:
            return TaskFailed(failure=_INTERRUPTED)
        except ExitCode as error:
            return ProgramExited(code=error.code)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - user code may raise anything
            if self._interruption.requested:
                # Spark's own error about its cancelled work may be raised first, and the SparkContext of a program
                # handles the signal in its own way.
                return TaskFailed(failure=_INTERRUPTED)
            failure = redacted(attempt.failure(error, message.scratch), self._hidden(message))
            if needs_driver(error):
                failure = structs.replace(failure, permanent=True)  # it needs one in every attempt
                if task.graph.engine is EngineKind.AUTO:
                    return _driver_needed(failure, effects.first)
            return TaskFailed(failure=failure)

    def _program(
        self,
        message: Run,
        program: Program,
        artifacts: Artifacts,
        attempt: _Attempt,
        *,
        paths: RelativePaths,
        effects: SideEffects,
    ) -> None:
        attempt.place = find_place(program, message.task.graph.artifacts, artifacts)
        directory = attempt.directory = TaskDirectory(artifacts.directory, attempt.place.problem)
        if message.task.graph.engine is EngineKind.DEDICATED:
            dedicated.connect(artifacts, self._give_up)
            directory.watch_writers()
            note_late_settings()
        else:
            backend = self._session()
            backend.configure({**session_config(message.task, message.cores), **_worker_python(message.task.graph)})
            artifacts.upload(backend.spark)
            artifacts.share_files(backend.spark)
            auto = message.task.graph.engine is EngineKind.AUTO
            ignore_masters(backend.setting if auto else None)
            on_every_plan(check_similarity_join)
            bind_output(backend.spark)
            paths.install()
            on_every_plan(directory.check_plan)
            on_every_plan(LastingTables(backend.setting).check_plan)
        if APPLICATION_VARIABLE in os.environ:
            os.environ[PROGRAM_VARIABLE] = f"{message.task.graph.job_id} {os.getpid()}"
        if paths.directory:
            os.chdir(paths.directory)
        else:
            refuse_relative_paths(program, artifacts, paths.problem)
        self._progress.begin(f"running {program.script}")
        if message.task.graph.engine is EngineKind.AUTO:
            effects.watch()
        sys.addaudithook(directory.observe)
        queries = ProgramQueries(lambda figures: self._progress.report_figures(figures, activity(program, figures)))
        queries.install()
        try:
            run_program(program, attempt.place)
        except BaseException:
            queries.stop(warn=False)
            raise
        queries.stop(warn=True)
        directory.check_end()

    def _region(self, message: Run, artifacts: Artifacts, attempt: _Attempt, paths: RelativePaths) -> Worked:
        task = message.task
        if task.graph.engine is EngineKind.DEDICATED:
            dedicated.connect(artifacts, self._give_up)
            backend = self._backend = dedicated.session()
            dedicated.refuse_unshared_paths(task, backend)
        else:
            backend = self._session()
            backend.configure({**session_config(task, message.cores), **_worker_python(task.graph)})
            if task.graph.job_type is JobType.STREAMING:
                bind_output(backend.spark)
            if _has_functions(task.graph, None if task.analysis is Analysis.WHOLE else task.region.steps):
                artifacts.upload(backend.spark)
                paths.install()
                on_every_plan(LastingTables(backend.setting).check_plan)
        attempt.inputs = task.inputs
        attempt.frames = StepFrames(backend, task.graph, artifacts, task.inputs)
        config = session_config(task, message.cores)
        if task.graph.job_type is JobType.STREAMING:
            streaming = self._streaming = attempt.region_task = StreamingTask(
                task,
                backend,
                attempt.frames,
                artifacts,
                config=config,
                activity=self._progress.begin,
                report=self._progress.report_query,
                watch=self._progress.report_figures,
                drain=self._drain.is_set,
                repartition=self._repartition(task, config),
            )
            return streaming.run()
        attempt.region_task = RegionTask(
            task,
            backend,
            attempt.frames,
            config=config,
            activity=self._progress.begin,
            targets=self._targets.get,
            written=self._send,
        )
        return attempt.region_task.run()

    def _repartition(self, task: DeployTask, config: Mapping[str, str]) -> Callable[[str, int], None]:
        """Return what gives a state another number of partitions: a classic session does that, Connect cannot."""
        settings = {key: value for key, value in config.items() if key.startswith("spark.sql.")}

        def by_engine(checkpoint: str, partitions: int) -> None:
            self._send(RequestRepartition(checkpoint=checkpoint, partitions=partitions, config=settings))
            done = self._repartitioned.get()
            if done.problem:
                raise RescaleFailed(done.problem)

        return dedicated.repartition_state if task.graph.engine is EngineKind.DEDICATED else by_engine

    def _analyze(self, message: Analyze) -> Analyzed:
        graph = with_secrets(message.graph, message.secrets)
        attempt = _Attempt(message.limits)
        config = Configuration(graph.config).spark()
        try:
            artifacts = self._begin(message)
            _limit_memory(message.limits)
            self._start_receiving()
            with self._interruption.armed():
                backend = self._session()
                # A dedicated driver starts with the settings that the shared engine cannot change.
                dedicated_engine = graph.engine is EngineKind.DEDICATED
                backend.configure(backend.modifiable(config) if dedicated_engine else config)
                if _has_functions(graph, None):
                    artifacts.upload(backend.spark)
                    RelativePaths(graph.directory).install()
                attempt.frames = StepFrames(backend, graph, artifacts)
                analyzed = analyze_schemas(attempt.frames, graph, config)
            if analyzed.failure is not None:
                analyzed = structs.replace(analyzed, failure=redacted(analyzed.failure, self._hidden(message)))
            return analyzed
        except Interrupted:
            return Analyzed(failure=_INTERRUPTED)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - user code may raise anything
            return Analyzed(failure=redacted(attempt.failure(error, message.scratch), self._hidden(message)))

    def _hidden(self, message: Run | Analyze) -> tuple[str, ...]:
        """Return what no failure may show: the secrets of the job, and what opens its Spark session."""
        return (*message.secrets.values(), *self._credentials)

    def _begin(self, message: Run | Analyze) -> Artifacts:
        """Redirect output to the log, change to the task's directory, and install its artifacts there."""
        self._redirect_output(message.scratch)
        graph = message.graph if isinstance(message, Analyze) else message.task.graph
        artifacts = Artifacts(Path(message.scratch))
        artifacts.install(graph, message.artifacts)
        return artifacts

    def _redirect_output(self, scratch: str) -> None:
        os.dup2(self._printing, 1)
        os.dup2(self._errors, 2)
        os.close(self._printing)
        os.close(self._errors)
        for stream in (sys.stdout, sys.stderr):
            line_by_line: Callable[..., None] | None = getattr(stream, "reconfigure", None)
            if line_by_line is not None:
                line_by_line(line_buffering=True)
        faulthandler.enable()
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(name).disabled = True  # prints every Spark error with its stack, which is reported anyway
        os.chdir(scratch)

    def _session(self) -> ConnectBackend:
        if not isinstance(self._backend, ConnectBackend):
            raise TaskError(FailureKind.INTERNAL, "the runner was given a task before its Spark session")
        self._backend.watch(self._progress)
        return self._backend

    def _start_receiving(self) -> threading.Thread:
        """Start the thread that receives commands."""
        receiver = self._receiver = threading.Thread(target=self._receive, name="flintlock-control", daemon=True)
        receiver.start()
        return receiver

    def _receive(self) -> None:
        with suppress(ConnectionError):  # a TaskManager that was killed with something unread
            for message in self._inbox:
                self._handle(message)
        if not self._over:
            os.killpg(0, signal.SIGKILL)  # the TaskManager is gone

    def _handle(self, message: ToRunner) -> None:
        match message:
            case CommandTask():
                self._execute(message)
            case TargetsChecked():
                self._targets.put(message)
            case StateRepartitioned():
                self._repartitioned.put(message)
            case _:
                pass  # a runner has one task

    def _execute(self, message: CommandTask) -> None:
        match message.command:
            case CancelTask():
                self._interruption.request(self._stop_spark)
            case query:
                self._answer_in_thread(message.number, query)

    def _answer_in_thread(self, number: int, query: TaskQuery) -> None:
        """Answer without delaying the receiving thread: a cancel may follow."""
        name = f"flintlock-query-{number}"
        try:
            threading.Thread(target=self._answer, args=(number, query), name=name, daemon=True).start()
        except RuntimeError as error:  # the memory limit leaves no room for its stack
            self._send_answer(CommandAnswered(number=number, problem=str(error)))

    def _answer(self, number: int, query: TaskQuery) -> None:
        try:
            answered = CommandAnswered(number=number, answer=answer(query, self._begin_drain))
        except Exception as error:  # noqa: BLE001 - whatever it is, the TaskManager waits for an answer
            answered = CommandAnswered(number=number, problem=f"{type(error).__name__}: {error}")
        self._send_answer(answered)

    def _begin_drain(self) -> None:
        """Have a streaming task end after its batch; the first request also stops its query, without waiting for it."""
        first = not self._drain.is_set()
        self._drain.set()
        if first and self._streaming is not None:
            stopping = threading.Thread(target=self._streaming.begin_drain, name="flintlock-drain", daemon=True)
            with suppress(RuntimeError):  # no room for its stack: the task looks by itself soon
                stopping.start()

    def _send_answer(self, answered: CommandAnswered) -> None:
        data = frame(answered)
        if len(data) > MAX_ANSWER_BYTES:
            data = frame(CommandAnswered(number=answered.number, problem=f"the answer has {len(data)} bytes"))
        with self._send_lock, suppress(OSError):  # a TaskManager that is gone: the receiving thread notices
            if not self._over:  # the outcome is the last message
                self._channel.sendall(data)

    def _stop_spark(self) -> None:
        if self._backend is not None:
            self._backend.interrupt()
        else:
            dedicated.interrupt()

    def _give_up(self, reason: str) -> None:
        """Fail the task while its own code still waits for Spark; the TaskManager then ends this process."""
        self._end(TaskFailed(failure=Failure(kind=FailureKind.SPARK_TASK, message=reason, exception="NoExecutors")))

    def _end(self, outcome: Worked | ProgramExited | DriverNeeded | TaskFailed | Analyzed) -> None:
        """Send the outcome, unless another thread has, and wait for the TaskManager to close the connection."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        with self._end_lock:
            if not self._over:
                self._over = True
                self._send_outcome(outcome)
        self._linger()

    def _send_outcome(self, outcome: Worked | ProgramExited | DriverNeeded | TaskFailed | Analyzed) -> None:
        try:
            self._send(outcome)
        except ValueError as error:  # larger than a frame
            self._send(TaskFailed(failure=Failure(kind=FailureKind.INTERNAL, message=str(error))))

    def _linger(self) -> None:
        """Read until the TaskManager closes the connection: a socket closed with unread data loses what was sent."""
        receiver = self._receiver or self._start_receiving()
        receiver.join(LINGER_S)

    def _send(self, message: FromRunner) -> None:
        data = frame(message)
        with self._send_lock:
            self._channel.sendall(data)


class _Attempt:
    """The state that a task has reached: the context that attributes an error to a step."""

    def __init__(self, limits: Limits, step: StepName | None = None) -> None:
        self.limits: Final = limits
        self.step: Final = step
        self.inputs: Mapping[StepName, str] = {}
        self.frames: StepFrames | None = None
        self.region_task: RegionTask | StreamingTask | None = None
        self.place: ScriptPlace | None = None  # of a program
        self.directory: TaskDirectory | None = None  # of a program

    def failure(self, error: BaseException, scratch: str) -> Failure:
        """Return the error as a failure for its user, with files by the names that they know."""
        try:
            relax_memory()
            step, cause = (
                self.region_task.find_failed_step(error) if self.region_task is not None else (self.step, error)
            )
            sources = self.frames.sources() if self.frames is not None else None
            in_user_code = self.frames.in_user_code if self.frames is not None else self.step is not None
            if isinstance(self.region_task, StreamingTask):
                in_user_code = in_user_code or self.region_task.in_user_code
            failure = failure_of(cause, step, sources, in_user_code=in_user_code)
            missing = missing_inputs(cause, step, self.inputs)
        except Exception as second:  # noqa: BLE001 - an error that cannot be described must still be reported
            return Failure(kind=FailureKind.INTERNAL, message=f"{error!r}; and describing it failed: {second!r}")
        if missing:
            failure = self._missing(failure, missing)
        if self.frames is not None:
            failure = with_forgotten_input(failure, self.frames.graph)
        if self.directory is not None:
            failure = self.directory.explained(failure)
        failure = with_limits(failure, self.limits, in_runner=isinstance(cause, MemoryError))
        folders = (scratch,) if self.place is None else (scratch, str(self.place.folder))
        return structs.replace(failure, frames=tuple(_relative_to(failure.frames, folders)))

    def _missing(self, failure: Failure, missing: tuple[StepName, ...]) -> Failure:
        """Return the failure as one of missing inputs: all of them, not only the first that was found."""
        steps = dict.fromkeys((*missing, *(self.frames.find_missing_inputs() if self.frames is not None else ())))
        named = ", ".join(repr(str(name)) for name in steps)
        return structs.replace(
            failure,
            kind=FailureKind.MISSING_INPUT,
            message=f"the materialised rows of {named} are gone: {failure.message}",
            missing=tuple(steps),
        )


def _driver_needed(failure: Failure, done: str | None) -> DriverNeeded | TaskFailed:
    """Return the outcome of a program that needs a driver. `done`: what it did that must not be repeated."""
    if done is None:
        sys.stderr.write(
            f"[flintlock: {failure.message}\n"
            " The program needs a Spark driver of its own, and begins again on a dedicated engine]\n"
        )
        return DriverNeeded(failure=failure)
    hint = f"The program had {done} before it asked for a Spark driver, so it was not begun again: {_RUN_DEDICATED}"
    return TaskFailed(failure=structs.replace(failure, message=f"{failure.message}\n{hint}"))


def _worker_python(graph: JobGraph) -> dict[str, str]:
    """Return the setting that has Spark's Python workers of this session use the job's Python environment, too."""
    return {"spark.sql.execution.pyspark.python": sys.executable} if has_environment(graph) else {}


def _limit_memory(limits: Limits) -> None:
    if not limits.in_cgroup:
        limit_memory(limits.memory)


def _has_functions(graph: JobGraph, steps: Iterable[StepName] | None) -> bool:
    """Return whether some of these steps, or of all, run code of the job's own files: a data source does, too."""
    wanted = set(steps) if steps is not None else None
    return any(
        (wanted is None or vertex.name in wanted) and _runs_own_code(vertex.operation) for vertex in graph.vertices
    )


def _runs_own_code(operation: Operation) -> bool:
    if isinstance(operation, Source):
        return is_reference(operation.format or "")
    return isinstance(operation, Function | ForeachBatch)


def _relative_to(frames: Iterable[Frame], folders: Iterable[str]) -> Iterator[Frame]:
    """Yield the frames with the names that users know: those of files in these folders, and in archives there."""
    for found in frames:
        file = found.file
        for folder in folders:
            file = file.removeprefix(f"{folder.rstrip('/')}/")
        if file.startswith(f"{UNPACKED}/"):
            file = file.split("/", 2)[2]
        yield structs.replace(found, file=file)


def _redirect(path: str, descriptor: int, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)
