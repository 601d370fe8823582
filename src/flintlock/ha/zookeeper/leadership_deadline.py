"""How long a leader may assume that it leads, measured by itself on a clock that also runs while the machine sleeps.

ZooKeeper's client reports a lost session only once it can connect again: a disconnected leader would assume for ever
that it leads. So it measures. An answer that a quorum of the ensemble has agreed on proves that the session lived when
the request was *sent*, and the ensemble waits a whole session timeout from then on before it lets another process lead.
At STEP_DOWN_AT of that time the term ends here. The rest is a margin for clocks that differ, and for a server that dies
before it has reported its client to the others (it does so every half tick; a session timeout is two ticks or more).

Answers to reads are no proof: a server that is cut off from the others answers them until it notices, which may take
longer than a session timeout (tickTime x syncLimit), while the others have let another process lead.

Nothing here reads a clock: times are parameters, in seconds.
"""

from __future__ import annotations

from typing import Final

#: The part of the session timeout after which a leader without an answer steps down.
STEP_DOWN_AT: Final = 0.7


class LeadershipDeadline:
    """One term as its leader sees it. Once over, it stays over."""

    def __init__(self, *, session: int, timeout_s: float, acknowledged_s: float) -> None:
        self.over: str | None = None  # why the term has ended; set once
        self._session: Final = session
        self._timeout_s = timeout_s  # as granted; the shortest one of the term
        self._acknowledged_s = acknowledged_s  # when the latest request that a quorum has answered had been sent
        self._paused: str | None = None  # why nothing may be written now

    @property
    def ends_s(self) -> float:
        """When the term ends, unless another answer comes before."""
        return self._acknowledged_s + STEP_DOWN_AT * self._timeout_s

    def acknowledged(self, sent_s: float) -> None:
        """Record that a quorum has answered a request that was sent then. Order does not matter."""
        self._acknowledged_s = max(self._acknowledged_s, sent_s)

    def suspended(self) -> None:
        """Record that the connection is lost; the session may live."""
        self._paused = "the connection to ZooKeeper is lost"

    def connected(self, session: int, granted_s: float) -> None:
        """Record that there is a connection. With the same session the term goes on; with another one it has ended.

        Each server grants a session timeout of its own: a shorter one counts from now on, a longer one not before the
        next term.
        """
        if session == self._session:
            self._paused = None
            self._timeout_s = min(self._timeout_s, granted_s)
        else:
            self.end("the ZooKeeper session was lost, another one has begun")

    def lost(self) -> None:
        """Record that the ensemble has ended the session."""
        self.end("the ZooKeeper session has expired")

    def end(self, reason: str) -> None:
        """End the term. The first reason stays."""
        self.over = self.over or reason

    def check(self, now_s: float) -> str | None:
        """End the term if its time is up; return why nothing may be written now, None if it may."""
        if self.over is None and now_s >= self.ends_s:
            self.end(
                f"ZooKeeper has not answered for {now_s - self._acknowledged_s:.1f} s"
                f" of a session timeout of {self._timeout_s:g} s"
            )
        return self.over or self._paused
