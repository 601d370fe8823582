"""What a TaskManager is composed of: everything outside of its own decisions."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from flintlock.gateways.engine import EngineLauncher, ProcessTable
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.host.processes.daemon_threads import run_in_daemon_thread
from flintlock.model.errors import InvariantBroken
from flintlock.model.ids import AttemptId, BlobKey, InstanceId
from flintlock.model.slots import TaskManagerRegistration

PinBlobs: TypeAlias = Callable[[Iterable[BlobKey]], AbstractContextManager[None]]
"""Protects local copies of blobs from removal while the context lasts: runners link to them."""


def loop_s() -> float:
    """Return the loop's own time: a clock for leases where the machine is known not to sleep."""
    return asyncio.get_running_loop().time()


def break_invariant(reason: str) -> None:
    """Raise InvariantBroken: for processes that are not real ones."""
    raise InvariantBroken(reason)


async def never() -> None:
    """Wait until cancelled."""
    await asyncio.get_running_loop().create_future()


async def prepare_nothing(path: Path) -> None:
    """Do nothing: where an attempt has no output."""


async def make_log_directory(path: Path) -> None:
    """Make the directory that an attempt's output goes to. Raises OSError. A disk that stalls holds up this attempt."""
    await run_in_daemon_thread(lambda: path.parent.mkdir(parents=True, exist_ok=True), name="log-directory")


async def make_linked_log(path: Path) -> None:
    """Make the file of an attempt's output, which the log directory has, too: YARN aggregates no directories in it.

    The link stays when the output of the job is removed. Raises OSError.
    """

    def make() -> None:
        job = path.parent
        job.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        with suppress(FileExistsError):
            (job.parent.parent / f"job-{job.name}-{path.name}").hardlink_to(path)

    await run_in_daemon_thread(make, name="log-directory")


@dataclass(frozen=True, kw_only=True)
class TaskManagerServices:
    """What a TaskManager uses. The gateways of the leader are looked up for each call."""

    offer: TaskManagerRegistration
    launcher: EngineLauncher
    resource_manager: Callable[[], ResourceManagerGateway]
    job_masters: Callable[[], JobMasterGateway]
    fetch_blob: Callable[[BlobKey], Awaitable[Path]]
    log_directory: Path
    new_instance: Callable[[], InstanceId]
    free_memory: Callable[[], int] = lambda: 0
    dropped_log_lines: Callable[[], int] = lambda: 0
    pin_blobs: PinBlobs = lambda _: nullcontext()
    prepare_log: Callable[[Path], Awaitable[None]] = prepare_nothing  # before each attempt; raises OSError
    clock_s: Callable[[], float] = loop_s  # of leases
    set_watchdog_deadline: Callable[[float], None] = lambda _: None  # when the watchdog kills all work; inf: never
    end_process: Callable[[str], None] = break_invariant  # at once, without any clean-up
    unregistered_timeout_s: float = math.inf  # without a leader for so long, it ends
    processes: ProcessTable | None = None  # None: there are no processes to observe
    process_logs: ProcessLogs = field(default_factory=ProcessLogs)  # what this process and its machine log
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # in effect, without the values of secrets
    leader_moved: Callable[[], Awaitable[None]] = never  # returns when the leader is not `resource_manager`'s last one

    def log_path(self, attempt: AttemptId) -> Path:
        """Return where an attempt's output is captured."""
        return self.log_directory / attempt.job_id / f"{attempt.region}-{attempt.attempt}.log"
