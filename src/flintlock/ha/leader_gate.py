"""Whether the leader of a term may act just now, and what becomes of a write that nobody knows the outcome of.

A leader that cannot reach the store does not know whether it still leads. Until it does again, or its own clock ends
its term (which cancels everything that waits here), this is the rule, for all rooms:

- It commands nobody and promises nobody anything. Messages to TaskManagers wait for `cleared`; calls of TaskManagers
  are turned away by `check`, so that no lease is renewed, no leave given and no report acknowledged. Work goes on.
- A write, or a read that it cannot go on without, that raises Unavailable is *open*: it may have taken place, or not.
  Whoever needs it does it again until it is known (`until_known`), and decides nothing before. Writes that replace are
  simply repeated. One that may only be done once is recognised by reading it back: a result that is there already and
  equals ours is ours.
- A client does not wait for that. It hears Unavailable, and whatever its call may have left behind is settled before
  the same id, key or setting can be used again: a submission is removed, a changed setting is set back. Where the
  term ends first, the next leader runs what it finds, and the client's key finds the job.
- What is only convenient (archives, sweeps) is tried for a while and then only logged; the time during which the leader
  is cut off does not count.

Reconnected in time, everything goes on where it waited. Nothing was restarted, and no failure was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.model import log_events
from flintlock.model.errors import Unavailable

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()


#: How long what is only convenient, and what recovery needs, is tried while the store can be reached.
PATIENCE_S: Final = 10.0

_LOOK_S: Final = 0.05


class LeaderGate:
    """How one term stands. `paused` is asked each time; by default nothing ever keeps the leader from acting."""

    def __init__(self, paused: Callable[[], str | None] = lambda: None) -> None:
        self._paused: Final = paused
        self._changed: asyncio.Event | None = None  # while somebody waits: one timer looks for all of them

    @property
    def paused(self) -> str | None:
        """Why the leader must not act just now; None if it may."""
        return self._paused()

    def check(self) -> None:
        """Raise Unavailable, with the reason, while the leader must not act."""
        reason = self._paused()
        if reason is not None:
            raise Unavailable(f"the leader does not act just now: {reason}")

    async def cleared(self) -> None:
        """Return once the leader may act: in the very step in which that is so, and at once if it is so now."""
        while self._paused() is not None:
            if self._changed is None:
                self._changed = asyncio.Event()
                self._look_again()
            await self._changed.wait()

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _look(self) -> None:
        if self._paused() is not None:
            self._look_again()
        elif self._changed is not None:
            self._changed.set()
            self._changed = None

    async def until_known(self, work: Callable[[], Awaitable[T]], *, patience_s: float | None = None) -> T:
        """Do it again for as long as it raises Unavailable, and not while the leader must not act; return its value.

        `work` may have taken place each time that it raised: it has to be harmless to repeat. With `patience_s` the
        last Unavailable is raised once it has been waited that long, not counting the time in which the leader was
        paused. Everything else that `work` raises is raised at once.
        """
        waited_s = 0.0
        for wait_s in waits():
            await self.cleared()
            try:
                return await work()
            except Unavailable as error:
                if self._paused() is not None:
                    continue
                if patience_s is not None and waited_s >= patience_s:
                    raise
                log.warning(log_events.STORE_UNAVAILABLE, reason=error.public)
            await asyncio.sleep(wait_s)
            waited_s += wait_s
        raise AssertionError("waits never end")


def waits() -> Iterator[float]:
    """Yield growing pauses in seconds, without end."""
    wait_s = 0.1
    while True:
        yield wait_s
        wait_s = min(wait_s * 2, 5.0)
