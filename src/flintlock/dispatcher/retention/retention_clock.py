"""The retention clock: counts the time during which this cluster had a leader, and nothing else.

The wall clock is set by administrators and time servers; it may be years off when a machine starts, and jump while it
runs. A cluster that compares it with when its jobs ended forgets all of them, with their idempotency keys, in the
one second in which it is a week ahead. So retention counts on a clock of the cluster's own. It goes on from where the
former leader recorded it, by this process's monotonic clock, and the leader records it every `RECORD_PERIOD_S`. It
never runs faster than time itself, whatever any clock shows; while there is no leader, and for up to one period at
each change of leader, it stands still. A job's end is stamped with it (`ended_at_ms`).

The first reading of a cluster is the wall clock's, so that what older versions stored (ends by the wall clock) can be
compared with it. If the newest end is older than that, it counts instead: the wall clock may be ahead. It is recorded
before anything is stamped with it: the next leader's wall clock may be weeks ahead of it. A new cluster, which has
nothing to serve, waits for that as long as it takes. One that has jobs (its record is damaged, or an older version kept
none) does not: a full disk must not keep it from serving. It goes on after a while, and its clock is recorded with the
next period.

Rejected: trusting the wall clock after it has agreed with the monotonic clock for a while. A clock that is wrong from
the start agrees with it perfectly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher import core
from flintlock.dispatcher.writes import log_and_continue
from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import ClusterRecordStore
from flintlock.model import log_events
from flintlock.model.errors import Corrupt, Unavailable
from flintlock.model.jobs import RetentionReading

log: FilteringBoundLogger = structlog.get_logger()

#: How often the clock is recorded at least: so much is lost when the leader changes.
RECORD_PERIOD_S: Final = 10.0


class RetentionClock:
    """The retention clock in one term."""

    def __init__(self, begin_ms: int, wall_ms: Callable[[], int], boot_time_s: Callable[[], float]) -> None:
        self._begin_ms: Final = begin_ms
        self._begin_s: Final = boot_time_s()
        self._wall_ms: Final = wall_ms
        self._boot_time_s: Final = boot_time_s
        self._last: tuple[float, int] = (self._begin_s, wall_ms())  # both clocks, as `check_wall_clock` last read them

    def now_ms(self) -> int:
        """Return the time."""
        return self._begin_ms + round((self._boot_time_s() - self._begin_s) * 1000)

    def reading(self) -> RetentionReading:
        """Return what is recorded of the clock now."""
        return RetentionReading(clock_ms=self.now_ms(), wall_ms=self._wall_ms())

    def check_wall_clock(self) -> None:
        """Log if the wall clock has jumped since the last call."""
        before, now = self._last, (self._boot_time_s(), self._wall_ms())
        self._last = now
        jump_s = core.wall_clock_jump_s(passed_s=now[0] - before[0], before_ms=before[1], now_ms=now[1])
        if jump_s:
            log.warning(log_events.CLOCK_JUMPED, by_s=jump_s, wall_ms=now[1])


async def open_retention_clock(
    store: ClusterRecordStore[RetentionReading],
    gate: LeaderGate,
    *,
    newest_end_ms: Callable[[], Awaitable[int | None]],
    is_new: Callable[[], Awaitable[bool]],
    wall_ms: Callable[[], int],
    boot_time_s: Callable[[], float],
) -> RetentionClock:
    """Return the clock of a term, from where the former one recorded it.

    `newest_end_ms` returns the end of the job that ended last, by the wall clock; it is read where nothing is recorded.
    `is_new` returns whether the cluster has no jobs. Raises Fenced; Unavailable after a while.
    """
    damaged = False
    try:
        recorded = await gate.retry_until_acknowledged(store.read, patience_s=PATIENCE_S)
    except Corrupt as error:
        log.warning(log_events.RECORD_UNREADABLE, reason=error.public)
        recorded, damaged = None, True
    newest_ms = None
    if recorded is None:
        newest_ms = await gate.retry_until_acknowledged(newest_end_ms, patience_s=PATIENCE_S)
    now_ms = wall_ms()
    if recorded is not None and core.wall_clock_went_back(recorded, now_ms):
        log.warning(log_events.CLOCK_JUMPED, by_s=(now_ms - recorded.wall_ms) / 1000, wall_ms=now_ms)
    clock = RetentionClock(core.first_retention_ms(recorded, now_ms, newest_ms), wall_ms, boot_time_s)
    if recorded is None:
        new = not damaged and await gate.retry_until_acknowledged(is_new, patience_s=PATIENCE_S)
        try:
            await gate.retry_until_acknowledged(
                lambda: store.record(clock.reading()), patience_s=None if new else PATIENCE_S
            )
        except Unavailable as error:
            log.warning(log_events.RETENTION_CLOCK_NOT_RECORDED, reason=repr(error))
    return clock


async def record_retention_clock(clock: RetentionClock, store: ClusterRecordStore[RetentionReading]) -> None:
    """Record the clock. A failure is logged only: then less time has passed for the next leader."""
    clock.check_wall_clock()
    with log_and_continue(log_events.RETENTION_CLOCK_NOT_RECORDED):
        await store.record(clock.reading())
