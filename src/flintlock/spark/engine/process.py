"""The engine's own process: owns the JVM, has the py4j connection to it, and executes the TaskManager's commands.

`python -m flintlock.spark.engine.process PARENT LOG`: PARENT is the TaskManager's pid, LOG a descriptor to read the
engine's log from; stdin and stdout carry the frames of `messages`. Anything else that is printed goes to that log.

It stands between TaskManager and JVM so that the TaskManager neither loads py4j nor waits for the JVM, and so that the
JVM has a parent with one thread to fork it and nothing else to do than to notice its end. It does not import PySpark:
what it needs of Spark it calls in the JVM.

Threads: the main one forks the JVM (the kernel ties the JVM to this very thread) and reads commands, one waits for the
JVM's end, one starts the engine and then cancels orphaned work, a pool executes the commands.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

from msgspec import Struct
from py4j.protocol import Py4JError, Py4JJavaError

from flintlock.host.logs.log_output import note
from flintlock.host.logs.log_tail import read_tail
from flintlock.host.processes.parent_death import die_with_parent
from flintlock.host.runner_user import confine
from flintlock.model.diagnostics import EngineUiPage
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.tasks import TaskMetrics
from flintlock.spark.engine.class_archive import archive_file, archive_in_use
from flintlock.spark.engine.conf import (
    JWS_FILTER,
    UI_FILTERS,
    UI_KEY,
    engine_conf,
    loopback_environment,
    worker_environment,
)
from flintlock.spark.engine.driver import EngineDriver, JavaObject
from flintlock.spark.engine.executors.demand import (
    STOPPED,
    ExecutorWatch,
    first_executor_s,
    has_executors,
    is_dynamic,
    no_executor,
    not_shared,
    stopped_application,
    watch_patience_s,
)
from flintlock.spark.engine.executors.shared_paths import SharedPaths
from flintlock.spark.engine.executors.shared_paths import not_shared as path_not_shared
from flintlock.spark.engine.jvm import LOG_TAIL_BYTES, DriverJvm, JvmSettings, start_jvm
from flintlock.spark.engine.messages import (
    TO_ENGINE,
    Done,
    EngineCommand,
    EngineDied,
    EngineReady,
    EngineReply,
    EngineSettings,
    Failed,
    FilesListed,
    FindUnshared,
    ListFiles,
    MakeDurable,
    Measured,
    MeasureSession,
    Publish,
    Published,
    ReadUi,
    Released,
    ReleaseSessions,
    RemoveTree,
    RepartitionState,
    StartEngine,
    Stop,
    StopPublication,
    ToEngine,
    UiRead,
    Unshared,
)
from flintlock.spark.engine.publication.hadoop_files import FileFailure, HadoopFiles
from flintlock.spark.engine.publication.hadoop_publication import publish
from flintlock.spark.engine.python.python_workers import daemons, end_workers
from flintlock.spark.engine.session_files import has_session_files, remove_session_files
from flintlock.spark.engine.warm_up import connect_session, warm_up
from flintlock.spark.engine.web_ui import WebUi
from flintlock.spark.framing import FrameDecoder, frame

CONCURRENT_COMMANDS: Final = 16

#: How long to wait for the JVM's end when a call into it has failed: its end is then the cause to report.
DEATH_S: Final = 2.0

#: How many pages of Spark's UI are read at the same time; the others wait for this long.
CONCURRENT_UI_REQUESTS: Final = 4
UI_PATIENCE_S: Final = 5.0

#: How many tests of paths wait for cores of executors at the same time. Others have no result: the tests may take as
#: long as the tasks that have the cores, and must not use up the threads that release sessions.
CONCURRENT_PATH_TESTS: Final = 4

NO_UI: Final = "Spark's UI of this engine is off (spark.ui.enabled), or behind a filter of its own (spark.ui.filters)"

#: How often work of closed sessions is searched for.
ORPHAN_INTERVAL_S: Final = 1.0

#: How long a JVM may take to write a class archive as it ends.
RECORD_S: Final = 600.0


class EngineProcess:
    """One engine, from its first message to the end of its JVM."""

    def __init__(self, replies: int, log_reader: int, settings: EngineSettings) -> None:
        self._log_reader: Final = log_reader
        self._settings: Final = settings
        self._conf: Final = engine_conf(settings, ui_key=secrets.token_urlsafe(32))
        self._replies: Final = replies
        self._send_lock: Final = threading.Lock()
        self._token: Final = secrets.token_urlsafe(32)
        self._began_s: Final = time.monotonic()
        self._stopping: Final = threading.Event()  # set once the JVM is meant to end
        self._driver: EngineDriver | None = None  # set when the engine is warm
        self._files: HadoopFiles | None = None  # as the driver
        self._shared: SharedPaths | None = None  # as the driver; None: there are no executors on other machines
        self._ui: WebUi | None = None  # as the driver; None: it is off, or has a filter that no token is known for
        self._ui_requests: Final = threading.BoundedSemaphore(CONCURRENT_UI_REQUESTS)
        self._path_tests: Final = threading.BoundedSemaphore(CONCURRENT_PATH_TESTS)
        self._stopped_publications: Final[set[int]] = set()  # by their calls
        self._jvm: Final = self._start_jvm()

    def serve(self, commands: Iterator[ToEngine]) -> None:
        """Start the engine and serve until Stop, or until the TaskManager is gone. Does not return."""
        threading.Thread(target=self._watch_jvm, name="watch-jvm", daemon=True).start()
        threading.Thread(target=self._start_engine, name="start-engine", daemon=True).start()
        pool = ThreadPoolExecutor(CONCURRENT_COMMANDS, thread_name_prefix="command")
        for command in commands:
            if isinstance(command, Stop | StartEngine):
                break
            if isinstance(command, StopPublication):
                self._stopped_publications.add(command.publication)
            else:
                pool.submit(self._execute, command)
        self._stopping.set()
        os._exit(self._stop_jvm())

    def _start_jvm(self) -> DriverJvm:
        settings, scratch = self._settings, Path(self._settings.scratch_dir)
        for leftover in ("tmp", "local", "warm-up"):  # of an engine that was killed
            shutil.rmtree(scratch / leftover, ignore_errors=True)
        return start_jvm(
            JvmSettings(
                java=settings.java,
                conf=self._conf,
                scratch_dir=settings.scratch_dir,
                log_file=settings.log_file,
                log_reader=self._log_reader,
                run_dir=settings.run_dir if settings.user is None else "",
                heap_bytes=settings.heap_bytes,
                python=settings.python,
                working_dir=settings.working_dir,
                # In the environment, and so also in that of foreachBatch's workers, which call back.
                environment={
                    **settings.environment,
                    **worker_environment(settings),
                    **loopback_environment(settings),
                    "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
                },
                class_archive=archive_in_use(settings.archive_dir, settings.java),
                record_archive=str(self._unfinished_archive()) if settings.record_archive else "",
            )
        )

    def _stop_jvm(self) -> int:
        """End the JVM and return this process's exit code."""
        if not self._settings.record_archive:
            self._jvm.stop()
            return 0
        self._jvm.stop(RECORD_S)
        unfinished = self._unfinished_archive()
        if not unfinished.is_file():
            return 1
        unfinished.replace(archive_file(Path(self._settings.archive_dir), self._settings.java))
        return 0

    def _unfinished_archive(self) -> Path:
        """Return where the archive is written until it is complete."""
        file = archive_file(Path(self._settings.archive_dir), self._settings.java)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.with_name(f"{file.name}.{os.getpid()}.new")

    def _watch_jvm(self) -> None:
        self._jvm.wait()
        if not self._stopping.is_set():
            self._die(self._jvm.cause_of_death(served_jobs=self._driver is not None))

    def _die(self, cause: str) -> None:
        # Spark's foreachBatch workers log the address that they call back, including the token; a cause reaches users.
        self._send(EngineDied(cause=cause.replace(self._token, "…")))
        os._exit(1)

    def _start_engine(self) -> None:
        settings, steps_s = self._settings, dict[str, float]()

        def done(step: str) -> None:
            steps_s[step] = round(time.monotonic() - self._began_s, 3)

        try:
            driver = EngineDriver(self._jvm.gateway())
            done("gateway")
            driver.open()
            done("session")
            files = HadoopFiles(
                driver.jvm,
                driver.context.hadoopConfiguration(),
                settings.work_root,
                checkpoint_root=settings.checkpoint_root,
                sync_files=settings.sync_files,
            )
            shared = self._warm_up(driver, files)
            done("warm")
            ready = EngineReady(
                remote_url=f"sc://127.0.0.1:{driver.connect_port}/;authorization={quote(f'Bearer {self._token}')}",
                spark_version=driver.spark_version,
                application_id=driver.application_id,
                jvm_pid=self._jvm.process.pid,
                steps_s=steps_s,
                has_executors=shared is not None,
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the reason why the engine cannot start
            self._report_failed_start(error)
            return
        self._files, self._shared = files, shared
        self._ui = _web_ui(driver, self._conf)
        self._driver = driver
        self._send(ready)
        self._supervise(driver)

    def _warm_up(self, driver: EngineDriver, files: HadoopFiles) -> SharedPaths | None:
        """Make the first job fast; return what tests the paths of executors on other machines, if there are some.

        Raises Unavailable if executors do not come, or do not share the work directory.
        """
        settings, conf = self._settings, self._conf
        if not has_executors(conf["spark.master"]):
            warm_up(driver, self._token, (Path(settings.scratch_dir).absolute() / "warm-up").as_uri())
            return None
        patience_s = first_executor_s(settings.start_timeout_s)
        if not is_dynamic(conf) and not driver.gets_executor(patience_s):
            raise Unavailable(no_executor(conf, patience_s))
        # The work directory is shared by all machines; the engine's own directories are not.
        place = f"{settings.work_root.rstrip('/')}/.flintlock-warm-up-{uuid.uuid4().hex}"

        def run(*queries: str) -> None:
            with connect_session(driver, self._token) as run_in_session:
                for query in queries:
                    run_in_session(query)

        shared = SharedPaths(files, run, driver.task_count)
        if not shared.is_shared(settings.work_root):
            raise Unavailable(not_shared(conf["spark.master"], settings.work_root))
        try:
            warm_up(driver, self._token, place)
        finally:
            files.remove_tree(place)
        return shared

    def _supervise(self, driver: EngineDriver) -> None:
        """Cancel work that is started for closed sessions, until the engine stops.

        An application that has ended, or has lost its executors, ends the engine.
        """
        settings, conf = self._settings, self._conf
        patience_s = watch_patience_s(conf, lease_s=settings.lease_s, start_timeout_s=settings.start_timeout_s)
        watch = ExecutorWatch(conf, patience_s) if has_executors(conf["spark.master"]) else None
        while not self._stopping.wait(ORPHAN_INTERVAL_S):
            try:
                self._end_if_stopped(driver)
                for name in driver.cancel_orphans():
                    note(f"{name} was started for a session that is closed: cancelled")
                problem = (
                    None
                    if watch is None
                    else watch.problem(
                        executors=driver.executor_count(), has_work=driver.has_work(), now_s=time.monotonic()
                    )
                )
            except (Py4JError, AttributeError):
                # If the JVM has ended, the watching thread reports it. If the application ends just now, its scheduler
                # is gone, for which Py4J returns None; the next round finds the application stopped.
                continue
            if problem is not None:
                self._end(problem)

    def _end_if_stopped(self, driver: EngineDriver) -> None:
        """End this process if Spark has stopped the application: a cluster has ended it, or its scheduler has failed.

        Raises Py4JError if the JVM has ended.
        """
        if driver.is_stopped() and not self._stopping.is_set():
            self._end(stopped_application(self._conf["spark.master"], read_tail(self._log_reader, LOG_TAIL_BYTES)))

    def _end(self, cause: str) -> None:
        """End the JVM and this process, for a cause that the JVM does not know."""
        self._stopping.set()
        self._jvm.process.kill()
        self._die(cause)

    def _report_failed_start(self, error: Exception) -> None:
        """Report why the engine cannot start, unless the JVM has ended: then the watching thread reports its cause."""
        if self._stopping.wait(0) or self._jvm.ends_within(DEATH_S):
            return
        self._stopping.set()
        cause = _describe(error)  # it may have to ask the JVM, so before that is killed
        master = self._conf["spark.master"]
        if STOPPED in cause:
            cause = stopped_application(master, read_tail(self._log_reader, LOG_TAIL_BYTES))
        where = f" on {master}" if has_executors(master) and master not in cause else ""
        self._jvm.process.kill()
        self._die(f"Spark cannot be started{where}: {cause}")

    def _execute(self, command: EngineCommand) -> None:
        try:
            reply = self._perform(command)
        except Refused as error:
            reply = Failed(call=command.call, kind="refused", reason=error.public)
        except Exception as error:  # noqa: BLE001 - every command gets a reply: its caller waits for it
            permanent = isinstance(error, FileFailure) and error.permanent
            reply = Failed(call=command.call, kind="failed", reason=_describe(error), permanent=permanent)
        self._send(reply)
        if isinstance(reply, Released) and isinstance(command, ReleaseSessions):
            self._clean_up(command, confirmed=reply.confirmed)

    def _clean_up(self, release: ReleaseSessions, *, confirmed: bool) -> None:
        """End the Python workers of released sessions and remove their files, after the reply: no caller waits for it.

        Spark removes the copies of a session's files only where an executor has used them, and then within the hour.
        """
        driver, jvm_pid = self._driver, self._jvm.process.pid
        if driver is None:
            return
        try:
            has_workers, has_files = any(daemons(jvm_pid)), confirmed and has_session_files(driver.files_root)
            if not has_workers and not has_files:
                return
            sessions = driver.server_ids(release.user_id, release.session_id)
            if has_workers:
                end_workers(jvm_pid, sessions)
            if has_files:
                remove_session_files(driver.files_root, sessions)
        except Py4JError as error:
            note(f"what sessions of {release.user_id} left cannot be removed: {_describe(error)}")

    def _perform(self, command: EngineCommand) -> EngineReply:
        driver, files = self._driver, self._files
        if driver is None or files is None:
            raise Unavailable("the engine is still starting")
        match command:
            case ReleaseSessions(call=call, user_id=user_id, session_id=session_id, timeout_s=timeout_s):
                active = driver.release(user_id, session_id, timeout_s)
                return Released(call=call, confirmed=not active, active=active)
            case ListFiles(call=call, path=path, with_sizes=with_sizes, durable=durable):
                listing = files.list_files(path, with_sizes=with_sizes, durable=durable)
                return FilesListed(call=call, listing=listing)
            case MakeDurable(call=call, path=path):
                files.make_durable(path)
                return Done(call=call)
            case FindUnshared(call=call, targets=targets, sources=sources):
                path = self._find_unshared(targets, sources)
                reason = path_not_shared(self._conf["spark.master"], path) if path else ""
                return Unshared(call=call, path=path or "", reason=reason)
            case Publish(call=call):
                total = publish(
                    files,
                    command,
                    lambda done, of: self._send(Published(call=call, done=done, total=of)),
                    lambda: call in self._stopped_publications,
                )
                return Published(call=call, done=total, total=total, complete=True)
            case RemoveTree(call=call, path=path):
                files.remove_tree(path)
                return Done(call=call)
            case MeasureSession():
                return _measure(driver, command)
            case RepartitionState(call=call, checkpoint=checkpoint, partitions=partitions, config=config):
                driver.repartition_state(checkpoint, partitions, config)
                return Done(call=call)
            case ReadUi(call=call, path=path, root=root):
                return UiRead(call=call, page=self._read_ui(path, root))

    def _read_ui(self, path: str, root: str) -> EngineUiPage:
        """Return a page. Few at a time: slow ones must not keep commands waiting. Raises Unavailable, Refused."""
        if self._ui is None:
            raise Refused(NO_UI)
        if not self._ui_requests.acquire(timeout=UI_PATIENCE_S):
            raise Unavailable("Spark's UI has too many requests to answer; try again")
        try:
            return self._ui.read(path, root)
        finally:
            self._ui_requests.release()

    def _find_unshared(self, targets: Iterable[str], sources: Iterable[str]) -> str | None:
        """Return a path that executors do not share; None if there is none, or if that is not known now."""
        if self._shared is None or not self._path_tests.acquire(blocking=False):
            return None
        try:
            return self._shared.find_unshared(targets, sources)
        finally:
            self._path_tests.release()

    def _send(self, message: Struct) -> None:
        rest = memoryview(frame(message))
        with self._send_lock:
            try:
                while rest:
                    rest = rest[os.write(self._replies, rest) :]
            except OSError:
                return  # the TaskManager is gone; the end of stdin ends this process


def _web_ui(driver: EngineDriver, conf: Mapping[str, str]) -> WebUi | None:
    url, key = driver.ui_url, conf.get(UI_KEY)
    return WebUi(url, key) if url is not None and key and conf.get(UI_FILTERS) == JWS_FILTER else None


def _measure(driver: EngineDriver, command: MeasureSession) -> Measured:
    open_operations = driver.operations_of(command.user_id, command.session_id)
    operations = dict.fromkeys((*(open_operations or ()), *command.operations))
    counted = driver.measure(command.user_id, command.session_id, tuple(operations))
    sums = {field: sum(getattr(one, field) for one in counted.values()) for field in TaskMetrics.__struct_fields__}
    # A program may have stopped its session and made others: all of them have the same user.
    total = TaskMetrics(**sums) if open_operations is not None or operations else driver.measure_user(command.user_id)
    return Measured(
        call=command.call,
        session=total,
        operations={name: counted[name] for name in command.operations},
    )


def _describe(error: Exception) -> str:
    """Return the text of an error: for one of the JVM, that of its innermost cause."""
    if isinstance(error, FileFailure | Unavailable):
        return str(error)
    if not isinstance(error, Py4JJavaError):
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        cause = cast("JavaObject", error.java_exception)
        while cause.getCause() is not None:
            cause = cause.getCause()
        return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    except (Py4JError, OSError):  # the JVM has ended meanwhile
        return str(cast("object", error.errmsg)).partition("\n")[0]


def _messages(commands: int) -> Iterator[ToEngine]:
    frames = FrameDecoder(TO_ENGINE)
    while data := os.read(commands, 1 << 16):
        yield from frames.feed(data)


def main() -> None:
    """Run an engine until it ends."""
    die_with_parent(int(sys.argv[1]))
    logging.disable()  # only py4j logs here, and only the errors that it also raises
    commands, replies = os.dup(0), os.dup(1)  # not inherited by the JVM, unlike 0, 1 and 2
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    messages = _messages(commands)
    first = next(messages, None)
    if not isinstance(first, StartEngine):
        sys.exit("an engine is started by a TaskManager, which sends its settings first")
    if first.settings.user is not None:
        confine()
    log_reader = int(sys.argv[2])
    os.set_inheritable(log_reader, False)
    try:
        process = EngineProcess(replies, log_reader, first.settings)
    except (Unavailable, OSError) as error:
        os.write(replies, frame(EngineDied(cause=str(error))))
        sys.exit(1)
    process.serve(messages)


if __name__ == "__main__":
    main()
