"""Measures how long the event loop stands still, and reports which code held it up.

While one step of the loop runs, nothing else does: no heartbeat is sent, no request answered. A timer that is due every
few milliseconds measures it: the timer is as late as the steps before it took. It works on every event loop (uvloop has
no hook for single steps). A thread reads the loop's stack when the timer is very late, so that the warning names the
code.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
import traceback
from typing import Final, Self

import structlog
from prometheus_client import CollectorRegistry, Gauge, Histogram

from flintlock.model import log_events
from flintlock.model.ids import JobId
from flintlock.monitoring.blocking_jobs import BlockingJobRecords
from flintlock.monitoring.current_job import BLOCKING_WORK_S, CurrentJob
from flintlock.monitoring.standstill import Standstill, StandstillLimit

log = structlog.get_logger()

INTERVAL_S: Final = 0.01
WARN_AFTER_S: Final = 0.25
_WINDOW_S: Final = 60.0  # the gauge shows the longest delay of the last one to two windows
_WARNING_INTERVAL_S: Final = 10.0
_MAX_FRAMES: Final = 12
_WORKING_PART: Final = 0.1  # of the CPU time, of a piece of work that computes; it may share the CPU with much else
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class BlockingJobWatcher:
    """Records a job while work on it blocks the loop. Its methods belong to the monitor's thread."""

    def __init__(self, current: CurrentJob, blocking: BlockingJobRecords, limit_s: float = BLOCKING_WORK_S) -> None:
        self._current: Final = current
        self._blocking: Final = blocking
        self._limit_s: Final = limit_s
        self._serial = 0  # of the work that was seen last
        self._begun_s = 0.0  # the CPU time of the loop's thread when it was first seen
        self._record: str | None = None  # while it blocks: perhaps there even if it could not be written
        self._written = False
        self._retry_s = 0.0  # the CPU time after which it is written again
        self._over: list[str] = []  # records of work that has ended, to be removed

    def inspect(self, thread: int, limit_s: float = math.inf) -> None:
        """Record what the loop works on if that takes too long: the watcher's limit, or `limit_s`, if that is less.

        `thread` is the loop's.
        """
        serial, job_id, cpu_s = self._current.serial, self._current.job_id, _cpu_time_s(thread)
        if serial != self._serial or job_id is None:
            self._serial, self._begun_s = serial, cpu_s
            self._end()
            self._retry_s = 0.0
            return
        used_s = cpu_s - self._begun_s
        due = used_s >= limit_s or (used_s >= self._limit_s and cpu_s >= self._retry_s)
        if due and not self._written:
            self._write(job_id, cpu_s)

    def close(self) -> None:
        """Remove a record that is left: the process ends, but not in work on a job."""
        self._end()

    def _write(self, job_id: JobId, cpu_s: float) -> None:
        log.error(log_events.BLOCKING_JOB_RECORDED, job_id=job_id, seconds=round(cpu_s - self._begun_s, 1))
        if self._record is None:  # else it is the same one again: one leader counts once
            self._record = self._blocking.name(job_id)
        try:
            self._blocking.write(self._record)
            self._written = True
        except OSError as error:
            log.error(log_events.BLOCKING_JOB_NOT_RECORDED, job_id=job_id, reason=repr(error))
            self._retry_s = cpu_s + self._limit_s

    def _end(self) -> None:
        if self._record is not None:
            self._over.append(self._record)
            self._record, self._written = None, False
        try:
            while self._over:
                self._blocking.remove(self._over[-1])
                self._over.pop()
        except OSError as error:
            log.error(log_events.BLOCKING_JOB_NOT_RECORDED, reason=repr(error))


def _cpu_time_s(thread: int) -> float:
    """Return the CPU time of a thread: a machine that is paused or waits for a disk blocks no loop by itself."""
    clock = getattr(time, "pthread_getcpuclockid", None)  # not on macOS
    return time.monotonic() if clock is None else time.clock_gettime(clock(thread))


class LoopMonitor:
    """Monitors the loop that it is entered on, until it is left."""

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        warn_after_s: float = WARN_AFTER_S,
        watcher: BlockingJobWatcher | None = None,
        limit: StandstillLimit | None = None,
    ) -> None:
        """Measure, warn and record; `limit` ends a process whose loop stands still for too long."""
        self._limit: Final = limit
        self._warn_after_s: Final = warn_after_s
        self._watcher: Final = watcher
        self._delays: Final = (
            None
            if registry is None
            else Histogram(
                "flintlock_event_loop_delay_seconds",
                "How late a timer of the event loop was: as long as the steps before it took.",
                buckets=_BUCKETS,
                registry=registry,
            )
        )
        if registry is not None:
            longest = Gauge(
                "flintlock_event_loop_longest_delay_seconds",
                "The longest delay of the event loop in the last minute or two.",
                registry=registry,
            )
            longest.set_function(lambda: self.longest_s)
        self._windows = (0.0, 0.0)  # the longest delay of the last window and of this one
        self._window_end_s = 0.0
        self._due_s = 0.0  # when the timer is due; read by the thread
        self._timer: asyncio.TimerHandle | None = None
        #: Of the loop's thread, while the timer is late; written by the monitor's thread, emptied by the timer.
        self._stack: list[str] = []
        self._next_warning_s = 0.0
        self._unreported = 0  # delays since the last warning
        self._stopped: Final = threading.Event()

    @property
    def longest_s(self) -> float:
        """The longest delay of the last minute or two."""
        return max(self._windows)

    async def __aenter__(self) -> Self:
        self._window_end_s = time.monotonic() + _WINDOW_S
        self._schedule()
        watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="loop-monitor", daemon=True)
        watcher.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.close()

    def _schedule(self) -> None:
        self._due_s = time.monotonic() + INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._beat)

    def _beat(self) -> None:
        now_s = time.monotonic()
        delay_s = max(now_s - self._due_s, 0.0)
        if now_s >= self._window_end_s:
            self._windows, self._window_end_s = (self._windows[1], 0.0), now_s + _WINDOW_S
        self._windows = (self._windows[0], max(self._windows[1], delay_s))
        if self._delays is not None:
            self._delays.observe(delay_s)
        if delay_s >= self._warn_after_s:
            self._warn(now_s, delay_s)
        self._schedule()

    def _warn(self, now_s: float, delay_s: float) -> None:
        stack, self._stack = self._stack, []
        if now_s < self._next_warning_s:
            self._unreported += 1
            return
        unreported = {"unreported": self._unreported} if self._unreported else {}
        log.warning(log_events.EVENT_LOOP_BLOCKED, seconds=round(delay_s, 3), stack=stack, **unreported)
        self._next_warning_s, self._unreported = now_s + _WARNING_INTERVAL_S, 0

    def _watch(self, thread: int) -> None:
        """The thread: remember what the loop does while it is late, and end the process if that lasts too long."""
        standstill = Standstill()
        while not self._stopped.wait(self._warn_after_s / 4):
            if self._watcher is not None:
                self._watcher.inspect(thread)
            frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]  # documented for this
            if time.monotonic() - self._due_s > self._warn_after_s / 2 and frame is not None and not self._stack:
                summary = traceback.extract_stack(frame, _MAX_FRAMES)
                self._stack = [f"{entry.name} ({entry.filename}:{entry.lineno})" for entry in reversed(summary)]
            standing_s = standstill.look(time.monotonic(), self._due_s)
            if self._limit is not None and standing_s >= self._limit.seconds():
                self._end_process(self._limit, thread, standing_s)
                return

    def _end_process(self, limit: StandstillLimit, thread: int, standing_s: float) -> None:
        """End the process, and leave a record of the job that the loop works on, unless it waits for the machine."""
        if self._watcher is not None:
            self._watcher.inspect(thread, limit_s=standing_s * _WORKING_PART)
        where = f": in {' < '.join(self._stack)}" if self._stack else ""
        limit.end(
            f"its event loop has stood still for {standing_s:.1f} s, so that it can neither act nor be replaced{where}"
        )
