"""The HA backends by name: the values of `high-availability.type`.

A backend is one object that answers every question that depends on the choice: which services a JobManager opens, how
TaskManagers and clients find the leader, how long a silent leader keeps its term, and which options are required. To
add a backend, implement `HaBackend`, add it to `_BACKENDS` and to the option's names (a test compares the two), and run
the contract suite against its services.

Rejected: entry points of other distributions. A backend has to pass the contract suite of this version.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Final, Protocol

from flintlock.config.configuration import Configuration, Option
from flintlock.config.options import HA_TYPE
from flintlock.ha.embedded.backend import EmbeddedBackend
from flintlock.ha.leader_finding import LeaderFinder
from flintlock.ha.leader_info import LeaderCheck
from flintlock.ha.protocols import HaServices
from flintlock.ha.zookeeper.backend import ZooKeeperBackend


class HaBackend(Protocol):
    """One value of `high-availability.type`. Libraries that only a backend needs are imported when it is used."""

    leader_timeout: ClassVar[Option[float]]  # says how long a silent leader keeps its term
    spans_hosts: ClassVar[bool]  # JobManagers may run on several hosts; clients then ask the backend which one leads

    def services(
        self,
        configuration: Configuration,
        state_dir: Path,
        *,
        new_session: Callable[[], str],
        clock_ms: Callable[[], int],
        boot_time_s: Callable[[], float],
        leader_answers: LeaderCheck,
        is_blocked: Callable[[int], bool],
    ) -> AbstractAsyncContextManager[HaServices]:
        """Open what a JobManager needs. `is_blocked` says of a process of this machine whether one job blocks it.

        Raises Invalid if an option is missing, Refused, Unavailable.
        """
        ...

    def leader_finder(self, configuration: Configuration, state_dir: Path) -> AbstractAsyncContextManager[LeaderFinder]:
        """Open what a TaskManager needs to find the leader. Raises Invalid if an option is missing, Unavailable."""
        ...

    def leader_url(self, configuration: Configuration, *, wait_s: float, former: str = "") -> str | None:
        """Return the REST address of the leader, for clients; None if after `wait_s` there is none.

        `former`: the address of one that does not answer, which is returned only if there is no other by then.

        Raises Invalid if an option is missing, Unavailable if the backend cannot be reached. Without `spans_hosts` it
        is always None: the JobManagers are found in the state directory.
        """
        ...

    def describe_register(self, configuration: Configuration) -> str:
        """Name the place in which the leader is registered, for messages to users."""
        ...

    def cluster_identity(self, configuration: Configuration) -> str:
        """Name the cluster's place in the backend: the same for all its JobManagers, another one for other clusters.

        Empty if that is the state directory.
        """
        ...

    def shared_directory(self, configuration: Configuration) -> str:
        """Return the directory that every process of the cluster reaches; empty if that is the state directory."""
        ...


_BACKENDS: Final[dict[str, HaBackend]] = {"embedded": EmbeddedBackend(), "zookeeper": ZooKeeperBackend()}
BACKEND_NAMES: Final = tuple(_BACKENDS)


def ha_backend(configuration: Configuration) -> HaBackend:
    """Return the backend that `high-availability.type` names."""
    return _BACKENDS[configuration.get(HA_TYPE)]
