"""How long a leader may believe that it leads: counted by itself, on a clock that also runs while the machine sleeps.

ZooKeeper's client reports a lost session only once it can connect again: cut off, a leader would believe for ever. So
it counts. Every answer of the ensemble proves that the session lived when the question was *sent*, and the ensemble
waits a whole session timeout from then on before it lets another one lead. At STEP_DOWN_AT of that time the term ends
here. The rest is for clocks that do not agree, and for a server that dies before it has told the others of an answer
(they hear of it within half a tick; a session timeout is two ticks or more).

Nothing here reads a clock: times are handed in, in seconds.
"""

from __future__ import annotations

from typing import Final

#: The part of the session timeout after which a leader without an answer leads no more.
STEP_DOWN_AT: Final = 0.7


class LeadershipDeadline:
    """One term as its leader sees it. Once over, it stays over."""

    def __init__(self, *, session: int, timeout_s: float, acknowledged_s: float) -> None:
        self.over: str | None = None  # why the term has ended; set once
        self._session: Final = session
        self._timeout_s: Final = timeout_s
        self._acknowledged_s = acknowledged_s  # when the latest question that was answered had been sent
        self._paused: str | None = None  # why nothing may be written just now

    @property
    def ends_s(self) -> float:
        """When the term ends, unless another answer comes before."""
        return self._acknowledged_s + STEP_DOWN_AT * self._timeout_s

    def acknowledged(self, sent_s: float) -> None:
        """A question that was sent then has been answered. Order does not matter."""
        self._acknowledged_s = max(self._acknowledged_s, sent_s)

    def suspended(self) -> None:
        """The connection is gone; the session may live."""
        self._paused = "the connection to ZooKeeper is lost"

    def connected(self, session: int) -> None:
        """There is a connection. With the same session the term goes on; another one means that it was lost."""
        if session == self._session:
            self._paused = None
        else:
            self.end("the ZooKeeper session was lost, another one has begun")

    def lost(self) -> None:
        """The ensemble says that the session is over."""
        self.end("the ZooKeeper session has expired")

    def end(self, reason: str) -> None:
        """End the term. The first reason stays."""
        self.over = self.over or reason

    def look(self, now_s: float) -> str | None:
        """End the term if its time is up; return why nothing may be written now, None if all is well."""
        if self.over is None and now_s >= self.ends_s:
            self.end(
                f"ZooKeeper has not answered for {now_s - self._acknowledged_s:.1f} s"
                f" of a session timeout of {self._timeout_s:g} s"
            )
        return self.over or self._paused
