"""Where the JobManager of an application on YARN listens now: another attempt of it listens elsewhere.

A cluster that survives its ApplicationMaster has its leader in ZooKeeper, which is asked first: that takes
milliseconds. A bridge to YARN takes seconds to start. It is asked where there is no ZooKeeper, and when no other leader
has come for a while: the application may have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.config.options import HA_CLUSTER_ID
from flintlock.ha.backends import ha_backend
from flintlock.model.errors import FlintlockError

_NEXT_LEADER_S: Final = 1.0  # how long one call waits for another leader
_ASK_YARN_S: Final = 5.0  # after so long without one


class YarnAddresses:
    """Finds the address of one application.

    `high_availability` are the settings of its leader's register. `ask_yarn` returns what YARN knows, which may be
    nothing.
    """

    def __init__(
        self,
        application_id: str,
        high_availability: Mapping[str, str],
        address: str,
        ask_yarn: Callable[[], tuple[str, ...]],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configuration: Final = Configuration(high_availability)
        # Other applications may lead a cluster that is named otherwise.
        self._has_register: Final = self._configuration.get(HA_CLUSTER_ID) == application_id
        self._address = address  # the last one that was found
        self._ask_yarn: Final = ask_yarn
        self._clock_s: Final = clock_s
        self._without_s: float | None = None  # since when there is no other leader

    def find(self) -> tuple[str, ...]:
        """Return the current address; nothing while there is none. Raises what `ask_yarn` does."""
        found = self._from_register()
        if found is None:
            found = self._ask_yarn()
        if found:
            self._address = found[0]
        return found

    def _from_register(self) -> tuple[str, ...] | None:
        """Return what ZooKeeper knows; None if YARN has to be asked."""
        backend = ha_backend(self._configuration)
        if not self._has_register or not backend.spans_hosts:
            return None
        now_s = self._clock_s()
        try:
            leader = backend.leader_url(self._configuration, wait_s=_NEXT_LEADER_S, former=self._address)
        except FlintlockError:
            return None
        if leader is not None and leader != self._address:
            self._without_s = None
            return (leader,)
        if self._without_s is None:
            self._without_s = now_s
        if now_s - self._without_s < _ASK_YARN_S:
            return ()
        self._without_s = None
        return None
