"""Faults: what goes wrong, where, for how long. Chosen by a seed; one at a time, so that a quorum always returns."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random
from threading import Event
from typing import Final

from tests.chaos.deployment import SESSION_S, Deployment, Member, ZooKeeperMember
from tests.chaos.machines import Permissions
from tests.chaos.network import Host
from tests.cluster.processes import until

#: Within which a leader that was killed or cut off is replaced.
TAKEOVER_S: Final = 60.0


class Role(Enum):
    """Where a fault is; which member has the role is looked up when the fault begins."""

    LEADER = "leader"
    STANDBY = "standby"
    TASKMANAGER = "taskmanager"
    ZOOKEEPER = "zookeeper"
    ENSEMBLE = "whole ensemble"
    STORAGE = "storage directory"


class Direction(Enum):
    """Which packets a cut loses."""

    FORTH = "->"
    BACK = "<-"
    BOTH = "<->"


@dataclass(frozen=True, kw_only=True)
class Fault(ABC):
    """One thing that goes wrong for a time."""

    hold_s: float

    @property
    def takes_leadership(self) -> bool:
        """Whether another JobManager has to lead before the fault ends."""
        return False

    @property
    def ends_processes(self) -> bool:
        """Whether a JobManager or TaskManager may end; otherwise all of them have to continue by themselves."""
        return False

    @property
    def concerns_task_managers(self) -> bool:
        """Whether it begins only when all TaskManagers serve: one that starts may end for want of what it needs."""
        return False

    @abstractmethod
    def begin(self, deployment: Deployment, random: Random) -> Callable[[], None]:
        """Begin it; return how it ends."""

    @abstractmethod
    def describe(self) -> str:
        """Say what goes wrong, and where."""

    def __str__(self) -> str:
        return f"{self.describe()} for {self.hold_s:.1f} s"


@dataclass(frozen=True, kw_only=True)
class ProcessFault(Fault):
    """A process is killed and started again, or frozen and continued."""

    role: Role
    frozen: bool

    @property
    def takes_leadership(self) -> bool:
        """A frozen leader may be continued before its term has ended."""
        return self.role is Role.LEADER and not self.frozen

    @property
    def ends_processes(self) -> bool:
        """One that was killed; one that was frozen too long."""
        return True

    def begin(self, deployment: Deployment, random: Random) -> Callable[[], None]:
        """Send the signal."""
        victim = random.choice(_members(deployment, self.role))
        (victim.freeze if self.frozen else victim.kill)()
        return victim.restore

    def describe(self) -> str:
        """Name the signal and the role."""
        return f"{'SIGSTOP' if self.frozen else 'SIGKILL'} {self.role.value}"


@dataclass(frozen=True, kw_only=True)
class Cut(Fault):
    """Packets between two members are lost."""

    first: Role
    second: Role
    direction: Direction

    @property
    def takes_leadership(self) -> bool:
        """A leader whose packets no server receives, or that receives none of theirs, cannot prove that it leads."""
        return self.first is Role.LEADER and self.second is Role.ENSEMBLE

    @property
    def concerns_task_managers(self) -> bool:
        """A cut from one of them."""
        return Role.TASKMANAGER in (self.first, self.second)

    def begin(self, deployment: Deployment, random: Random) -> Callable[[], None]:
        """Lose packets."""
        first = _host(random.choice(_members(deployment, self.first)))
        others = [host for member in _members(deployment, self.second) if (host := _host(member)) is not first]
        second = others if self.second is Role.ENSEMBLE else [random.choice(others)]
        forth, back = [(first, host) for host in second], [(host, first) for host in second]
        lost = {Direction.FORTH: forth, Direction.BACK: back, Direction.BOTH: [*forth, *back]}[self.direction]
        for sender, receiver in lost:
            sender.stop_sending(receiver)

        def end() -> None:
            for sender, receiver in lost:
                sender.resume_sending(receiver)

        return end

    def describe(self) -> str:
        """Name the roles, and the direction in which packets are lost."""
        return f"cut {self.first.value} {self.direction.value} {self.second.value}"


@dataclass(frozen=True, kw_only=True)
class DiskFault(Fault):
    """A disk has no room, or lets every write wait."""

    role: Role
    stalled: bool

    @property
    def concerns_task_managers(self) -> bool:
        """The disk of one of them."""
        return self.role is Role.TASKMANAGER

    def begin(self, deployment: Deployment, random: Random) -> Callable[[], None]:
        """Fill or stall the disk."""
        victim = None if self.role is Role.STORAGE else random.choice(_members(deployment, self.role))
        disk = deployment.storage if victim is None else victim.machine.disk
        assert disk is not None
        (disk.stall if self.stalled else disk.fill)()

        def end() -> None:
            (disk.resume if self.stalled else disk.empty)()
            if isinstance(victim, ZooKeeperMember):
                victim.restore()  # a server that cannot write its log ends itself

        return end

    def describe(self) -> str:
        """Name the fault and the role."""
        return f"{'stalled' if self.stalled else 'full'} disk of {self.role.value}"


#: Each kind of fault, with the longest time that it lasts.
PROCESS_FAULTS: Final[list[Fault]] = [
    ProcessFault(role=role, frozen=frozen, hold_s=longest_s)
    for role, longest_s in (
        (Role.LEADER, 2.0 * SESSION_S),
        (Role.STANDBY, 1.5 * SESSION_S),
        (Role.TASKMANAGER, 20.0),
        (Role.ZOOKEEPER, 6.0),
    )
    for frozen in (False, True)
]
CUTS: Final[list[Fault]] = [
    Cut(first=first, second=second, direction=direction, hold_s=longest_s)
    for first, second, longest_s in (
        (Role.LEADER, Role.ENSEMBLE, 2.0 * SESSION_S),
        (Role.LEADER, Role.ZOOKEEPER, 6.0),
        (Role.LEADER, Role.STANDBY, 1.5 * SESSION_S),
        (Role.LEADER, Role.TASKMANAGER, 20.0),
        (Role.STANDBY, Role.ZOOKEEPER, 6.0),
        (Role.TASKMANAGER, Role.ZOOKEEPER, 6.0),
        (Role.TASKMANAGER, Role.ENSEMBLE, 20.0),
        (Role.ZOOKEEPER, Role.ZOOKEEPER, 6.0),
    )
    for direction in Direction
]
DISKS: Final = (
    (Role.LEADER, 2.0 * SESSION_S),
    (Role.STANDBY, 1.5 * SESSION_S),
    (Role.TASKMANAGER, 20.0),
    (Role.ZOOKEEPER, 6.0),
    (Role.STORAGE, 2.0 * SESSION_S),
)
FULL_DISKS: Final[list[Fault]] = [DiskFault(role=role, stalled=False, hold_s=longest_s) for role, longest_s in DISKS]
STALLED_DISKS: Final[list[Fault]] = [DiskFault(role=role, stalled=True, hold_s=longest_s) for role, longest_s in DISKS]


def kinds(permissions: Permissions) -> list[Fault]:
    """Return the kinds of faults that are possible on this machine."""
    optional = (
        (permissions.cuts, CUTS),
        (permissions.full_disks, FULL_DISKS),
        (permissions.stalled_disks, STALLED_DISKS),
    )
    return [*PROCESS_FAULTS, *(fault for reason, faults in optional if not reason for fault in faults)]


def schedule(seed: int, count: int, among: list[Fault]) -> list[Fault]:
    """Return faults for a seed: every kind about as often, for a random part of its longest time."""
    random = Random(seed)
    order, faults = [*among], list[Fault]()
    while len(faults) < count:
        random.shuffle(order)
        faults += [replace(fault, hold_s=random.uniform(0.2, fault.hold_s)) for fault in order]
    return faults[:count]


def inflict(deployment: Deployment, fault: Fault, random: Random) -> float | None:
    """Inflict a fault, hold it, end it; return how long there was no answer, if the leader has to be replaced."""
    epoch = until("a leader", deployment.leader, TAKEOVER_S)[1]
    begun = time.monotonic()
    end = fault.begin(deployment, random)
    away_s: float | None = None
    try:
        if fault.takes_leadership:
            until("the next leader's listing", lambda: deployment.listing(epoch) is not None, TAKEOVER_S)
            away_s = time.monotonic() - begun
        Event().wait(max(0.0, fault.hold_s - (time.monotonic() - begun)))
    finally:
        end()
    return away_s


def _members(deployment: Deployment, role: Role) -> list[Member] | list[ZooKeeperMember]:
    leader = until("a leader", deployment.leader, TAKEOVER_S)[0]
    match role:
        case Role.LEADER:
            return [leader]
        case Role.STANDBY:
            return [member for member in deployment.jobmanagers if member is not leader]
        case Role.TASKMANAGER:
            return deployment.taskmanagers
        case Role.ZOOKEEPER | Role.ENSEMBLE:
            return deployment.servers
        case Role.STORAGE:
            return []


def _host(member: Member | ZooKeeperMember) -> Host:
    host = member.machine.host
    assert host is not None
    return host
