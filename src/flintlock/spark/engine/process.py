"""The engine's own process: owns the JVM, holds its classic door, and does what the TaskManager asks of it.

`python -m flintlock.spark.engine.process PARENT`: PARENT is the TaskManager's pid; stdin and stdout carry the frames of
`engine_messages`. Whatever else would be printed goes to the engine's log.

It stands between TaskManager and JVM so that the TaskManager neither loads py4j nor waits for the JVM, and so that the
JVM has a parent with one thread to fork it and nothing else to do than to notice its end. It does not import PySpark:
what it needs of Spark it reaches in the JVM.

Threads: the main one forks the JVM (the kernel ties the JVM to this very thread) and reads commands, one waits for the
JVM's end, one brings the engine up, a pool serves the commands.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

from msgspec import Struct
from py4j.protocol import Py4JError, Py4JJavaError

from flintlock.host.cgroups import Group
from flintlock.host.parent_death import die_with_parent
from flintlock.model.errors import Refused, Unavailable
from flintlock.model.tasks import TaskMetrics
from flintlock.spark.engine.class_archive import archive_file, archive_in_use
from flintlock.spark.engine.conf import engine_conf, worker_environment
from flintlock.spark.engine.driver import EngineDriver, JavaObject
from flintlock.spark.engine.hadoop_files import FileFailure, HadoopFiles
from flintlock.spark.engine.jvm import DriverJvm, JvmSettings, start_jvm
from flintlock.spark.engine.messages import (
    TO_ENGINE,
    Answer,
    AskStats,
    Command,
    Done,
    EngineDied,
    EngineReady,
    EngineSettings,
    EngineStats,
    Failed,
    FilesListed,
    ListFiles,
    Measured,
    MeasureSession,
    Publish,
    Published,
    Released,
    ReleaseSessions,
    RemoveTree,
    StartEngine,
    Stop,
    ToEngine,
)
from flintlock.spark.engine.python_workers import daemons, end_workers
from flintlock.spark.engine.warm_up import warm_up
from flintlock.spark.framing import Frames, frame

COMMANDS_AT_ONCE: Final = 16

#: How long the one who waits for the JVM's end may take to tell of it, when a call into the JVM has failed.
DEATH_S: Final = 2.0

#: How often work of closed sessions is looked for.
ORPHANS_S: Final = 1.0

#: How long a JVM may take to write a class archive as it ends.
RECORD_S: Final = 600.0


class EngineProcess:
    """One engine, from its first message to the end of its JVM."""

    def __init__(self, answers: int, settings: EngineSettings) -> None:
        self._settings: Final = settings
        self._answers: Final = answers
        self._saying: Final = threading.Lock()
        self._token: Final = secrets.token_urlsafe(32)
        self._began_s: Final = time.monotonic()
        self._stopping: Final = threading.Event()  # set once the JVM's end is wanted
        self._driver: EngineDriver | None = None  # set when the engine is warm
        self._files: HadoopFiles | None = None  # as the driver
        self._jvm: Final = self._start_jvm()

    def serve(self, commands: Iterator[ToEngine]) -> None:
        """Bring the engine up and serve until told to stop, or until the TaskManager is gone. Does not return."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        threading.Thread(target=self._bring_up, name="bring-up", daemon=True).start()
        pool = ThreadPoolExecutor(COMMANDS_AT_ONCE, thread_name_prefix="command")
        for command in commands:
            if isinstance(command, Stop | StartEngine):
                break
            pool.submit(self._serve_one, command)
        self._stopping.set()
        os._exit(self._stop_jvm())

    def _start_jvm(self) -> DriverJvm:
        settings, scratch = self._settings, Path(self._settings.scratch_dir)
        if settings.cgroup:
            with suppress(OSError):  # an engine in its parent's group is better than none
                Group(Path(settings.cgroup)).add(os.getpid())
        for leftover in ("tmp", "local", "warm-up"):  # of an engine that was killed
            shutil.rmtree(scratch / leftover, ignore_errors=True)
        return start_jvm(
            JvmSettings(
                java=settings.java,
                conf=engine_conf(settings),
                scratch_dir=settings.scratch_dir,
                log_file=settings.log_file,
                run_dir=settings.run_dir,
                heap_bytes=settings.heap_bytes,
                python=settings.python,
                working_dir=settings.working_dir,
                # In the environment, and so also in that of foreachBatch's workers, which call back.
                environment={
                    **settings.environment,
                    **worker_environment(settings),
                    "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
                },
                class_archive=archive_in_use(settings.archive_dir, settings.java),
                record_archive=str(self._recording()) if settings.record_archive else "",
            )
        )

    def _stop_jvm(self) -> int:
        """End the JVM and return this process's exit code."""
        if not self._settings.record_archive:
            self._jvm.stop()
            return 0
        self._jvm.stop(RECORD_S)
        unfinished = self._recording()
        if not unfinished.is_file():
            return 1
        unfinished.replace(archive_file(Path(self._settings.archive_dir), self._settings.java))
        return 0

    def _recording(self) -> Path:
        """Return where the archive is written until it is whole."""
        file = archive_file(Path(self._settings.archive_dir), self._settings.java)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.with_name(f"{file.name}.{os.getpid()}.new")

    def _watch(self) -> None:
        self._jvm.wait()
        if not self._stopping.is_set():
            self._die(self._jvm.cause_of_death())

    def _die(self, cause: str) -> None:
        # Spark's foreachBatch workers log the address that they call back, token and all; a cause reaches users.
        self._say(EngineDied(cause=cause.replace(self._token, "…")))
        os._exit(1)

    def _bring_up(self) -> None:
        steps_s: dict[str, float] = {}

        def done(step: str) -> None:
            steps_s[step] = round(time.monotonic() - self._began_s, 3)

        try:
            driver = EngineDriver(self._jvm.gateway())
            done("gateway")
            driver.open()
            done("session")
            warm_up(driver, self._token, self._settings.scratch_dir)
            done("warm")
            ready = EngineReady(
                remote_url=f"sc://127.0.0.1:{driver.connect_port}/;authorization={quote(f'Bearer {self._token}')}",
                spark_version=driver.spark_version,
                application_id=driver.application_id,
                jvm_pid=self._jvm.process.pid,
                steps_s=steps_s,
            )
        except Exception as error:  # noqa: BLE001 - an engine that cannot start says why, whatever it was
            self._failed_to_start(error)
            return
        self._files = HadoopFiles(driver.jvm, driver.context.hadoopConfiguration(), self._settings.work_root)
        self._driver = driver
        self._say(ready)
        self._end_orphans(driver)

    def _end_orphans(self, driver: EngineDriver) -> None:
        """End what is begun for sessions that are closed, as long as the engine lives."""
        while not self._stopping.wait(ORPHANS_S):
            try:
                for name in driver.end_orphans():
                    sys.stderr.write(f"{name} was begun for a session that is closed: cancelled\n")
            except Py4JError:
                continue  # whoever waits for the JVM's end tells of it

    def _failed_to_start(self, error: Exception) -> None:
        """Tell why; if the JVM is dying of it, whoever waits for its end knows more."""
        if self._stopping.wait(0) or self._jvm.ends_within(DEATH_S):
            return
        self._stopping.set()
        self._jvm.process.kill()
        self._die(f"Spark cannot be started: {_told(error)}")

    def _serve_one(self, command: Command) -> None:
        try:
            answer = self._answer(command)
        except Refused as error:
            answer = Failed(call=command.call, kind="refused", reason=error.public)
        except Exception as error:  # noqa: BLE001 - every command is answered; whoever asked waits for it
            answer = Failed(call=command.call, kind="failed", reason=_told(error))
        self._say(answer)
        if isinstance(answer, Released) and isinstance(command, ReleaseSessions):
            self._end_workers(command)

    def _end_workers(self, release: ReleaseSessions) -> None:
        """End the Python workers of what was released; nobody waits for that."""
        jvm_pid = self._jvm.process.pid
        if self._driver is None or not any(daemons(jvm_pid)):
            return
        try:
            end_workers(jvm_pid, self._driver.server_ids(release.user_id, release.session_id))
        except Py4JError as error:
            sys.stderr.write(f"Python workers of {release.user_id} cannot be ended: {_told(error)}\n")

    def _answer(self, command: Command) -> Answer:
        driver, files = self._driver, self._files
        if driver is None or files is None:
            raise Unavailable("the engine is still starting")
        match command:
            case ReleaseSessions(call=call, user_id=user_id, session_id=session_id, timeout_s=timeout_s):
                active = driver.release(user_id, session_id, timeout_s)
                return Released(call=call, confirmed=not active, active=active)
            case ListFiles(call=call, path=path, weigh=weigh):
                return FilesListed(call=call, listing=files.list_files(path, weigh=weigh))
            case Publish(call=call):
                total = files.publish(command, lambda done, of: self._say(Published(call=call, done=done, total=of)))
                return Published(call=call, done=total, total=total, complete=True)
            case RemoveTree(call=call, path=path):
                files.remove_tree(path)
                return Done(call=call)
            case MeasureSession():
                return _measured(driver, command)
            case AskStats(call=call):
                used, most = driver.heap()
                executors, active_tasks = driver.executors()
                return EngineStats(
                    call=call,
                    heap_used_bytes=used,
                    heap_max_bytes=most,
                    executors=executors,
                    active_tasks=active_tasks,
                    sessions=driver.session_count(),
                )

    def _say(self, message: Struct) -> None:
        rest = memoryview(frame(message))
        with self._saying:
            try:
                while rest:
                    rest = rest[os.write(self._answers, rest) :]
            except OSError:
                return  # nobody listens any more; the end of stdin ends this process


def _measured(driver: EngineDriver, command: MeasureSession) -> Measured:
    open_ones = driver.operations_of(command.user_id, command.session_id)
    every = dict.fromkeys((*(open_ones or ()), *command.operations))
    counted = driver.measure(command.user_id, command.session_id, tuple(every))
    together = {field: sum(getattr(one, field) for one in counted.values()) for field in TaskMetrics.__struct_fields__}
    # A program may have stopped its session, and made others: it is the user that they have in common.
    whole = TaskMetrics(**together) if open_ones is not None or every else driver.measure_user(command.user_id)
    return Measured(
        call=command.call,
        session=whole,
        operations={name: counted[name] for name in command.operations},
    )


def _told(error: Exception) -> str:
    """Return an error in words: of one of the JVM, what its innermost cause says."""
    if isinstance(error, FileFailure | Unavailable):
        return str(error)
    if not isinstance(error, Py4JJavaError):
        return f"{type(error).__name__}: {error}".partition("\n")[0]
    try:
        cause = cast("JavaObject", error.java_exception)
        while cause.getCause() is not None:
            cause = cause.getCause()
        return f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    except Py4JError:
        return str(error).partition("\n")[0]


def _messages(commands: int) -> Iterator[ToEngine]:
    frames = Frames(TO_ENGINE)
    while data := os.read(commands, 1 << 16):
        yield from frames.feed(data)


def main() -> None:
    """Be an engine."""
    die_with_parent(int(sys.argv[1]))
    logging.disable()  # only py4j logs here, and only the errors that it also raises
    commands, answers = os.dup(0), os.dup(1)  # not inherited by the JVM, unlike 0, 1 and 2
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    messages = _messages(commands)
    first = next(messages, None)
    if not isinstance(first, StartEngine):
        sys.exit("an engine is started by a TaskManager, which tells it what to be")
    try:
        process = EngineProcess(answers, first.settings)
    except (Unavailable, OSError) as error:
        os.write(answers, frame(EngineDied(cause=str(error))))
        sys.exit(1)
    process.serve(messages)


if __name__ == "__main__":
    main()
