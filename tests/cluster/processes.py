"""Real JobManagers and TaskManagers for tests: started, killed and waited for, on conditions, never on time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeVar

import httpx
import msgspec

from flintlock.testing import rest_requests

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
T = TypeVar("T")


_LAUNCH: Final = (
    "import os, sys; from flintlock.host.processes.parent_death import die_with_parent;"
    " die_with_parent(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
)


def ending_with_this_process(command: Sequence[str]) -> list[str]:
    """Return the command of a process that ends with this one, however that ends."""
    return [sys.executable, "-c", _LAUNCH, str(os.getpid()), *command]


def until(what: str, condition: Callable[[], T | None], limit_s: float = 120.0, *, pause_s: float = 0.05) -> T:
    """Wait for a condition and return what it returned; TimeoutError names what did not come."""
    end, pause = time.monotonic() + limit_s, Event()
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {limit_s} s")
        pause.wait(pause_s)


class Processes:
    """One state directory and the processes that work on it."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.jobmanager: subprocess.Popen[bytes] | None = None
        self.taskmanager: subprocess.Popen[bytes] | None = None
        self.others: list[subprocess.Popen[bytes]] = []  # further TaskManagers
        self.prefix: tuple[str, ...] = ()  # before the command of each process
        self.settings: tuple[str, ...] = ()  # of all processes
        self.environment: dict[str, str] = {}  # likewise, in addition to this process's own

    @property
    def url(self) -> str:
        """Where REST is."""
        return str(msgspec.json.decode((self.state_dir / "cluster.json").read_bytes())["rest"])

    def start_jobmanager(self, kill_at: str = "", *, settings: Sequence[str] = ()) -> None:
        """Start a JobManager; with `kill_at`, one that dies there."""
        (self.state_dir / "cluster.json").unlink(missing_ok=True)
        command = [str(HERE / "killed_jobmanager.py")] if kill_at else ["-m", "flintlock.entrypoints.jobmanager"]
        flags = [part for item in settings for part in ("-D", item)]
        self.jobmanager = self._start("jobmanager", [*command, *flags], {"KILL_JOBMANAGER_AT": kill_at})

    def start_taskmanager(self, *, slots: int = 2, settings: Sequence[str] = ()) -> None:
        """Start the TaskManager."""
        self.taskmanager = self._start_taskmanager(0, slots, settings)

    def start_another_taskmanager(
        self, index: int, *, slots: int = 2, settings: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a further TaskManager, of an index above 0."""
        self.others.append(self._start_taskmanager(index, slots, settings))
        return self.others[-1]

    def _start_taskmanager(self, index: int, slots: int, settings: Sequence[str]) -> subprocess.Popen[bytes]:
        flags = [part for item in (f"taskmanager.numberOfTaskSlots={slots}", *settings) for part in ("-D", item)]
        command = ["-m", "flintlock.entrypoints.taskmanager", "--index", str(index), *flags]
        return self._start(f"taskmanager{'' if index == 0 else f'-{index}'}", command, {})

    def await_leader(self) -> None:
        """Wait until REST answers and there is a leader."""
        until("a leader", lambda: self._get("/readyz") is not None)

    def await_slots(self, slots: int = 2, limit_s: float = 180.0) -> None:
        """Wait until so many slots are there."""
        until("slots", lambda: (self._get("/overview") or {}).get("slots-total") == slots, limit_s)

    def kill_jobmanager(self) -> None:
        """SIGKILL it."""
        assert self.jobmanager is not None
        self.jobmanager.send_signal(signal.SIGKILL)
        self.jobmanager.wait()

    def stop(self) -> None:
        """End what runs, as a service manager does; return when it is gone."""
        for process in (*self.others, self.taskmanager, self.jobmanager):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in (*self.others, self.taskmanager, self.jobmanager):
            if process is not None:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def logs(self) -> str:
        """Return the output of the processes, for the message of a failed test."""
        return "\n".join(path.read_text()[-4000:] for path in sorted(self.state_dir.glob("*.log")))

    def log_events(self, name: str, event: str) -> list[dict[str, Any]]:
        """Return what a process has logged under this event."""
        entries: list[dict[str, Any]] = []
        for line in (self.state_dir / f"{name}.log").read_text().splitlines():
            with suppress(msgspec.DecodeError):
                entries.append(msgspec.json.decode(line, type=dict[str, Any]))
        return [entry for entry in entries if entry.get("event") == event]

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        flags = [part for item in ("rest.port=0", *self.settings) for part in ("-D", item)]
        with (self.state_dir / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*self.prefix, sys.executable, *command, "--state-dir", str(self.state_dir), *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment, **environment},
            )

    def _get(self, path: str) -> dict[str, Any] | None:
        if self.jobmanager is not None and self.jobmanager.poll() is not None:
            raise RuntimeError(f"the JobManager ended with {self.jobmanager.returncode}: {self.logs()}")
        try:
            answer = rest_requests.get(self.url + path)
        except (httpx.TransportError, FileNotFoundError):
            return None
        return answer.json() if answer.status_code == 200 else None


@contextmanager
def running_processes(state_dir: Path, **options: Any) -> Generator[Processes]:
    """Start a JobManager and a TaskManager; yield when its slots are there."""
    state_dir.mkdir(parents=True, exist_ok=True)
    processes = Processes(state_dir)
    try:
        processes.start_jobmanager()
        processes.start_taskmanager(**options)
        processes.await_leader()
        processes.await_slots()
        yield processes
    finally:
        processes.stop()
