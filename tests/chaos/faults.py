"""Faults: which process, how, and for how long. Chosen by a seed; one at a time, so that a quorum always returns."""

from __future__ import annotations

import time
from random import Random
from threading import Event
from typing import Final, Protocol

from msgspec import Struct
from tests.chaos.deployment import SESSION_S, Deployment
from tests.cluster.processes import until

#: Each kind of member with the longest time, in seconds, that it stays frozen or dead.
VICTIMS: Final = {"leader": 2.0 * SESSION_S, "standby": 1.5 * SESSION_S, "taskmanager": 20.0, "zookeeper": 6.0}


class Victim(Protocol):
    """A process that can be killed, frozen and restored."""

    @property
    def name(self) -> str:
        """Which."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def freeze(self) -> None:
        """SIGSTOP."""
        ...

    def restore(self) -> None:
        """SIGCONT, or a new process."""
        ...


class Fault(Struct, frozen=True, kw_only=True):
    """One thing that goes wrong."""

    kind: str
    frozen: bool  # else killed
    hold_s: float

    def __str__(self) -> str:
        return f"{'SIGSTOP' if self.frozen else 'SIGKILL'} {self.kind} for {self.hold_s:.1f} s"


def schedule(seed: int, count: int) -> list[Fault]:
    """Return faults for a seed: every kind of victim about as often, killed or frozen."""
    random = Random(seed)
    cases = [(kind, frozen) for kind in VICTIMS for frozen in (False, True)]
    faults: list[Fault] = []
    while len(faults) < count:
        random.shuffle(cases)
        faults += [Fault(kind=kind, frozen=frozen, hold_s=random.uniform(0.2, VICTIMS[kind])) for kind, frozen in cases]
    return faults[:count]


def inflict(deployment: Deployment, fault: Fault, random: Random) -> float | None:
    """Inflict a fault, hold it, restore the process; return how long a killed leader's jobs were without an answer."""
    victim = _victim(deployment, fault.kind, random)
    found = deployment.leader()
    epoch = 0 if found is None else found[1]
    begun = time.monotonic()
    (victim.freeze if fault.frozen else victim.kill)()
    away_s: float | None = None
    try:
        if fault.kind == "leader" and not fault.frozen:
            until("the next leader's listing", lambda: deployment.listing(epoch) is not None, 60)
            away_s = time.monotonic() - begun
        Event().wait(max(0.0, fault.hold_s - (time.monotonic() - begun)))
    finally:
        victim.restore()
    return away_s


def _victim(deployment: Deployment, kind: str, random: Random) -> Victim:
    leader = until("a leader", deployment.leader, 60)[0]
    match kind:
        case "leader":
            return leader
        case "standby":
            return random.choice([member for member in deployment.jobmanagers if member is not leader])
        case "taskmanager":
            return random.choice(deployment.taskmanagers)
        case _:
            return random.choice(deployment.servers)
