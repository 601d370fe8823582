"""A cluster's processes on this machine: found by their pid files, started, ended.

A pid alone proves nothing, since pids are used again: a process matches only if its start time matches too, and nothing
is ever signalled without that.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import psutil
from msgspec import Struct

from flintlock.host.files.whole_files import write_whole
from flintlock.host.logs.log_tail import read_tail

_TAIL_BYTES: Final = 4000
_PAUSE_S: Final = 0.05
_START_TIME_SLACK_S: Final = 1.0  # psutil rounds to clock ticks
_STARTED: Final = "started"  # in `run`: the processes that were started in the background, recorded by their starter
_EXITS: Final = "exits"  # in `run`: how processes have ended, recorded by themselves


class PidFile(Struct, frozen=True, kw_only=True, rename="kebab"):
    """One process, identified by pid and start time."""

    pid: int
    start_time: float


_File = TypeVar("_File", bound=PidFile)


#: The JobManager that leads on this host; removed when it steps down, left behind when it dies.
LEADER_FILE: Final = "cluster.json"


class ClusterFile(PidFile, frozen=True, kw_only=True, rename="kebab"):
    """A JobManager that listens: `cluster.json` is the one that leads, `run/jobmanager*.json` is each of them."""

    cluster_id: str
    rest: str
    rpc: str = ""
    epoch: int = 0  # in which it leads; 0 if it does not


class TaskManagerFile(PidFile, frozen=True, kw_only=True, rename="kebab"):
    """A TaskManager: `run/taskmanager-*.json`."""

    rpc: str = ""  # where it listens, as the leader lists it


class ExitFile(PidFile, frozen=True, kw_only=True, rename="kebab"):
    """How a process ended: `run/exits/*.json`. One that was killed has none."""

    code: int
    reason: str = ""


class Started(Struct, frozen=True):
    """A process that was started here, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begins: int = 0  # the size of the log when it was started

    def ended_within(self, wait_s: float = _PAUSE_S) -> bool:
        """Wait up to `wait_s` for the process to end; return whether it has."""
        try:
            self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def tail(self, max_bytes: int = _TAIL_BYTES) -> str:
        """Return the end of its output; nothing that an earlier process has written."""
        try:
            written = self.log.stat().st_size - self.begins
        except OSError:
            return ""
        return read_tail(self.log, min(max_bytes, written) if written >= 0 else max_bytes).strip()


def running(file: PidFile | None) -> psutil.Process | None:
    """Return the process that the file identifies, if it still runs."""
    if file is None:
        return None
    try:
        process = psutil.Process(file.pid)
        if (
            abs(process.create_time() - file.start_time) > _START_TIME_SLACK_S
            or process.status() == psutil.STATUS_ZOMBIE
        ):
            return None
    except psutil.Error:
        return None
    return process


def read_pid_file(path: Path) -> PidFile | None:
    """Return the content of the file; None if it does not exist, is incomplete or damaged."""
    return _read(path, PidFile)


def read_job_manager_file(path: Path) -> ClusterFile | None:
    """Return the JobManager that the file describes; None if it is not there, or half-written or damaged."""
    return _read(path, ClusterFile)


def announced(state_dir: Path) -> list[ClusterFile]:
    """Return all JobManagers that a state directory lists, alive or dead; the leader, or the last one, first."""
    paths = [
        state_dir / LEADER_FILE,
        *sorted((state_dir / "run").glob("jobmanager*.json"), key=lambda path: path.stem),
    ]
    found: dict[str, ClusterFile] = {}
    for path in paths:
        file = read_job_manager_file(path)
        if file is not None:
            found.setdefault(file.rest, file)
    return list(found.values())


def read_leader_file(state_dir: Path) -> ClusterFile | None:
    """Return the JobManager that led last on this host, running or not; None if there is no readable file."""
    return read_job_manager_file(state_dir / LEADER_FILE)


def job_managers(state_dir: Path) -> list[ClusterFile]:
    """Return the JobManagers of a state directory that run; the leader first."""
    return [file for file in announced(state_dir) if running(file) is not None]


def read_cluster_file(state_dir: Path) -> ClusterFile | None:
    """Return a JobManager of a state directory that runs: the leader, else any; None if there is none."""
    return next(iter(job_managers(state_dir)), None)


def cluster_processes(state_dir: Path) -> dict[str, psutil.Process]:
    """Return the running processes of a state directory by name (`jobmanager`, `taskmanager-0`, …).

    A process writes its own file once it listens; until then it is known by what its starter has recorded.
    """
    found: dict[str, psutil.Process] = {}
    run = state_dir / "run"
    for path in (*sorted(run.glob("*.json")), *sorted((run / _STARTED).glob("*.json"))):
        process = running(read_pid_file(path))
        if process is not None and process not in found.values():
            found[path.stem] = process
    process = running(read_leader_file(state_dir))
    if process is not None and process not in found.values():
        found["jobmanager"] = process
    return found


def task_managers(state_dir: Path) -> dict[str, TaskManagerFile]:
    """Return the TaskManagers of a state directory that run and listen, by name."""
    files = {path.stem: _read(path, TaskManagerFile) for path in sorted((state_dir / "run").glob("taskmanager-*.json"))}
    return {name: file for name, file in files.items() if file is not None and running(file) is not None}


def read_exit(state_dir: Path, name: str) -> ExitFile | None:
    """Return how the last process of that name ended; None if it was killed, or runs."""
    started = read_pid_file(state_dir / "run" / _STARTED / f"{name}.json")
    found = _read(state_dir / "run" / _EXITS / f"{name}.json", ExitFile)
    return found if found is None or started is None or found.pid == started.pid else None


def record_exit(state_dir: Path, name: str, code: int, reason: str = "") -> None:
    """Record that this process ends, for the supervisor. Raises OSError."""
    own = identity(os.getpid())
    file = ExitFile(pid=own.pid, start_time=own.start_time, code=code, reason=reason)
    write_whole(state_dir / "run" / _EXITS / f"{name}.json", msgspec.json.encode(file))


def forget_exit(state_dir: Path, name: str) -> None:
    """Remove what an earlier process of that name has recorded. Idempotent. Raises OSError."""
    (state_dir / "run" / _EXITS / f"{name}.json").unlink(missing_ok=True)


def forget_processes(state_dir: Path) -> None:
    """Remove all that was recorded of processes that have ended. Raises OSError."""
    run = state_dir / "run"
    for path in (*(run / _STARTED).glob("*.json"), *(run / _EXITS).glob("*.json")):
        path.unlink(missing_ok=True)


def start_recorded(state_dir: Path, name: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Started:
    """Start a process of a state directory, with its log there, and record it before it can do so itself."""
    forget_exit(state_dir, name)
    started = start(name, arguments, state_dir / "log" / f"{name}.log", environ=environ, directory=state_dir)
    try:
        write_whole(state_dir / "run" / _STARTED / f"{name}.json", msgspec.json.encode(identity(started.process.pid)))
    except psutil.Error:  # it has ended already
        return started
    except OSError:
        started.process.kill()
        started.process.wait()
        raise
    return started


def start(name: str, arguments: Sequence[str], log: Path, *, environ: Mapping[str, str] | None = None,
          directory: Path | None = None) -> Started:  # fmt: skip
    """Start an entrypoint as a session of its own (Ctrl-C in the terminal does not reach it), output into `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        begins = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=directory,
            env=dict(environ) if environ is not None else None,
        )
    return Started(name, process, log, begins)


def end(processes: Iterable[psutil.Process], patience_s: float) -> list[psutil.Process]:
    """End the processes with SIGTERM, after `patience_s` with SIGKILL; return those that had to be killed."""
    living = list(processes)
    for process in living:
        _signal(process, signal.SIGTERM)
    _, stubborn = psutil.wait_procs(living, timeout=patience_s)
    for process in stubborn:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(stubborn, timeout=5.0)
    return stubborn


def identity(pid: int) -> PidFile:
    """Return what distinguishes this process from any other that ever had its pid."""
    return PidFile(pid=pid, start_time=psutil.Process(pid).create_time())


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil checks the start time again before it signals
    except psutil.NoSuchProcess:
        return


def _read(path: Path, kind: type[_File]) -> _File | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
