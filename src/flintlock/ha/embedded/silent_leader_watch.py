"""How a standby judges a leader that writes no heartbeat, and what it must have proved before it kills that process.

A missing heartbeat has many causes, and only one of them is cured by another leader: that the leader's process is
frozen. A disk that is full or stalled, a shell or a backup that holds SQLite's write lock, and a leader that is busy
with a long recovery look the same in the heartbeat row. A standby that killed the leader then could do no better, and
the next standby would kill it in turn. So a silent leader is killed only if

- its heartbeat could be read and did not change for the whole timeout (a row that this process cannot read says nothing
  about the leader);
- it answered no call during the second half of that time;
- this process could do better: it has just committed a transaction to the store. Where the silent leader itself holds
  the write lock, which no transaction can pass, a file in the same directory was written and flushed instead;
- it is not computing in its recovery, which this process would have to do as well. That is its CPU time, from /proc.
  A leader that stands still in its work on one job has recorded that: its successors count such leaders, and the third
  one does without the job.

What is found instead is logged once, and again as a reminder; the leader is judged again until it writes a heartbeat.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

import structlog

from flintlock.ha.embedded.silent_holder import HeartbeatRow, SilenceDetector, kill_holder
from flintlock.ha.embedded.sqlite_file import is_busy, rewrite_header, write_lock_holder
from flintlock.ha.embedded.writer import GroupWriter
from flintlock.ha.leader_info import LeaderCheck, LeaderInfo
from flintlock.host.processes.daemon_threads import run_in_daemon_thread
from flintlock.host.processes.process import cpu_time_s
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure

log = structlog.get_logger(__name__)

#: Says of a process of this machine, by its pid, whether something is the case. May read files; raises OSError.
ProcessCheck: TypeAlias = Callable[[int], bool]

#: How long a leader may take to answer one call, at most. There are several before a verdict.
_ANSWER_S: Final = 1.0

#: How long the proof that this process can write may take. The store itself waits that long for a lock.
_PROOF_S: Final = 8.0

#: A process that uses this part of a core is computing, however loaded the machine is. A frozen one uses none.
_COMPUTING: Final = 0.05


class SilentLeaderWatch:
    """Watches the leader's heartbeats on behalf of one standby."""

    def __init__(
        self,
        *,
        store: Path,
        lock: Path,
        writer: GroupWriter,
        poll_s: float,
        silence_s: float,
        heartbeat: Callable[[], Awaitable[HeartbeatRow | None]],
        leader: Callable[[], Awaitable[LeaderInfo | None]],
        answers: LeaderCheck,
        is_blocked: ProcessCheck = lambda _: False,
    ) -> None:
        self._store: Final = store
        self._lock: Final = lock
        self._writer: Final = writer
        self._poll_s: Final = poll_s
        self._silence_s: Final = silence_s
        self._heartbeat: Final = heartbeat
        self._leader: Final = leader
        self._answers: Final = answers
        self._is_blocked: Final = is_blocked
        self._answer_s: Final = min(_ANSWER_S, silence_s / 4)
        self._spared: Final = RepeatedFailure()
        self._cpu: tuple[int, float, float] | None = None  # pid, its CPU time and the clock at the last poll
        self._computing = False  # whether that process used the CPU between the last two polls

    async def run(self) -> None:
        """Judge the leader until cancelled; kill it when its silence is proved."""
        loop = asyncio.get_running_loop()
        silence = SilenceDetector(timeout_s=self._silence_s, poll_s=self._poll_s + self._answer_s)
        while True:
            await asyncio.sleep(self._poll_s)
            row = await self._read(silence)
            silence.observe(row, loop.time())
            if row is not None:
                self._measure(row.pid)
            if row is None or silence.silent_s < self._silence_s / 2:
                if silence.silent_s == 0.0:
                    self._spared.ended()
                continue
            sign = await self._sign_of_life(row.pid)
            if sign is not None:
                self._spare(row, sign)
                silence.restart()
            elif silence.timed_out:
                await self._judge(row)
                silence.restart()

    async def _read(self, silence: SilenceDetector) -> HeartbeatRow | None:
        try:
            return await self._heartbeat()
        except FlintlockError as error:
            if silence.row is not None:
                self._spare(silence.row, f"this JobManager cannot read its heartbeat: {error.public}")
            return None

    async def _sign_of_life(self, pid: int) -> str | None:
        """Return how the silent leader shows that it is not frozen; None if it does not."""
        try:
            leader = await self._leader()
        except FlintlockError:
            leader = None
        if leader is not None:
            try:
                async with asyncio.timeout(self._answer_s):
                    if await self._answers(leader):
                        return "it answers calls"
            except TimeoutError:
                pass
        if (leader is None or not leader.confirmed) and self._computing and not await self._stands_still(pid):
            return "it is recovering jobs"
        return None

    async def _stands_still(self, pid: int) -> bool:
        """Return whether the process has recorded that its work on one job does not end."""
        try:
            return await asyncio.to_thread(self._is_blocked, pid)
        except OSError:
            return False

    def _measure(self, pid: int) -> None:
        """Find out whether the process has used the CPU since the last poll."""
        before, used_s, now_s = self._cpu, cpu_time_s(pid), asyncio.get_running_loop().time()
        self._cpu = None if used_s is None else (pid, used_s, now_s)
        self._computing = (
            used_s is not None
            and before is not None
            and before[0] == pid
            and used_s - before[1] >= _COMPUTING * (now_s - before[2])
        )

    async def _judge(self, row: HeartbeatRow) -> None:
        """Kill the leader if this process could do better."""
        problem = await self._problem_with_writing(row.pid)
        if problem is not None:
            self._spare(row, f"this JobManager could not do better: {problem}")
            return
        try:
            latest = await self._heartbeat()
        except FlintlockError:
            return
        if latest == row:
            done = await asyncio.to_thread(kill_holder, row.pid, self._lock)
            log.warning(log_events.LEADER_SILENT, pid=row.pid, silent_s=self._silence_s, done=done)

    async def _problem_with_writing(self, holder: int) -> str | None:
        """Return why this process could not write to the store; None if it could."""
        try:
            async with asyncio.timeout(_PROOF_S):
                try:
                    await self._writer.write(rewrite_header)
                except Unavailable as error:
                    if not is_busy(error) or await asyncio.to_thread(write_lock_holder, self._store) != holder:
                        return error.public
                    await run_in_daemon_thread(lambda: _write_file(self._store.parent), name="directory-check")
        except TimeoutError:
            return f"the store did not answer within {_PROOF_S:g} s"
        except (FlintlockError, OSError) as error:
            return str(error)
        return None

    def _spare(self, row: HeartbeatRow, reason: str) -> None:
        if self._spared.occurred(reason, asyncio.get_running_loop().time()):
            log.warning(log_events.SILENT_LEADER_SPARED, pid=row.pid, epoch=row.epoch, reason=reason)


def _write_file(directory: Path) -> None:
    """Write a small file there and flush it. Raises OSError."""
    path = directory / f".writable-{os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, b"x" * 4096)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
