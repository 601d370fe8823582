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
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials, Credentials
from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration
from flintlock.config.options import JM_RPC_PORT, REST_PORT, TM_SLOTS
from flintlock.ha.backends import ha_backend
from flintlock.host import pid_files
from flintlock.host.pid_files import ClusterFile, Started
from flintlock.host.private_files import make_private_directory
from flintlock.model.errors import Conflict, FlintlockError, Unavailable

JOB_MANAGER: Final = "flintlock.entrypoints.jobmanager"
TASK_MANAGER: Final = "flintlock.entrypoints.taskmanager"
START_PATIENCE_S: Final = 300.0  # an engine is warm after 10 s, on a machine that is busy after minutes
STOP_PATIENCE_S: Final = 20.0
_EMBEDDED: Final = "flintlock-embedded-"
_EMBEDDED_SETTINGS: Final = Configuration({})  # of what concerns its client: nothing that is configured applies
_REASONS: Final = {2: "its configuration is invalid", 4: "a port is in use or the state directory cannot be used"}


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """What runs in a state directory."""

    state_dir: str
    cluster: ClusterFile | None
    processes: dict[str, int]  # name -> pid
    job_managers: list[ClusterFile]  # those that run, the one that leads first


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
    settings: LoadedConfiguration, state_dir: Path, overrides: Sequence[str], *, jobmanagers: int = 1,
    taskmanagers: int = 1, slots: int | None = None, patience_s: float = START_PATIENCE_S,
) -> ClusterFile:  # fmt: skip
    """Start a cluster in the background and return once it has its slots, and all its JobManagers listen.

    The first JobManager takes the configured ports, the others free ones. Returns the JobManager that leads; with
    ZooKeeper the leader may be on another machine: then one of these, which forwards to it.

    Raises Refused if the packages of a cluster are not installed, Conflict if one runs in the state directory already,
    FlintlockError with the end of a log if a process ends early, Unavailable if it is not ready in time; what was
    started is ended then.
    """
    require_extra("cluster", "starting a cluster")
    running = pid_files.cluster_processes(state_dir)
    if running:
        raise Conflict(f"a cluster runs in {state_dir} already ({_listed({n: p.pid for n, p in running.items()})})")
    _forget_jobmanagers(state_dir)
    flags = [*overrides, *([f"{TM_SLOTS.key}={slots}"] if slots is not None else [])]
    environ = dict(os.environ)
    if settings.file is not None:
        environ["FLINTLOCK_CONF"] = str(settings.file)
    children: list[Started] = []
    make_private_directory(state_dir)
    try:
        for name, arguments in _commands(state_dir, flags, jobmanagers, taskmanagers):
            log = state_dir / "log" / f"{name}.log"
            children.append(pid_files.start(name, arguments, log, environ=environ, directory=state_dir))
        expected = _Expected(
            jobmanagers,
            taskmanagers,
            taskmanagers * (slots or settings.configuration.get(TM_SLOTS) or 1),
            led_here=not ha_backend(settings.configuration).spans_hosts,
        )
        credentials = ClientCredentials(settings.configuration, state_dir)
        return _ready(state_dir, children, expected, time.monotonic() + patience_s, credentials)
    except BaseException:
        _end(children)
        raise


def stop_cluster(state_dir: Path, patience_s: float = STOP_PATIENCE_S) -> dict[str, bool]:
    """End the cluster of a state directory; its jobs stay stored. Returns each process and whether it had to be killed.

    TaskManagers end first, so that none of them searches for a JobManager that has ended.
    """
    found = pid_files.cluster_processes(state_dir)
    workers = [process for name, process in found.items() if not name.startswith("jobmanager")]
    masters = [process for name, process in found.items() if name.startswith("jobmanager")]
    killed = [*pid_files.end(workers, patience_s), *pid_files.end(masters, patience_s)]
    if found and not pid_files.cluster_processes(state_dir):
        for name in found:
            (state_dir / "run" / f"{name}.json").unlink(missing_ok=True)
        _forget_jobmanagers(state_dir)
    return {name: process in killed for name, process in found.items()}


def cluster_status(state_dir: Path) -> ClusterStatus:
    """Return what runs in a state directory."""
    found = pid_files.cluster_processes(state_dir)
    masters = pid_files.job_managers(state_dir)
    return ClusterStatus(
        state_dir=str(state_dir),
        cluster=next(iter(masters), None),
        job_managers=masters,
        processes={name: process.pid for name, process in found.items()},
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
    environ = dict(os.environ)
    environ.pop("FLINTLOCK_STATE_DIR", None)
    if settings.file is not None:
        environ["FLINTLOCK_CONF"] = str(settings.file)
    flags = [*overrides, "high-availability.type=embedded", "rest.address=127.0.0.1", "rest.bind-address=127.0.0.1",
             "rest.port=0", "jobmanager.rpc.address=127.0.0.1", "jobmanager.bind-host=127.0.0.1",
             "jobmanager.rpc.port=0", "taskmanager.host=127.0.0.1", "taskmanager.bind-host=127.0.0.1",
             "taskmanager.rpc.port=0", "security.secret-file="]  # fmt: skip
    children: list[Started] = []
    try:
        for name, arguments in _commands(state_dir, flags, 1, 1):
            log = state_dir / "log" / f"{name}.log"
            children.append(pid_files.start(name, [*arguments, "--die-with-parent"], log, environ=environ))
        credentials = ClientCredentials(_EMBEDDED_SETTINGS, state_dir)
        cluster = _ready(state_dir, children, _Expected(1, 0, 0), time.monotonic() + patience_s, credentials)
        yield EmbeddedCluster(cluster.rest, state_dir, children)
    finally:
        try:
            _end(children)
        finally:
            shutil.rmtree(state_dir, ignore_errors=True)


class _Expected(Struct, frozen=True):
    """What a cluster has once it is ready."""

    job_managers: int
    task_managers: int
    slots: int
    led_here: bool = True


def _commands(
    state_dir: Path, flags: Sequence[str], jobmanagers: int, taskmanagers: int
) -> list[tuple[str, list[str]]]:
    own = ["--state-dir", str(state_dir), *_defines(flags)]
    standby = [*own, *_defines([f"{REST_PORT.key}=0", f"{JM_RPC_PORT.key}=0"])]
    return [
        ("jobmanager", [JOB_MANAGER, *own]),
        *((f"jobmanager-{n}", [JOB_MANAGER, *standby, "--index", str(n)]) for n in range(1, jobmanagers)),
        *((f"taskmanager-{n}", [TASK_MANAGER, *own, "--index", str(n)]) for n in range(taskmanagers)),
    ]


def _defines(flags: Sequence[str]) -> list[str]:
    return [part for flag in flags for part in ("-D", flag)]


def _ready(
    state_dir: Path, children: Sequence[Started], expected: _Expected, deadline: float, credentials: Credentials
) -> ClusterFile:
    """Wait for the JobManagers, then for a leader, then for the slots."""
    seen = "no JobManager listens"
    while time.monotonic() < deadline:
        for child in children:
            _require_running(child)
        children[0].ended_within()  # the pause between two polls; ends early if the JobManager ends
        masters = pid_files.job_managers(state_dir)
        if len(masters) < expected.job_managers or (expected.led_here and not masters[0].epoch):
            continue
        cluster = masters[0]
        with Client([cluster.rest], patience_s=0, credentials=credentials) as client:
            try:
                client.http.call("GET", "/readyz")
                overview = client.overview()
            except Unavailable as error:
                seen = error.public
                continue
        if overview.taskmanagers >= expected.task_managers and overview.slots_total >= expected.slots:
            return pid_files.read_cluster_file(state_dir) or cluster
        seen = f"it has {overview.taskmanagers} TaskManagers with {overview.slots_total} slots so far"
    tails = "\n".join(f"--- {child.log}\n{child.tail()}" for child in children)
    raise Unavailable(f"the cluster is not ready in time: {seen}\n{tails}")


def _require_running(child: Started) -> None:
    code = child.process.poll()
    if code is not None:
        why = _REASONS.get(code, f"signal {-code}" if code < 0 else f"exit code {code}")
        raise FlintlockError(f"the {child.name} has ended: {why}\n--- {child.log}\n{child.tail()}")


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


def _listed(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {pid}" for name, pid in found.items())
