"""The client that a job depends on, and its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class AttachedClient:
    """The timeout of the client that a job depends on: each heartbeat of the client restarts it.

    It is not stored: a new leader gives the client the whole timeout again. The cancel of a job whose client is gone is
    stored.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None  # while a heartbeat is expected

    @property
    def expected(self) -> bool:
        """Whether the job depends on the client now."""
        return self._timer is not None

    def expect(self, within_s: float, timed_out: Callable[[], None]) -> None:
        """Expect the next heartbeat within this time, and call `timed_out` when it has passed."""
        self.forget()
        self._timer = asyncio.get_running_loop().call_later(max(within_s, 0.0), timed_out)

    def forget(self) -> None:
        """Expect no more heartbeats. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
