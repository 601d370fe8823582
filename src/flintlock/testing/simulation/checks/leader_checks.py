"""Whether leaders change when they have to, and only then: one that cannot write, or that no other process reaches.

Checked in runs in which nothing else changes leaders. What processes know of each other is some seconds old.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from typing import Final, Protocol

from msgspec import structs

from flintlock.ha.zookeeper.storage.storage_health import CHECK_LIMIT_S, CHECK_S, STEP_DOWN_S, StorageHealth
from flintlock.model.errors import Unavailable
from flintlock.model.ids import FencingToken
from flintlock.testing.simulation.faults import Faults
from flintlock.testing.simulation.network import SimulatedNetwork

_EVERY_S: Final = 1.0
_MARGIN_S: Final = 2.0
#: How long it takes until a process knows whether it can write, and the others know it.
_KNOWN_S: Final = CHECK_S + CHECK_LIMIT_S + _MARGIN_S
#: How long a leader may lead that cannot write, while another could.
_GIVES_WAY_S: Final = STEP_DOWN_S + _KNOWN_S + _MARGIN_S
#: How long one may lead whose port refuses all connections, once it was reached.
_REPLACED_S: Final = 10.0


class Watched(Protocol):
    """The cluster as these checks need it."""

    faults: Faults
    network: SimulatedNetwork
    job_managers: list[str]
    full_disks: Counter[str]

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        ...


class LeaderChecks:
    """Watches the leaders of one run."""

    def __init__(self, cluster: Watched) -> None:
        self._cluster: Final = cluster
        faults = cluster.faults
        self._checks_writes: Final = faults.leads_while_it_writes
        only_ports = structs.replace(faults, broken_ports=0).leads_throughout and faults.deaths_noticed
        self._checks_ports: Final = bool(faults.broken_ports) and only_ports
        self._former: str | None = None  # the leader of the latest term
        self._began_s = 0.0  # when that term began
        self._hindered_s = 0.0  # for how long that leader could not write while another could
        self._unreached_s = 0.0  # for how long no other process has reached it, though one had before
        self._refusing_since_s: dict[str, float] = {}  # JobManagers that refuse connections now
        self._writing_s: Counter[str] = Counter()  # for how long each has been able to write
        self._wrote_s: dict[str, float] = {}  # when each was last able to write
        self._failed_s: dict[str, float] = {}  # when each was last not able to
        self.violations: Final[list[str]] = []

    def storage_health(self, name: str) -> StorageHealth:
        """Return what a process finds out about the storage directory: it reads it in any case."""

        async def check() -> None:
            return

        async def check_writable() -> None:
            if self._cluster.full_disks[name]:
                raise Unavailable("no space left on device: simulated")

        return StorageHealth(check, check_writable)

    async def run(self) -> None:
        """Check again and again, if there is anything to check in this run."""
        while self._checks_writes or self._checks_ports:
            await asyncio.sleep(_EVERY_S)
            self._observe()
            self._check_leader()

    def on_term(self, token: FencingToken) -> None:
        """Check that the leader changes because the former one cannot write, and the new one can."""
        name, former, now_s = self._cluster.leader(), self._former, asyncio.get_running_loop().time()
        self._former, self._began_s, self._hindered_s, self._unreached_s = name, now_s, 0.0, 0.0
        if former is None or not self._checks_writes:
            return
        for who, times_s, what in (
            (former, self._failed_s, f"{former} has been able to write all the time"),
            (name, self._wrote_s, f"{name} cannot write either"),
        ):
            if now_s - times_s.get(who, -math.inf) > _KNOWN_S:
                self.violations.append(f"epoch {token.epoch} of {name} succeeds that of {former}, but {what}")

    def _observe(self) -> None:
        now_s, network = asyncio.get_running_loop().time(), self._cluster.network
        for name in self._cluster.job_managers:
            if self._cluster.full_disks[name]:
                self._failed_s[name] = now_s
                self._writing_s[name] = 0
            else:
                self._wrote_s[name] = now_s
                self._writing_s[name] += 1
            if all(network.is_refused(other, name) for other in self._others(name)):
                self._refusing_since_s.setdefault(name, now_s)
            else:
                self._refusing_since_s.pop(name, None)

    def _check_leader(self) -> None:
        leader = self._former
        if leader is None:
            return
        hindered = bool(self._cluster.full_disks[leader]) and any(
            self._writing_s[other] * _EVERY_S > _KNOWN_S for other in self._others(leader)
        )
        self._hindered_s = self._hindered_s + _EVERY_S if hindered else 0.0
        if self._checks_writes and self._hindered_s == _GIVES_WAY_S:
            self.violations.append(f"{leader} leads for {_GIVES_WAY_S:g} s without writing, though another could write")
        reached = self._refusing_since_s.get(leader, 0.0) > self._began_s + _MARGIN_S
        self._unreached_s = self._unreached_s + _EVERY_S if reached else 0.0
        if self._checks_ports and self._unreached_s == _REPLACED_S:
            self.violations.append(f"{leader} leads, though it has refused all connections for {_REPLACED_S:g} s")

    def _others(self, name: str) -> list[str]:
        return [other for other in self._cluster.job_managers if other != name]
