"""Spark's driver and its Connect server, controlled from outside of their JVM over py4j.

A task has ended only when nothing of its Spark session runs any more, and closing a session does not guarantee that:
Connect interrupts the session's threads and returns. So the state is read at its source. An operation is a thread, and
threads have names. A thread that ends cancels its jobs, by a message to the one loop that schedules all jobs; a message
of ours through the same loop returns when theirs has been processed. A cancelled job's tasks may still run; as long as
one does, the scheduler has its task set, with the session's tag on it.

One thing escapes this: a stage of an adaptive query is started by a thread of Spark's that cannot be waited for, and on
a busy machine that may be after its query was cancelled. Such work belongs to no open session; `cancel_orphans` finds
it by that.

A session that never existed is created before it is closed. A closed session stays closed: a call that a dead client
had already sent cannot open it again.

Rejected: Spark's status store as the only source (it learns of jobs after they have started, and forgets stages with
running tasks); a listener written in Python (each event of every job would cross into this process).
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Final

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JJavaError

from flintlock.model.errors import Refused
from flintlock.model.tasks import TaskMetrics
from flintlock.spark.engine.jvm import Gateway
from flintlock.spark.engine.metrics import JavaObject, count, executor_count, flush_events, has_work, items
from flintlock.spark.state_repartition import repartition_state

#: How often a release checks whether the session's work has ended.
POLL_S: Final = 0.02

#: How many sessions are closed at the same time.
CONCURRENT_CLOSES: Final = 16

#: How many operations of one session are closed one by one, where closing all of them fails.
MAX_OPERATIONS: Final = 1000

#: Up to this many operations are queried one by one; for more it is cheaper to read all retained jobs.
MAX_SINGLE_QUERIES: Final = 50

_OPERATION_THREAD: Final = "SparkConnectExecuteThread_opId=([0-9a-fA-F-]+)"
_SESSION_OF_TAG: Final = re.compile("_Session_([0-9a-fA-F-]{36})_")
_TAGS_PROPERTY: Final = "spark.job.tags"


class EngineDriver:
    """One SparkContext with the Connect server in it. Thread-safe: each thread has its own connection to the JVM."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway: Final = ClientServer(
            java_parameters=JavaParameters(port=gateway.port, auth_token=gateway.secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        self.jvm: Final[JavaObject] = self.gateway.jvm
        self._session: JavaObject = None  # set by `open`
        self._java: _Classes  # as the session
        # Long-lived threads: a new one costs a new connection to the JVM.
        self._closers: Final = ThreadPoolExecutor(CONCURRENT_CLOSES, thread_name_prefix="close-session")

    def open(self) -> None:
        """Create the Spark application; the Connect server starts with it. Raises Py4JJavaError."""
        self._session = self.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
        self._java = _Classes(self.jvm)

    def repartition_state(self, checkpoint: str, partitions: int, config: Mapping[str, str]) -> None:
        """Give the state of a query that does not run another number of partitions, as one more batch.

        Raises Py4JJavaError or StateDiffers; the checkpoint can then no longer be used.
        """
        session = self._session.newSession()
        for key, value in config.items():
            session.conf().set(key, value)
        repartition_state(session, checkpoint, partitions)

    @cached_property
    def context(self) -> JavaObject:
        """The SparkContext."""
        return self._session.sparkContext()

    @property
    def spark_version(self) -> str:
        """Spark's version."""
        return str(self.context.version())

    @property
    def application_id(self) -> str:
        """The id of the application for a cluster manager."""
        return str(self.context.applicationId())

    @property
    def connect_port(self) -> int:
        """Where the Connect server listens."""
        return int(self._java.service.localPort())

    @property
    def ui_url(self) -> str | None:
        """Where Spark's UI listens; None if it is off."""
        url = self.context.uiWebUrl()
        return str(url.get()) if url.isDefined() else None

    def executor_count(self) -> int:
        """Return how many executors the application has; none on a local master."""
        return executor_count(self.context)

    def task_count(self) -> int:
        """Return how many tasks the executors run at the same time."""
        return int(self.context.defaultParallelism())

    def gets_executor(self, timeout_s: float) -> bool:
        """Return whether the application has an executor within this time, as soon as it has."""
        give_up_s = time.monotonic() + timeout_s
        while self.executor_count() == 0:
            if time.monotonic() > give_up_s:
                return False
            _pause()
        return True

    def has_work(self) -> bool:
        """Return whether tasks wait or run."""
        return has_work(self.context)

    def is_stopped(self) -> bool:
        """Return whether the application has ended, although the JVM runs: nothing works in it any more."""
        return bool(self.context.isStopped())

    def release(self, user_id: str, session_id: str | None, timeout_s: float) -> tuple[str, ...]:
        """End the user's session, or all sessions of the user; return what is still active at the timeout.

        Once it returns (), nothing of the session runs, and what may still be started for it is ended by
        `cancel_orphans`. Idempotent; also works for sessions that their clients closed, or that never existed.
        """
        scope = self._scope(user_id, session_id)
        give_up_s = time.monotonic() + timeout_s
        sessions = (session_id,) if session_id is not None else tuple(self._sessions_of(user_id))
        closing = {self._closers.submit(self._close, user_id, session): session for session in sessions}
        wait(closing, max(0.0, give_up_s - time.monotonic()))
        up_to_date = False  # whether the scheduler has processed all messages of the ended threads
        while True:
            active = [f"session {session} is closing" for close, session in closing.items() if not close.done()]
            active += [f"operation {name} runs" for name in self._running_operations(user_id, session_id)]
            if not active:
                up_to_date = up_to_date or self._scheduler_is_up_to_date(give_up_s)
                active += self._running_work(scope) if up_to_date else ["the scheduler does not answer"]
            problems = [problem for close in closing if close.done() and (problem := close.result())]
            if problems or not active or time.monotonic() >= give_up_s:
                return (*problems, *active)
            _pause()

    def cancel_orphans(self) -> tuple[str, ...]:
        """Cancel the work of closed sessions; return the names of its task sets. To be called periodically."""
        found: list[str] = []
        for tasks in items(self.context.taskScheduler().rootPool().getSortedTaskSetQueue()):
            tags = _tags_of(tasks)
            sessions = {match[1] for tag in tags if (match := _SESSION_OF_TAG.search(tag))}
            # Read after the task set was seen: its session existed before it.
            if sessions and sessions.isdisjoint(
                str(info.sessionId()) for info in items(self._sessions.listActiveSessions())
            ):
                found.append(str(tasks.name()))
                for tag in tags:
                    self.context.cancelJobsWithTag(tag)
                self._kill_again(tasks)
        return tuple(found)

    def measure(self, user_id: str, session_id: str, operations: tuple[str, ...]) -> dict[str, TaskMetrics]:
        """Count what Spark read, wrote and ran for each of the operations; also once their session is closed."""
        tag = self._java.job_tag
        flush_events(self.context)
        tags = {name: str(tag.apply(user_id, session_id, name)) for name in operations}
        if len(operations) <= MAX_SINGLE_QUERIES:
            tracker = self.context.statusTracker()
            return {name: count(self.context, tracker.getJobIdsForTag(tags[name])) for name in operations}
        jobs: dict[str, list[int]] = {}
        for job in items(self.context.statusStore().jobsList(None)):
            for one in str(job.jobTags().mkString(",")).split(","):
                jobs.setdefault(one, []).append(int(job.jobId()))
        return {name: count(self.context, jobs.get(tags[name], ())) for name in operations}

    def measure_user(self, user_id: str) -> TaskMetrics:
        """Count what Spark did in all sessions of a user, including closed ones, as far as jobs are retained."""
        scope = self._scope(user_id, None)
        flush_events(self.context)
        jobs = [
            int(job.jobId())
            for job in items(self.context.statusStore().jobsList(None))
            if any(tag.startswith(scope) for tag in str(job.jobTags().mkString(",")).split(","))
        ]
        return count(self.context, jobs)

    def operations_of(self, user_id: str, session_id: str) -> tuple[str, ...] | None:
        """Return the ids of a session's operations, also of those that ended within an hour; None if it is closed."""
        found = self._sessions.getIsolatedSessionIfPresent(self._key(user_id, session_id))
        if found.isEmpty():
            return None
        holder = found.get()
        ended = [info.operationId() for info in items(holder.listInactiveOperations())]
        return tuple(dict.fromkeys(str(name) for name in (*ended, *items(holder.listActiveOperationIds()))))

    @cached_property
    def files_root(self) -> Path:
        """The directory in which Spark keeps the files of sessions, each in a folder with the server's id of one."""
        return Path(str(self.jvm.org.apache.spark.SparkFiles.getRootDirectory()))

    def server_ids(self, user_id: str, session_id: str | None) -> frozenset[str]:
        """Return the ids that the server gave to this closed session, or to all closed sessions of the user."""
        which = re.escape(session_id) if session_id is not None else "[^,]*"
        closed = str(self._sessions.listClosedSessions().mkString("\n"))
        return frozenset(
            re.findall(rf"^SessionHolderInfo\({re.escape(user_id)},{which},([^,)]+)", closed, re.MULTILINE)
        )

    @cached_property
    def _sessions(self) -> JavaObject:
        return self._java.service.sessionManager()

    def _key(self, user_id: str, session_id: str) -> JavaObject:
        return self._java.session_key(user_id, session_id)

    def _scope(self, user_id: str, session_id: str | None) -> str:
        """Return the common prefix of the tags of these jobs."""
        if session_id is None:
            return str(self._java.job_tag.apply(user_id, "\n", "")).partition("\n")[0]
        try:
            uuid.UUID(session_id)
        except ValueError:
            raise Refused(f"{session_id!r} is not a session id: Spark's are UUIDs") from None
        return str(self._java.job_tag.apply(user_id, session_id, ""))

    def _sessions_of(self, user_id: str) -> Iterator[str]:
        for info in items(self._sessions.listActiveSessions()):
            if info.userId() == user_id:
                yield str(info.sessionId())

    def _close(self, user_id: str, session_id: str) -> str | None:
        """Close the session, with a tombstone that prevents its reopening; return what went wrong."""
        key = self._key(user_id, session_id)
        try:
            self._java.service.getOrCreateIsolatedSession(user_id, session_id, self._java.none)
            self._sessions.closeSession(key, False)
        except Py4JJavaError as error:
            if "SESSION_CLOSED" in str(error):
                return None
            # Spark 4.3 fails at an operation that was interrupted before and has not ended yet: it removes that one and
            # leaves the session's others running. Each further call removes one more of them.
            for _ in range(MAX_OPERATIONS):
                try:
                    self._java.service.executionManager().removeAllExecutionsForSession(key)
                    return None
                except Py4JJavaError:
                    continue
            return f"session {session_id} cannot be closed: {error.java_exception.getMessage()}"
        return None

    def _running_operations(self, user_id: str, session_id: str | None) -> list[str]:
        """Return the operations whose threads are alive and that belong to no other session.

        One that its session has removed but that has not ended yet counts as ours, whichever session it was of: it
        ends soon, or the engine is in trouble anyway.
        """
        running = self._operation_threads()
        if not running:
            return []
        for holder in items(self._java.service.executionManager().listExecuteHolders()):
            key = holder.key()
            if key.userId() != user_id or (session_id is not None and key.sessionId() != session_id):
                running.discard(str(key.operationId()))
        return sorted(running)

    def _operation_threads(self) -> set[str]:
        """Return the operations whose threads are alive.

        The names are searched in the JVM: a result of more than 8 KiB takes py4j another 40 ms, and there are some
        hundred threads. Java's own list of threads would stop and walk them all.
        """
        names = self._java.string_builder().append(self._java.all_threads())
        found = self._java.operation_thread.matcher(names)
        running: set[str] = set()
        while found.find():
            running.add(str(found.group(1)))
        return running

    def _scheduler_is_up_to_date(self, give_up_s: float) -> bool:
        """Send a message through the scheduler's loop; True once it and all messages before it are processed."""
        processed = self.context.cancelJobsWithTagWithFuture("flintlock-nothing", "no job has this tag")
        left_ms = max(round((give_up_s - time.monotonic()) * 1000), 1)
        try:
            self._java.wait_for(processed, self._java.duration(left_ms, "ms"))
        except Py4JJavaError:  # TimeoutException, or the future's own failure
            return False
        return True

    def _kill_again(self, tasks: JavaObject) -> None:
        """Kill the tasks of a cancelled job again: a kill can miss a task that is just being launched."""
        backend = self.context.schedulerBackend()
        for task in items(tasks.runningTasksSet()):
            info = tasks.taskInfos().get(task)
            if info.isDefined():
                backend.killTask(int(task), str(info.get().executorId()), True, "its session was released")

    def _running_work(self, scope: str) -> list[str]:
        """Return the jobs and task sets that carry a tag of this scope; the jobs are cancelled again."""
        found: list[str] = []
        for tasks in items(self.context.taskScheduler().rootPool().getSortedTaskSetQueue()):
            if any(tag.startswith(scope) for tag in _tags_of(tasks)):
                found.append(f"{tasks.runningTasks()} tasks of {tasks.name()} run")
                self._kill_again(tasks)
        for job in items(self.context.statusStore().jobsList([self._java.running])):
            tags = [tag for tag in str(job.jobTags().mkString(",")).split(",") if tag.startswith(scope)]
            for tag in tags:
                self.context.cancelJobsWithTag(tag)
            found += [f"job {job.jobId()} runs" for _ in tags[:1]]
        return found


class _Classes:
    """References to the JVM that are used repeatedly: each part of a name that is resolved is a round trip."""

    def __init__(self, jvm: JavaObject) -> None:
        connect = jvm.org.apache.spark.sql.connect.service
        self.service: Final = _module(connect, "SparkConnectService")
        self.session_key: Final = connect.SessionKey
        self.job_tag: Final = _module(connect, "ExecuteJobTag")
        self.none: Final = _module(jvm.scala, "None")
        self.running: Final = jvm.org.apache.spark.JobExecutionStatus.RUNNING
        self.wait_for: Final = jvm.scala.concurrent.Await.ready
        self.duration: Final = jvm.scala.concurrent.duration.Duration.create
        self.string_builder: Final = jvm.java.lang.StringBuilder
        self.all_threads: Final = jvm.org.apache.commons.lang3.ThreadUtils.getAllThreads
        self.operation_thread: Final = jvm.java.util.regex.Pattern.compile(_OPERATION_THREAD)


def _pause() -> None:
    """Wait before the next check: Spark has no event for the end of an operation's thread or of a task set."""
    time.sleep(POLL_S)  # noqa: TID251 - polling, for the reason above


def _module(package: JavaObject, name: str) -> JavaObject:
    """Return a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _tags_of(tasks: JavaObject) -> list[str]:
    """Return the tags of the job that a task set belongs to."""
    properties = tasks.taskSet().properties()
    tags = properties.getProperty(_TAGS_PROPERTY) if properties is not None else None
    return str(tags).split(",") if tags else []
