"""The classic door: Spark's driver and its Connect server, seen from inside their JVM.

A task has ended only when nothing of its Spark session runs any more, and that is not what closing a session says:
Connect interrupts the session's threads and returns. So the truth is read where it is made. An operation is a thread,
and threads have names. A thread that ends cancels its jobs, by a message to the one loop that schedules all jobs; a
message of ours through the same loop comes back when theirs has been heard. A cancelled job's tasks may still run; as
long as one does, the scheduler keeps its task set, with the session's tag on it.

One thing escapes this: a stage of a query that adapts itself is begun by a thread of Spark's that nobody can wait for,
and on a busy machine that may be after its query was cancelled. Such work belongs to no session any more; `end_orphans`
finds it by that.

A session that never existed is made before it is closed. What was closed stays closed: a call that a dead client had
already sent cannot open it again.

Rejected: Spark's status store as the only judge (it hears of jobs later than they run, and forgets stages with running
tasks); a listener written in Python (each event of every job would cross into this process).
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from typing import Final

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JJavaError

from flintlock.model.errors import Refused
from flintlock.model.tasks import TaskMetrics
from flintlock.spark.engine.jvm import Gateway
from flintlock.spark.engine.metrics import JavaObject, count, flush_events, items

#: How often a release looks whether the session's work has ended.
LOOK_S: Final = 0.02

#: How many sessions are closed at the same time.
CLOSING_AT_ONCE: Final = 16

#: How many operations of one session are closed one by one, where closing all of them fails.
OPERATIONS_AT_MOST: Final = 1000

#: From how many operations on it costs less to go through all jobs that are remembered.
ASKED_ONE_BY_ONE: Final = 50

_OPERATION_THREAD: Final = "SparkConnectExecuteThread_opId=([0-9a-fA-F-]+)"
_SESSION_OF_TAG: Final = re.compile("_Session_([0-9a-fA-F-]{36})_")
_TAGS_PROPERTY: Final = "spark.job.tags"


class EngineDriver:
    """One SparkContext with the Connect server in it. Any thread may use it, each has its own in the JVM."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway: Final = ClientServer(
            java_parameters=JavaParameters(port=gateway.port, auth_token=gateway.secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        self.jvm: Final[JavaObject] = self.gateway.jvm
        self._session: JavaObject = None  # set by `open`
        self._java: _Classes  # as the session
        # Threads that stay: a new one costs a new connection to the JVM.
        self._closers: Final = ThreadPoolExecutor(CLOSING_AT_ONCE, thread_name_prefix="close-session")

    def open(self) -> None:
        """Make the Spark application; the Connect server comes up with it. Raises Py4JJavaError."""
        self._session = self.jvm.org.apache.spark.sql.classic.SparkSession.builder().getOrCreate()
        self._java = _Classes(self.jvm)

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
        """The id under which a cluster manager knows the application."""
        return str(self.context.applicationId())

    @property
    def connect_port(self) -> int:
        """Where the Connect server listens."""
        return int(self._java.service.localPort())

    def release(self, user_id: str, session_id: str | None, timeout_s: float) -> tuple[str, ...]:
        """End the user's session, or all of the user's; return what is still active when the time is up.

        Once it returns (), nothing of the session runs, and what may still be begun for it is ended by `end_orphans`.
        Idempotent, and true of sessions that their clients closed, or that never were.
        """
        scope = self._scope(user_id, session_id)
        give_up_s = time.monotonic() + timeout_s
        sessions = (session_id,) if session_id is not None else tuple(self._sessions_of(user_id))
        closing = {self._closers.submit(self._close, user_id, session): session for session in sessions}
        wait(closing, max(0.0, give_up_s - time.monotonic()))
        heard = False  # whether the scheduler has heard all that the ended threads told it
        while True:
            active = [f"session {session} is closing" for close, session in closing.items() if not close.done()]
            active += [f"operation {name} runs" for name in self._running_operations(user_id, session_id)]
            if not active:
                heard = heard or self._scheduler_heard(give_up_s)
                active += self._running_work(scope) if heard else ["the scheduler does not answer"]
            problems = [problem for close in closing if close.done() and (problem := close.result())]
            if problems or not active or time.monotonic() >= give_up_s:
                return (*problems, *active)
            threading.Event().wait(LOOK_S)

    def end_orphans(self) -> tuple[str, ...]:
        """End the work of sessions that are closed; return the names of its task sets. To be called now and then."""
        found: list[str] = []
        for tasks in items(self.context.taskScheduler().rootPool().getSortedTaskSetQueue()):
            tags = _tags_of(tasks)
            sessions = {match[1] for tag in tags if (match := _SESSION_OF_TAG.search(tag))}
            # Asked after the task set was seen: its session was there before it.
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
        if len(operations) <= ASKED_ONE_BY_ONE:
            tracker = self.context.statusTracker()
            return {name: count(self.context, tracker.getJobIdsForTag(tags[name])) for name in operations}
        jobs: dict[str, list[int]] = {}
        for job in items(self.context.statusStore().jobsList(None)):
            for one in str(job.jobTags().mkString(",")).split(","):
                jobs.setdefault(one, []).append(int(job.jobId()))
        return {name: count(self.context, jobs.get(tags[name], ())) for name in operations}

    def measure_user(self, user_id: str) -> TaskMetrics:
        """Count what Spark did in all sessions of a user, closed ones too, as far as jobs are remembered."""
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

    def server_ids(self, user_id: str, session_id: str | None) -> frozenset[str]:
        """Return the ids that the server gave to this closed session, or to all closed sessions of the user."""
        which = re.escape(session_id) if session_id is not None else "[^,]*"
        told = str(self._sessions.listClosedSessions().mkString("\n"))
        return frozenset(re.findall(rf"^SessionHolderInfo\({re.escape(user_id)},{which},([^,)]+)", told, re.MULTILINE))

    def heap(self) -> tuple[int, int]:
        """Return the used and the greatest size of the JVM's heap, in bytes."""
        runtime = self._java.runtime
        return int(runtime.totalMemory()) - int(runtime.freeMemory()), int(runtime.maxMemory())

    def executors(self) -> tuple[int, int]:
        """Return how many executors there are (the driver is one where it is alone), and how many tasks they run."""
        every = list(items(self.context.statusStore().executorList(True)))
        workers = [one for one in every if one.id() != "driver"] or every
        # Not what the status store says of tasks: it may be late by as long as nothing else happens.
        running = self.context.taskScheduler().runningTasksByExecutors().values()
        return len(workers), sum(int(count) for count in items(running))

    def session_count(self) -> int:
        """Return how many Connect sessions are open."""
        return int(self._sessions.listActiveSessions().size())

    @cached_property
    def _sessions(self) -> JavaObject:
        return self._java.service.sessionManager()

    def _key(self, user_id: str, session_id: str) -> JavaObject:
        return self._java.session_key(user_id, session_id)

    def _scope(self, user_id: str, session_id: str | None) -> str:
        """Return how the tags of the jobs in question begin."""
        if session_id is None:
            return str(self._java.job_tag.apply(user_id, "\n", "")).partition("\n")[0]
        try:
            uuid.UUID(session_id)
        except ValueError:
            raise Refused(f"{session_id!r} is not a session id: Spark's are UUIDs") from None
        return str(self._java.job_tag.apply(user_id, session_id, ""))

    def _open_sessions(self) -> Iterator[str]:
        return (str(info.sessionId()) for info in items(self._sessions.listActiveSessions()))

    def _sessions_of(self, user_id: str) -> Iterator[str]:
        for info in items(self._sessions.listActiveSessions()):
            if info.userId() == user_id:
                yield str(info.sessionId())

    def _close(self, user_id: str, session_id: str) -> str | None:
        """Close the session, and leave the tombstone that keeps it closed; return what went wrong."""
        key = self._key(user_id, session_id)
        try:
            self._java.service.getOrCreateIsolatedSession(user_id, session_id, self._java.none)
            self._sessions.closeSession(key, False)
        except Py4JJavaError as error:
            if "SESSION_CLOSED" in str(error):
                return None
            # Spark 4.3 trips over an operation that was interrupted before and has not ended yet: it lets go of that
            # one and leaves the session's others running. Each further call gets past one more of them.
            for _ in range(OPERATIONS_AT_MOST):
                try:
                    self._java.service.executionManager().removeAllExecutionsForSession(key)
                    return None
                except Py4JJavaError:
                    continue
            return f"session {session_id} cannot be closed: {error.java_exception.getMessage()}"
        return None

    def _running_operations(self, user_id: str, session_id: str | None) -> list[str]:
        """Return the operations whose threads live and that no other session is known to have.

        One that its session has let go of but that has not ended yet counts as ours, whosever it is: it ends soon, or
        the engine is in trouble anyway.
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
        """Return the operations whose threads live.

        The names are searched in the JVM: an answer of more than 8 KiB takes py4j another 40 ms, and there are some
        hundred threads. Java's own list of threads would stop and walk them all.
        """
        names = self._java.string_builder().append(self._java.all_threads())
        found = self._java.operation_thread.matcher(names)
        running: set[str] = set()
        while found.find():
            running.add(str(found.group(1)))
        return running

    def _scheduler_heard(self, give_up_s: float) -> bool:
        """Send a message round the scheduler's loop; True once it is back, and so all that was sent before it."""
        back = self.context.cancelJobsWithTagWithFuture("flintlock-nothing", "nothing has this tag")
        while not back.isCompleted():
            if time.monotonic() >= give_up_s:
                return False
            threading.Event().wait(LOOK_S / 10)
        return True

    def _kill_again(self, tasks: JavaObject) -> None:
        """Tell the tasks of a cancelled job once more to end: a kill can miss a task that is just being launched."""
        backend = self.context.schedulerBackend()
        for task in items(tasks.runningTasksSet()):
            info = tasks.taskInfos().get(task)
            if info.isDefined():
                backend.killTask(int(task), str(info.get().executorId()), True, "its session was released")

    def _running_work(self, scope: str) -> list[str]:
        """Return the jobs and task sets that carry a tag of this scope; the jobs are cancelled once more."""
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
    """What is used of the JVM again and again: each part of a name that is looked up is a round trip."""

    def __init__(self, jvm: JavaObject) -> None:
        connect = jvm.org.apache.spark.sql.connect.service
        self.service: Final = _module(connect, "SparkConnectService")
        self.session_key: Final = connect.SessionKey
        self.job_tag: Final = _module(connect, "ExecuteJobTag")
        self.none: Final = _module(jvm.scala, "None")
        self.running: Final = jvm.org.apache.spark.JobExecutionStatus.RUNNING
        self.runtime: Final = jvm.java.lang.Runtime.getRuntime()
        self.string_builder: Final = jvm.java.lang.StringBuilder
        self.all_threads: Final = jvm.org.apache.commons.lang3.ThreadUtils.getAllThreads
        self.operation_thread: Final = jvm.java.util.regex.Pattern.compile(_OPERATION_THREAD)


def _module(package: JavaObject, name: str) -> JavaObject:
    """Return a Scala object."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _tags_of(tasks: JavaObject) -> list[str]:
    """Return the tags of the job that a task set belongs to."""
    properties = tasks.taskSet().properties()
    tags = properties.getProperty(_TAGS_PROPERTY) if properties is not None else None
    return str(tags).split(",") if tags else []
