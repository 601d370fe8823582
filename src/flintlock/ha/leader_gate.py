"""Whether the leader of a term may act, and what becomes of a write whose outcome is unknown.

A leader that cannot reach the store does not know whether it still leads. Until it does again, or its own clock ends
its term (which cancels everything that waits here), this is the rule for all components:

- It sends no command and makes no commitment. Messages to TaskManagers wait for `wait_until_active`; calls of
  TaskManagers are refused by `check`, so that no lease is renewed, no permission to publish is given and no report is
  acknowledged. Running work goes on.
- A write, or a read that the leader cannot go on without, that raises Unavailable has an *unknown outcome*: it may have
  taken place, or not. Its caller repeats it until it is acknowledged (`retry_until_acknowledged`), and decides nothing
  before. Writes that replace are simply repeated. One that may only be done once is recognised by reading it back: a
  result that is there already and equals ours is ours.
- A client does not wait for that. It receives Unavailable, and whatever its call may have left behind is settled
  before the same id, key or setting can be used again: a submission is removed, a changed setting is set back. Where
  the term ends first, the next leader runs what it finds, and the client's key finds the job.
- What is only convenient (archives, sweeps) is retried for a limited time and then only logged; the time during which
  the leader is disconnected does not count.

Reconnected in time, everything goes on where it waited. Nothing was restarted, and no failure was recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure

T = TypeVar("T")

log: FilteringBoundLogger = structlog.get_logger()


#: How long what is only convenient, and what recovery needs, is retried while the store can be reached.
PATIENCE_S: Final = 10.0

_POLL_S: Final = 0.05

_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=5.0)  # between two tries of what the store did not acknowledge


class LeaderGate:
    """Lets the leader of one term act, or not. `paused` is called each time; by default the gate is always open."""

    def __init__(self, paused: Callable[[], str | None] = lambda: None) -> None:
        self._paused: Final = paused
        self._changed: asyncio.Event | None = None  # while there are waiters: one timer polls for all of them

    @property
    def paused(self) -> str | None:
        """Why the leader must not act now; None if it may."""
        return self._paused()

    def check(self) -> None:
        """Raise Unavailable with the reason while the leader must not act."""
        reason = self._paused()
        if reason is not None:
            raise Unavailable(f"the leader is paused: {reason}")

    async def wait_until_active(self) -> None:
        """Return once the leader may act: no other step runs in between, and at once if it may act now."""
        while self._paused() is not None:
            if self._changed is None:
                self._changed = asyncio.Event()
                self._poll_later()
            await self._changed.wait()

    def _poll_later(self) -> None:
        asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _poll(self) -> None:
        if self._paused() is not None:
            self._poll_later()
        elif self._changed is not None:
            self._changed.set()
            self._changed = None

    async def retry_until_acknowledged(self, work: Callable[[], Awaitable[T]], *, patience_s: float | None = None) -> T:
        """Repeat `work` while it raises Unavailable, but not while the leader must not act; return its value.

        `work` may have taken place each time that it raised, so it has to be harmless to repeat. With `patience_s` the
        last Unavailable is raised after that time, not counting the time in which the leader was paused. Everything
        else that `work` raises is raised at once.
        """
        waited_s, problem = 0.0, RepeatedFailure()
        for pause_s in _BACKOFF.delays():
            await self.wait_until_active()
            try:
                return await work()
            except Unavailable as error:
                if self._paused() is not None:
                    continue
                if patience_s is not None and waited_s >= patience_s:
                    raise
                if problem.occurred(error.public, asyncio.get_running_loop().time()):
                    log.warning(log_events.STORE_UNAVAILABLE, reason=error.public)
            await asyncio.sleep(pause_s)
            waited_s += pause_s
        raise AssertionError("the backoff never ends")
