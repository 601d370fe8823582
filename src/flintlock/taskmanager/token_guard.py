"""The leader that a TaskManager follows.

A lower epoch is refused and a higher one adopted, before any handler runs. There is one exception. Epochs only grow as
long as the store does: a store that was removed, or restored from an older backup, begins again with lower ones, and a
TaskManager that only counted would never follow a leader again. So a registration with a leader of a lower epoch
succeeds once the leader of the higher one has been silent for a whole lease, and nothing of it runs here any more. A
former leader cannot use that: it answers no registration, as its own clock ended its term before its successor began.

Epochs of different clusters cannot be compared. A command of another cluster's leader (it still knows this address from
earlier days) changes nothing here, and is refused without Fenced: it says nothing about who leads that cluster. Which
cluster a TaskManager belongs to is decided by the leader that it finds and registers with, not by who calls it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from flintlock.model import log_events
from flintlock.model.errors import Fenced, Refused
from flintlock.model.ids import FencingToken
from flintlock.model.slots import RegistrationAnswer

log = structlog.get_logger()


class TokenGuard:
    """The token of the leader that is followed. `clock_s` also runs while the machine sleeps."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s: Final = clock_s
        self.token: FencingToken | None = None  # of the leader that is followed
        self._heard_s = 0.0  # when that leader has sent or answered something last
        self._lease_s = 0.0  # the length of its leases, as far as they are known

    def check(self, token: FencingToken | None) -> None:
        """Admit the caller, or raise Fenced; Refused for another cluster's leader."""
        if token is None:
            raise Fenced("a command to a TaskManager must carry its leader's token")
        if self.token is not None and token.cluster != self.token.cluster:
            raise Refused("this TaskManager belongs to another cluster than the leader that calls it")
        if self.token is not None and token.epoch < self.token.epoch:
            raise Fenced(f"epoch {token.epoch} is over: this TaskManager follows epoch {self.token.epoch}")
        if self.token is not None and token.epoch == self.token.epoch and token.session != self.token.session:
            raise Fenced(f"epoch {token.epoch} belongs to another leader")
        self.token = token
        self.heard()

    def heard(self) -> None:
        """Record a sign of life of the leader that is followed."""
        self._heard_s = self._clock_s()

    def adopt(self, answer: RegistrationAnswer, *, idle: bool) -> None:
        """Follow the leader that accepted a registration; `idle`: nothing runs under a lease of another one.

        Raises Fenced if a newer leader is known, unless that one has been silent for a whole lease. Raises Refused for
        the leader of another cluster, unless nothing runs here.
        """
        silent_s = self._clock_s() - self._heard_s
        if self.token is not None and answer.token.cluster != self.token.cluster and idle:
            log.warning(log_events.CLUSTER_CHANGED, epoch=answer.token.epoch, followed=self.token.epoch)
            self.token = None
        try:
            self.check(answer.token)
        except Fenced as error:
            if not idle or silent_s < max(self._lease_s, answer.heartbeat_timeout_s):
                raise
            log.warning(
                log_events.EPOCH_WENT_BACK,
                epoch=answer.token.epoch,
                followed=None if self.token is None else self.token.epoch,
                silent_s=round(silent_s, 1),
                reason=error.public,
            )
            self.token = answer.token
            self.heard()
        self._lease_s = answer.heartbeat_timeout_s
