"""Clusters on this machine: background clusters of a state directory, and an embedded one for the duration of a job.

Both are the same real processes (a JobManager, or several of which one leads; TaskManagers beside it). A
background cluster outlives the process that starts it. An embedded one uses a temporary directory and ends with its
client, even if that is killed: its processes request a signal from the kernel for the death of their parent.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.client.clusters.cluster_processes import (
    MissingProcess,
    command_of,
    environment_of,
    exit_text,
    missing_processes,
)
from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials, Credentials
from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration, split_assignment
from flintlock.ha.backends import ha_backend
from flintlock.host.cluster_spec import (
    SUPERVISOR,
    ClusterSpec,
    expected_cluster,
    read_cluster_spec,
    remove_cluster_spec,
    write_cluster_spec,
)
from flintlock.host.files.private_files import make_private_directory
from flintlock.host.files.run_directory import start_lock
from flintlock.host.processes import pid_files
from flintlock.host.processes.pid_files import ClusterFile, Started, TaskManagerFile
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.log_events import ENGINE_START_FAILED

START_PATIENCE_S: Final = 300.0  # an engine is warm after 10 s, on a machine that is busy after minutes
STOP_PATIENCE_S: Final = 20.0
SUPERVISOR_PATIENCE_S: Final = 3.0  # it ends at once, unless it is paused
_EMBEDDED: Final = "flintlock-embedded-"
_EMBEDDED_SETTINGS: Final = Configuration({})  # of what concerns its client: nothing that is configured applies
_PAUSE_S: Final = 0.05
_NOTE_S: Final = 10.0  # how often the user who waits is shown what for
_START_LOG_BYTES: Final = 64 << 10  # what a TaskManager logs while it starts, with room for a stack trace


class StartedCluster(Struct, frozen=True, kw_only=True):
    """A cluster that is ready, and the names of the processes that were started for that.

    `cluster` is the JobManager that leads; with ZooKeeper the leader may be on another machine: then one of these,
    which forwards to it.
    """

    cluster: ClusterFile
    started: tuple[str, ...]


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """What runs in a state directory."""

    state_dir: str
    cluster: ClusterFile | None
    processes: dict[str, int]  # name -> pid
    job_managers: list[ClusterFile]  # those that run, the one that leads first
    expected: tuple[str, ...]  # what `flintlock cluster start` has started, and `cluster stop` has not stopped
    missing: tuple[MissingProcess, ...]  # what of that does not run
    task_managers: dict[str, TaskManagerFile]  # those that run and listen


class EmbeddedCluster:
    """A cluster for the duration of a job. `check` detects that one of its processes has ended."""

    def __init__(self, url: str, state_dir: Path, children: Sequence[Started]) -> None:
        self.url: Final = url
        self.state_dir: Final = state_dir
        self._children: Final = tuple(children)

    def client(self, *, patience_s: float) -> Client:
        """Return a client of this cluster."""
        return Client(
            [self.url], patience_s=patience_s, credentials=ClientCredentials(_EMBEDDED_SETTINGS, self.state_dir)
        )

    def check(self) -> None:
        """Raise FlintlockError, with the end of its log, if a process of the cluster has ended."""
        for child in self._children:
            _require_running(child)


def start_cluster(
    settings: LoadedConfiguration, state_dir: Path, spec: ClusterSpec, *, patience_s: float = START_PATIENCE_S,
    notify: Callable[[str], None] = lambda _: None,
) -> StartedCluster:  # fmt: skip
    """Start what is missing of a cluster, in the background; return once it has its slots and all JobManagers listen.

    Processes that run are left alone, with the settings that they have. The first JobManager takes the configured
    ports, the others free ones. Calls `notify` with what it starts, if there is anything, and every ten seconds with
    what it waits for.

    Raises Refused if the packages of a cluster are not installed, Conflict if another process starts processes there,
    FlintlockError with the cause if a process ends early, Unavailable if it is not ready in time; what this call has
    started is ended then.
    """
    require_extra("cluster", "starting a cluster")
    make_private_directory(state_dir)
    try:
        return _start_missing(settings, state_dir, spec, patience_s, notify)
    except OSError as error:
        raise FlintlockError(f"the cluster cannot be started in {state_dir}: {error}") from error


def _start_missing(
    settings: LoadedConfiguration, state_dir: Path, spec: ClusterSpec, patience_s: float,
    notify: Callable[[str], None],
) -> StartedCluster:  # fmt: skip
    deadline = time.monotonic() + patience_s
    with start_lock(state_dir, patience_s), expected_cluster(state_dir, spec):
        missing = [process.name for process in missing_processes(state_dir, spec)]
        if any(name.startswith("taskmanager") for name in missing):
            require_java()
        if missing:
            notify(f"starting {', '.join(missing)} …")
        if not pid_files.cluster_processes(state_dir):
            _forget_jobmanagers(state_dir)
        children: list[Started] = []
        try:
            for name in missing:
                if name != SUPERVISOR:
                    children.append(_start(state_dir, spec, name))  # noqa: PERF401 (those are ended if one fails)
            expected = _Expected(
                spec.jobmanagers, spec.taskmanagers, led_here=not ha_backend(settings.configuration).spans_hosts
            )
            credentials = ClientCredentials(settings.configuration, state_dir)
            cluster = _ready(state_dir, children, expected, deadline, credentials, notify=notify)
            if SUPERVISOR in missing:  # last: what cannot start at all is not started again
                children.append(_start(state_dir, spec, SUPERVISOR))
                _await_supervisor(state_dir, children[-1], deadline)
        except BaseException:
            _end(children)
            raise
    return StartedCluster(cluster=cluster, started=tuple(missing))


def _start(state_dir: Path, spec: ClusterSpec, name: str) -> Started:
    return pid_files.start_recorded(state_dir, name, command_of(state_dir, name), environment_of(spec, os.environ))


def _await_supervisor(state_dir: Path, child: Started, deadline: float) -> None:
    """Wait until the supervisor is at work, or has found nothing to supervise. Raises FlintlockError, Unavailable."""
    while child.process.poll() != 0 and pid_files.read_pid_file(state_dir / "run" / f"{SUPERVISOR}.json") is None:
        _require_running(child)
        if time.monotonic() >= deadline:
            raise Unavailable("the supervisor has not begun its work in time")
        child.ended_within()


def stop_cluster(state_dir: Path, patience_s: float = STOP_PATIENCE_S) -> dict[str, bool]:
    """End the cluster of a state directory; its jobs stay stored. Returns each process and whether it had to be killed.

    The supervisor ends first, so that it starts nothing again, then TaskManagers, so that none of them searches for a
    JobManager that has ended. From the first moment on nothing is expected there any more: what is ended is not
    missing, even if this process dies half-way.
    """
    remove_cluster_spec(state_dir)
    supervisor = {
        name: process for name, process in pid_files.cluster_processes(state_dir).items() if name == SUPERVISOR
    }
    killed = pid_files.end(supervisor.values(), min(patience_s, SUPERVISOR_PATIENCE_S))
    found = pid_files.cluster_processes(state_dir)
    workers = [process for name, process in found.items() if not name.startswith("jobmanager")]
    masters = [process for name, process in found.items() if name.startswith("jobmanager")]
    killed += [*pid_files.end(workers, patience_s), *pid_files.end(masters, patience_s)]
    found |= supervisor
    if found and not pid_files.cluster_processes(state_dir):
        for name in found:
            (state_dir / "run" / f"{name}.json").unlink(missing_ok=True)
        pid_files.forget_processes(state_dir)
        _forget_jobmanagers(state_dir)
    return {name: process in killed for name, process in found.items()}


def cluster_status(state_dir: Path) -> ClusterStatus:
    """Return what runs in a state directory."""
    found = pid_files.cluster_processes(state_dir)
    masters = pid_files.job_managers(state_dir)
    spec = read_cluster_spec(state_dir)
    return ClusterStatus(
        state_dir=str(state_dir),
        cluster=next(iter(masters), None),
        job_managers=masters,
        processes={name: process.pid for name, process in found.items()},
        expected=() if spec is None else spec.names(),
        missing=missing_processes(state_dir, spec),
        task_managers=pid_files.task_managers(state_dir),
    )


@contextmanager
def embedded_cluster(
    settings: LoadedConfiguration, overrides: Sequence[str] = (), *, patience_s: float = START_PATIENCE_S
) -> Generator[EmbeddedCluster]:
    """Run a cluster for the duration of the block; yields once it accepts jobs (its slots may register later).

    On exit its processes are ended and its directory is removed. Must be entered by a thread that runs as long as
    the block: its processes end with that thread. Raises Refused if the packages of a cluster are not installed.
    """
    require_extra("cluster", "an embedded cluster")
    remove_leftovers(Path(tempfile.gettempdir()))
    state_dir = Path(tempfile.mkdtemp(prefix=_EMBEDDED))
    (state_dir / "owner.json").write_bytes(msgspec.json.encode(pid_files.identity(os.getpid())))
    flags = [*overrides, "high-availability.type=embedded", "rest.address=127.0.0.1", "rest.bind-address=127.0.0.1",
             "rest.port=0", "jobmanager.rpc.address=127.0.0.1", "jobmanager.bind-host=127.0.0.1",
             "jobmanager.rpc.port=0", "taskmanager.host=127.0.0.1", "taskmanager.bind-host=127.0.0.1",
             "taskmanager.rpc.port=0", "security.secret-file="]  # fmt: skip
    conf = None if settings.file is None else str(settings.file)
    spec = ClusterSpec(conf=conf, settings=dict(split_assignment(flag, "-D") for flag in flags))
    environ = environment_of(spec, os.environ)
    environ.pop("FLINTLOCK_STATE_DIR", None)
    children: list[Started] = []
    try:
        write_cluster_spec(state_dir, spec)
        for name in spec.names():
            arguments = [*command_of(state_dir, name), "--die-with-parent"]
            log = state_dir / "log" / f"{name}.log"
            children.append(pid_files.start(name, arguments, log, environ=environ))
        credentials = ClientCredentials(_EMBEDDED_SETTINGS, state_dir)
        cluster = _ready(state_dir, children, _Expected(1, 0), time.monotonic() + patience_s, credentials)
        yield EmbeddedCluster(cluster.rest, state_dir, children)
    finally:
        try:
            _end(children)
        finally:
            shutil.rmtree(state_dir, ignore_errors=True)


class _Expected(Struct, frozen=True):
    """What a cluster has once it is ready."""

    job_managers: int
    task_managers: int  # of the state directory
    led_here: bool = True


def _ready(
    state_dir: Path, children: Sequence[Started], expected: _Expected, deadline: float, credentials: Credentials, *,
    notify: Callable[[str], None] = lambda _: None,
) -> ClusterFile:  # fmt: skip
    """Wait for the JobManagers, then for a leader, then for the slots."""
    seen = "no JobManager listens yet"
    begun = shown = time.monotonic()
    while (now := time.monotonic()) < deadline:
        if now - shown >= _NOTE_S:
            shown = now
            notify(f"waiting for {now - begun:.0f} s: {seen}")
        for child in children:
            _require_running(child)
            _require_engine(child)
        if children:
            children[0].ended_within()  # the pause between two polls; ends early if the first process ends
        else:
            time.sleep(_PAUSE_S)  # noqa: TID251 they are no children of this process
        masters = pid_files.job_managers(state_dir)
        if len(masters) < expected.job_managers or (expected.led_here and not masters[0].epoch):
            continue
        cluster = masters[0]
        with Client([cluster.rest], patience_s=0, credentials=credentials) as client:
            try:
                client.http.call("GET", "/readyz")
                registered = registered_here(client, state_dir) if expected.task_managers else ()
            except Unavailable as error:
                seen = error.public
                continue
        if len(registered) >= expected.task_managers:
            return pid_files.read_cluster_file(state_dir) or cluster
        seen = f"{len(registered)} of {expected.task_managers} TaskManagers have registered"
    tails = "\n".join(f"--- {child.log}\n{child.tail()}" for child in children)
    raise Unavailable(f"timed out waiting for the cluster: {seen}\n{tails}".rstrip())


def registered_here(client: Client, state_dir: Path) -> tuple[str, ...]:
    """Return the names of the running TaskManagers of a state directory that the leader knows, with their slots.

    They are known by their addresses: a leader may still list a TaskManager that has died.
    """
    listed = {entry.path for entry in client.task_managers() if entry.slots_number}
    return tuple(name for name, file in pid_files.task_managers(state_dir).items() if f"grpc://{file.rpc}" in listed)


def require_java() -> None:
    """Raise FlintlockError if no engine could start: its TaskManager would try again and again."""
    from flintlock.spark.engine.java import find_java

    try:
        find_java(os.environ)
    except Unavailable as error:
        raise FlintlockError(f"no Spark engine can start: {error.public}") from error


def _require_running(child: Started) -> None:
    """Raise FlintlockError, with the cause first, if a process has ended."""
    code = child.process.poll()
    if code is None:
        return
    ended = pid_files.read_exit(child.log.parent.parent, child.name)
    known = "" if ended is None or ended.pid != child.process.pid else ended.reason
    text = f"{child.name} has ended: {exit_text(code, known)}"
    raise FlintlockError(f"{text}\n(its log is {child.log})" if known else f"{text}\n--- {child.log}\n{child.tail()}")


def _require_engine(child: Started) -> None:
    """Raise FlintlockError if the Spark engine of a TaskManager has failed to start."""
    if not child.name.startswith("taskmanager"):
        return
    for line in child.tail(_START_LOG_BYTES).splitlines():
        reason = _engine_failure(line)
        if reason is not None:
            raise FlintlockError(f"{child.name} cannot start its Spark engine: {reason}\n(its log is {child.log})")


def _engine_failure(line: str) -> str | None:
    """Return why an engine could not start, if that is what a line of a log says."""
    if ENGINE_START_FAILED not in line:
        return None
    try:
        entry = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.MsgspecError:
        return None
    return str(entry.get("reason", "")) if entry.get("event") == ENGINE_START_FAILED else None


def _end(children: Sequence[Started]) -> None:
    """End what was started here, TaskManagers first; what has not ended in time is killed."""
    for child in reversed(children):
        child.process.terminate()
    deadline = time.monotonic() + STOP_PATIENCE_S
    try:
        for child in reversed(children):
            child.ended_within(max(0.0, deadline - time.monotonic()))
    finally:  # a second Ctrl-C skips the wait, not the kill
        for child in reversed(children):
            child.process.kill()
            child.process.wait()


def _forget_jobmanagers(state_dir: Path) -> None:
    """Remove the announcements of JobManagers that have ended, so that no client connects to them."""
    for path in (state_dir / "cluster.json", *(state_dir / "run").glob("jobmanager*.json")):
        path.unlink(missing_ok=True)


def remove_leftovers(root: Path) -> None:
    """Remove directories of embedded clusters whose owner, a process of this user, was killed before it could."""
    for path in root.glob(f"{_EMBEDDED}*"):
        owner = pid_files.read_pid_file(path / "owner.json")
        if owner is not None and path.stat().st_uid == os.getuid() and pid_files.running(owner) is None:
            shutil.rmtree(path, ignore_errors=True)
