"""Workers as processes of this machine: a driver for active mode.

A worker is an ordinary TaskManager process with the JobManager's own configuration and state directory. The
configuration is passed in a file that only its owner can read, not on the command line: it may contain keys of object
stores, and every user of a machine can read the command lines of all its processes.

Workers outlive the term, and the process, that started them: their work goes on under the next leader. Each is recorded
in the state directory, by its id, its pid and the start time of that pid. A JobManager that begins to lead there finds
the records: those whose process runs are its workers from then on. A leader on another machine learns of a worker when
it registers (`TaskManagerRegistration.worker`). A worker that no leader takes ends itself after
`taskmanager.registration.timeout`; `flintlock cluster stop` ends it like any other process of the state directory.

Rejected: ending workers with their leader. The kernel can do that (`die_with_parent`), but the running tasks of all
jobs ended with each change of leader.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import psutil

from flintlock.config.options import TM_RESOURCE_ID, TM_RPC_PORT, TM_SLOTS
from flintlock.entrypoints.process import ProcessSettings, write_json
from flintlock.gateways.workers import WorkerEnded
from flintlock.host.files.whole_files import write_whole
from flintlock.host.processes.pid_files import PidFile, identity, running
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, TaskManagerId
from flintlock.model.jobgraph import Resources

#: Smaller indices are for TaskManagers that are started independently on the same state directory.
FIRST_INDEX: Final = 1000

_POLL_S: Final = 0.25
_END_S: Final = 15.0  # how long a worker may take to end by itself
_PASSED_VARIABLES: Final = frozenset({"FLINTLOCK_JAVA_HOME"})  # the others are in the configuration already


class WorkerFile(PidFile, frozen=True, kw_only=True, rename="kebab"):
    """The record of a worker that runs, or has ended without its leader noticing."""

    id: str
    index: int


@asynccontextmanager
async def local_workers(settings: ProcessSettings, epoch: Epoch) -> AsyncGenerator[LocalWorkers]:
    """Yield a driver for one term, with the workers that run; on exit they run on."""
    run_dir = settings.state_dir / "run" / "workers"
    run_dir.mkdir(parents=True, exist_ok=True)
    configuration = _write_configuration(run_dir, settings)
    found = await asyncio.to_thread(_recorded_workers, run_dir)
    async with asyncio.TaskGroup() as scope:
        driver = LocalWorkers(settings, epoch, run_dir, configuration, scope)
        driver.take_over(found)
        try:
            yield driver
        finally:
            driver.leave_all()


class LocalWorkers:
    """A WorkerDriver. `local_workers` creates it."""

    def __init__(
        self, settings: ProcessSettings, epoch: Epoch, run_dir: Path, configuration: Path, scope: asyncio.TaskGroup
    ) -> None:
        self._state_dir = settings.state_dir
        self._epoch = epoch
        self._run_dir = run_dir
        self._configuration = configuration
        self._scope = scope
        self._slots = settings.configuration.get(TM_SLOTS) or os.cpu_count() or 1
        self._numbers = count(1)
        self._workers: dict[TaskManagerId, _Worker] = {}  # each is removed when its process has ended
        self._ends: asyncio.Queue[WorkerEnded] = asyncio.Queue()
        self._taken_over: tuple[TaskManagerId, ...] = ()
        self._shutting_down = False  # written by `release_all`

    async def taken_over(self) -> tuple[TaskManagerId, ...]:
        """See `WorkerDriver`."""
        return self._taken_over

    async def found(self) -> TaskManagerId:
        """Wait for ever: all are known."""
        never: asyncio.Future[TaskManagerId] = asyncio.get_running_loop().create_future()
        return await never

    @property
    def slots(self) -> int:
        """See `WorkerDriver`."""
        return self._slots

    @property
    def resources(self) -> Resources:
        """Those of the machine: a worker has no other limit."""
        return Resources(cpu=float(os.cpu_count() or 1), memory=psutil.virtual_memory().total)

    async def start(self) -> TaskManagerId:
        """Start a process. Raises Unavailable if the operating system refuses."""
        if self._shutting_down:
            raise Unavailable("no TaskManager process is started: the cluster is shutting down")
        name = TaskManagerId(f"{socket.gethostname()}-worker-{self._epoch}-{next(self._numbers)}")
        taken = {worker.index for worker in self._workers.values()}
        worker = _Worker(next(index for index in count(FIRST_INDEX) if index not in taken))
        self._workers[name] = worker
        try:
            await asyncio.to_thread(self._spawn, name, worker)
        except OSError as error:
            del self._workers[name]
            raise Unavailable(f"no TaskManager process could be started: {error}") from error
        self._supervise(name, worker)
        return name

    def withdraw_start(self) -> bool:
        """Nothing is withdrawn: a process needs no resources to start."""
        return False

    def take_over(self, found: Iterable[WorkerFile]) -> None:
        """Supervise workers that an earlier leader has started."""
        for file in found:
            name = TaskManagerId(file.id)
            worker = self._workers[name] = _Worker(file.index)
            worker.file = file
            self._supervise(name, worker)
        self._taken_over = tuple(self._workers)

    def leave_all(self) -> None:
        """Supervise no worker any more: they are the next leader's."""
        for worker in self._workers.values():
            if worker.task is not None:
                worker.task.cancel()
            if worker.process is not None:  # it stays a child of this process, which has to collect its exit code
                threading.Thread(target=worker.process.wait, name=f"worker-{worker.index}", daemon=True).start()

    async def release(self, worker: TaskManagerId) -> None:
        """End a process and return once it has ended."""
        running = self._workers.get(worker)
        if running is not None and running.task is not None:
            running.stop.set()
            await asyncio.wait({running.task})

    async def release_all(self) -> None:
        """End all processes and return once they have ended."""
        self._shutting_down = True
        while self._workers:  # one that was being started meanwhile is found by the next round
            await asyncio.gather(*(self.release(worker) for worker in tuple(self._workers)))
            await asyncio.sleep(_POLL_S if self._workers else 0.0)

    async def ended(self) -> WorkerEnded:
        """Wait for the next process that ends by itself."""
        return await self._ends.get()

    def _supervise(self, name: TaskManagerId, worker: _Worker) -> None:
        worker.task = self._scope.create_task(self._until_ended(name, worker), name=f"worker-{name}")

    async def _until_ended(self, name: TaskManagerId, worker: _Worker) -> None:
        """Wait for the end of a process; end it when it is released."""
        forced_s: float | None = None  # when it is killed
        while worker.is_running():
            now_s = asyncio.get_running_loop().time()
            if worker.stop.is_set() and forced_s is None:
                worker.signal(signal.SIGTERM)
                forced_s = now_s + _END_S
            elif forced_s is not None and now_s >= forced_s:
                worker.signal(signal.SIGKILL)
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await (asyncio.sleep(_POLL_S) if worker.stop.is_set() else worker.stop.wait())
        del self._workers[name]
        _record(self._run_dir, worker.index).unlink(missing_ok=True)
        if not worker.stop.is_set():
            reason = f"{worker.end_text()}; its log is {self._log_of(worker.index)}"
            self._ends.put_nowait(WorkerEnded(name, reason))

    def _spawn(self, name: TaskManagerId, worker: _Worker) -> None:
        log_file = self._log_of(worker.index)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        own = {TM_RESOURCE_ID.key: name, TM_RPC_PORT.key: "0"}  # a fixed port would serve one worker only
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("FLINTLOCK_") or key in _PASSED_VARIABLES
        }
        with log_file.open("ab") as output:
            worker.process = subprocess.Popen(
                [
                    sys.executable, "-m", "flintlock.entrypoints.taskmanager",
                    "--state-dir", str(self._state_dir), "--index", str(worker.index),
                    *(part for key, value in own.items() for part in ("-D", f"{key}={value}")),
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**environment, "FLINTLOCK_CONF": str(self._configuration)},
            )  # fmt: skip
        with suppress(psutil.Error):  # it has ended already
            found = identity(worker.process.pid)
            worker.file = WorkerFile(pid=found.pid, start_time=found.start_time, id=name, index=worker.index)
            write_json(_record(self._run_dir, worker.index), worker.file)

    def _log_of(self, index: int) -> Path:
        return self._state_dir / "log" / f"taskmanager-{index}.log"


class _Worker:
    """One process, started by this one or by an earlier leader."""

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.stop: Final = asyncio.Event()  # it is to end
        self.process: subprocess.Popen[bytes] | None = None  # None: an earlier leader started it
        self.file: WorkerFile | None = None  # None: it had ended before it could be recorded
        self.task: asyncio.Task[None] | None = None  # supervises the process; set when it is started

    def is_running(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None if self.process is not None else running(self.file) is not None

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it still runs."""
        process = running(self.file)
        if process is not None:
            with suppress(psutil.Error):
                process.send_signal(number)

    def end_text(self) -> str:
        """Return how the process has ended. Of one that another process started, that is not known."""
        return "its process has ended" if self.process is None else _end_text(self.process.returncode)


def _record(run_dir: Path, index: int) -> Path:
    return run_dir / f"worker-{index}.json"


def _recorded_workers(run_dir: Path) -> list[WorkerFile]:
    """Return the recorded workers that run; the records of the others are removed."""
    found: list[WorkerFile] = []
    for path in sorted(run_dir.glob("worker-*.json")):
        try:
            file = msgspec.json.decode(path.read_bytes(), type=WorkerFile)
        except (OSError, msgspec.MsgspecError):
            file = None
        if file is not None and running(file) is not None:
            found.append(file)
        else:
            path.unlink(missing_ok=True)
    return found


def _write_configuration(run_dir: Path, settings: ProcessSettings) -> Path:
    path = run_dir / "flintlock.yaml"  # JSON is YAML
    write_whole(path, msgspec.json.encode(settings.configuration.as_dict()), mode=0o600)
    return path


def _end_text(code: int) -> str:
    if code >= 0:
        return f"its process has ended with exit code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
