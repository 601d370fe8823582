"""Workers as processes of this machine: a driver for active mode.

A worker is an ordinary TaskManager process with the JobManager's own configuration and state directory. The
configuration is passed in a file that only its owner can read, not on the command line: it may contain keys of object
stores, and every user of a machine can read the command lines of all its processes.

No worker outlives its term, by three mechanisms, each a fallback for the one before: the end of the scope ends its
workers, with SIGTERM, then by force; a worker dies with its JobManager, even if that is killed (`die_with_parent`,
Linux); and a worker that still runs when the next JobManager begins to lead on this state directory is found by its
record and killed.

So a killed JobManager's workers end with it. Rejected: letting them register with the next leader, as independently
started TaskManagers do. Their work could continue there, but the next leader did not start them and would never release
them when they are idle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import psutil

from flintlock.config.options import TM_RESOURCE_ID, TM_RPC_PORT, TM_SLOTS
from flintlock.entrypoints.process import ProcessSettings
from flintlock.gateways.workers import WorkerEnded
from flintlock.host.children import forget_child, reap_leftovers, record_child
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, TaskManagerId
from flintlock.model.jobgraph import Resources

#: Smaller indices are for TaskManagers that are started independently on the same state directory.
FIRST_INDEX: Final = 1000

_END_S: Final = 15.0  # how long a worker may take to end by itself
_PASSED_VARIABLES: Final = frozenset({"FLINTLOCK_JAVA_HOME"})  # the others are in the configuration already


@asynccontextmanager
async def local_workers(settings: ProcessSettings, epoch: Epoch) -> AsyncGenerator[LocalWorkers]:
    """Yield a driver for one term; on exit all of its workers have ended."""
    run_dir = settings.state_dir / "run" / "workers"
    run_dir.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(reap_leftovers, run_dir)
    configuration = _write_configuration(run_dir, settings)
    async with asyncio.TaskGroup() as scope:
        driver = LocalWorkers(settings, epoch, run_dir, configuration, scope)
        try:
            yield driver
        finally:
            await driver.end_all()


class LocalWorkers:
    """A WorkerDriver. `local_workers` creates it, and ends the workers that it started."""

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
        name = TaskManagerId(f"{socket.gethostname()}-worker-{self._epoch}-{next(self._numbers)}")
        taken = {worker.index for worker in self._workers.values()}
        worker = _Worker(next(index for index in count(FIRST_INDEX) if index not in taken))
        self._workers[name] = worker
        worker.task = self._scope.create_task(self._supervise(name, worker), name=f"worker-{name}")
        await asyncio.wait({worker.started, worker.task}, return_when=asyncio.FIRST_COMPLETED)
        problem = worker.started.result() if worker.started.done() else "the term is over"
        if problem is not None:
            raise Unavailable(f"no TaskManager process could be started: {problem}")
        return name

    async def release(self, worker: TaskManagerId) -> None:
        """End a process and return once it has ended."""
        running = self._workers.get(worker)
        if running is not None and running.task is not None:
            running.stop.set()
            await asyncio.wait({running.task})

    async def ended(self) -> WorkerEnded:
        """Wait for the next process that ends by itself."""
        return await self._ends.get()

    async def end_all(self) -> None:
        """End every process and return once all have ended."""
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        for worker in self._workers.values():
            worker.stop.set()
        if tasks:
            await asyncio.wait(tasks)

    async def _supervise(self, name: TaskManagerId, worker: _Worker) -> None:
        """Start one process, and wait for its end."""
        try:
            process = await self._spawn(name, worker.index)
        except OSError as error:
            del self._workers[name]
            worker.started.set_result(str(error))
            return
        record = record_child(self._run_dir, f"worker-{worker.index}", process.pid)
        if not worker.started.done():
            worker.started.set_result(None)
        try:
            code = await _until_end(process, worker.stop)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            forget_child(record)
            del self._workers[name]
        if not worker.stop.is_set():
            self._ends.put_nowait(WorkerEnded(name, f"{_end_text(code)}; its log is {self._log_of(worker.index)}"))

    async def _spawn(self, name: TaskManagerId, index: int) -> Process:
        log_file = self._log_of(index)
        log_file.parent.mkdir(parents=True, exist_ok=True)
        own = {TM_RESOURCE_ID.key: name, TM_RPC_PORT.key: "0"}  # a fixed port would serve one worker only
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("FLINTLOCK_") or key in _PASSED_VARIABLES
        }
        with log_file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "flintlock.entrypoints.taskmanager",
                "--state-dir", str(self._state_dir), "--index", str(index), f"--die-with-parent={os.getpid()}",
                *(part for key, value in own.items() for part in ("-D", f"{key}={value}")),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**environment, "FLINTLOCK_CONF": str(self._configuration)},
            )  # fmt: skip

    def _log_of(self, index: int) -> Path:
        return self._state_dir / "log" / f"taskmanager-{index}.log"


class _Worker:
    """One process, and the events of its start and its end."""

    def __init__(self, index: int) -> None:
        self.index: Final = index
        self.stop: Final = asyncio.Event()  # it is to end
        self.started: Final[asyncio.Future[str | None]] = (
            asyncio.get_running_loop().create_future()
        )  # with the problem, if any
        self.task: asyncio.Task[None] | None = None  # supervises the process; set when it is started


async def _until_end(process: Process, stop: asyncio.Event) -> int:
    """Return the exit code once the process has ended; end it when `stop` is set."""
    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(process.wait(), name="ended")
        stopping = tasks.create_task(stop.wait(), name="stop")
        await asyncio.wait({ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            with suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait({ended}, timeout=_END_S)
        if not ended.done():
            process.kill()
        return await ended


def _write_configuration(run_dir: Path, settings: ProcessSettings) -> Path:
    path = run_dir / "flintlock.yaml"  # JSON is YAML
    fresh = run_dir / f".flintlock.yaml.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_bytes(msgspec.json.encode(settings.configuration.as_dict()))
    fresh.replace(path)
    return path


def _end_text(code: int) -> str:
    if code >= 0:
        return f"its process has ended with exit code {code}"
    try:
        return f"its process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was killed by signal {-code}"
