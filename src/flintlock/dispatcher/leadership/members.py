"""Which JobManagers there are, as the one knows that leads: itself, and the standbys that watch it.

Every standby has a `watch_liveness` call open at the leader, which says where the standby is reached. The call ends
with the standby's process or its connection: so the leader knows its standbys without a record that could outlive them,
and with every HA backend. A standby that cannot reach the leader is not listed: it would not notice the leader's death
either.

Rejected: entries in the HA services. ZooKeeper could hold them as ephemeral nodes, but a state directory has none, and
each entry would need a lease of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from flintlock.gateways.leader import JobManagerInfo, StandbyAddresses
from flintlock.model.ids import FencingToken


class JobManagers:
    """The JobManagers of the cluster while this one leads; empty while it does not."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms: Final = clock_ms
        self._standbys: Final[dict[object, JobManagerInfo]] = {}  # by call: of a restarted one two may be open
        self._leader: JobManagerInfo | None = None

    def current(self) -> tuple[JobManagerInfo, ...]:
        """Return the leader, then the standbys in the order in which they came; each once, by its address."""
        if self._leader is None:
            return ()
        standbys = {info.rest: info for info in self._standbys.values() if info.rest != self._leader.rest}
        return (self._leader, *standbys.values())

    @contextmanager
    def leading(self, token: FencingToken, addresses: StandbyAddresses) -> Generator[None]:
        """This JobManager leads while the context lasts."""
        self._leader = self._info(addresses, epoch=token.epoch)
        try:
            yield
        finally:
            self._leader = None

    @contextmanager
    def watched_by(self, standby: StandbyAddresses | None) -> Generator[None]:
        """A standby watches this JobManager while the context lasts; None: one of a version that does not say which."""
        if standby is None:
            yield
            return
        call = object()
        self._standbys[call] = self._info(standby, epoch=0)
        try:
            yield
        finally:
            del self._standbys[call]

    def _info(self, addresses: StandbyAddresses, epoch: int) -> JobManagerInfo:
        return JobManagerInfo(
            rest=addresses.rest, rpc=addresses.rpc, host=addresses.host, epoch=epoch, since_ms=self._clock_ms()
        )
