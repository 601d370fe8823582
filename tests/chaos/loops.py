"""How long the event loops of JobManagers stood still while faults were inflicted.

A process that is killed takes its figures with it: they are read again and again, and the worst of each is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import httpx
import msgspec
from bench.loop_delays import longest_delay_ms
from msgspec import Struct
from tests.chaos.deployment import Deployment

#: Under a session of 4 s, pings are sent after a third of it: a loop that stands still for less than the other two
#: thirds loses no leadership. Much less would fail for the machine's sake: two cores may have to do for all members,
#: engines and servers, and a process waits for one. It is the end of a bucket of the histogram, from which delays are
#: read that were long ago.
LONGEST_S: Final = 2.5


class LoopDelay(Struct, frozen=True, kw_only=True):
    """The longest delay of the loop of one process."""

    member: str
    pid: int
    seconds: float
    frozen: bool = False  # it was stopped on purpose, and its loop with it


class LoopDelays:
    """What was read of each process so far."""

    def __init__(self) -> None:
        self._found: Final[dict[tuple[str, int], LoopDelay]] = {}

    def add(self, delay: LoopDelay) -> None:
        """Remember the longest delay of its process, and that it was frozen."""
        key = delay.member, delay.pid
        known = self._found.get(key, delay)
        self._found[key] = LoopDelay(
            member=delay.member,
            pid=delay.pid,
            seconds=max(known.seconds, delay.seconds),
            frozen=known.frozen or delay.frozen,
        )

    def read(self, deployment: Deployment) -> None:
        """Add what the JobManagers say that answer. Call it before a fault that may end one, and at the end."""
        for member in deployment.jobmanagers:
            process = member.process
            if process is None or not member.alive:
                continue
            with suppress(httpx.TransportError, OSError, msgspec.DecodeError):
                answer = deployment.client.get(f"{member.url}/metrics")
                if answer.status_code == 200:
                    self.add(
                        LoopDelay(
                            member=member.name,
                            pid=process.pid,
                            seconds=longest_delay_ms(answer.text) / 1000,
                            frozen=member.was_frozen,
                        )
                    )

    @property
    def found(self) -> tuple[LoopDelay, ...]:
        """One for each process, those that have ended, too."""
        return tuple(self._found.values())


def longest(delays: Iterable[LoopDelay]) -> LoopDelay | None:
    """Return the longest delay of a process that was not frozen; None if there is none."""
    return max((delay for delay in delays if not delay.frozen), key=lambda delay: delay.seconds, default=None)


def loop_problems(delays: Iterable[LoopDelay]) -> list[str]:
    """Return which loops stood still for longer than a loaded machine explains; frozen processes are left out."""
    return [
        f"the event loop of {delay.member} (process {delay.pid}) stood still for {delay.seconds:.2f} s"
        for delay in delays
        if not delay.frozen and delay.seconds > LONGEST_S
    ]
