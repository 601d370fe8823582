"""The backend `zookeeper`: an ensemble and a storage directory, for JobManagers of several hosts.

kazoo and fsspec take a while to import: they are imported when the ensemble is asked.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final

from flintlock.config.configuration import Configuration, Option, file_name
from flintlock.config.extras import require_extra
from flintlock.config.options import (
    CLUSTER_ID,
    HA_CLUSTER_ID,
    HA_CONNECTION_TIMEOUT,
    HA_QUORUM,
    HA_ROOT,
    HA_SESSION_TIMEOUT,
    HA_STORAGE_DIR,
)
from flintlock.ha.leader_finding import LeaderFinder, following_register
from flintlock.ha.leader_info import LeaderCheck
from flintlock.ha.protocols import HaServices
from flintlock.ha.zookeeper.security import zookeeper_security
from flintlock.model.errors import Invalid

_CLIENT_CONNECT_S: Final = 5.0  # a client waits no longer than this for the ensemble


class ZooKeeperBackend:
    """Implements HaBackend."""

    leader_timeout: ClassVar[Option[float]] = HA_SESSION_TIMEOUT
    spans_hosts: ClassVar[bool] = True

    @asynccontextmanager
    async def services(
        self,
        configuration: Configuration,
        state_dir: Path,  # noqa: ARG002 (nothing of a cluster of several hosts is in it)
        *,
        new_session: Callable[[], str],
        clock_ms: Callable[[], int],  # noqa: ARG002 (no clock of one host decides)
        boot_time_s: Callable[[], float],
        leader_answers: LeaderCheck,  # noqa: ARG002 (the session decides)
        is_blocked: Callable[[int], bool],  # noqa: ARG002 (likewise)
    ) -> AsyncGenerator[HaServices]:
        """Connect to the ensemble as a JobManager."""
        _require(configuration, HA_QUORUM, HA_STORAGE_DIR)
        from flintlock.ha.zookeeper.services import zookeeper_ha

        async with zookeeper_ha(
            configuration.get(HA_QUORUM),
            root=configuration.get(HA_ROOT),
            cluster_id=_cluster_id(configuration),
            storage_dir=configuration.get(HA_STORAGE_DIR),
            session_timeout_s=configuration.get(HA_SESSION_TIMEOUT),
            connection_timeout_s=configuration.get(HA_CONNECTION_TIMEOUT),
            new_session=new_session,
            clock_s=boot_time_s,
            security=zookeeper_security(configuration),
        ) as services:
            yield services

    @asynccontextmanager
    async def leader_finder(
        self,
        configuration: Configuration,
        state_dir: Path,  # noqa: ARG002
    ) -> AsyncGenerator[LeaderFinder]:
        """Connect to the ensemble to follow the leader; nothing is written."""
        _require(configuration, HA_QUORUM)
        from flintlock.ha.zookeeper.services import zookeeper_leader

        async with (
            zookeeper_leader(
                configuration.get(HA_QUORUM),
                root=configuration.get(HA_ROOT),
                cluster_id=_cluster_id(configuration),
                session_timeout_s=configuration.get(HA_SESSION_TIMEOUT),
                connection_timeout_s=configuration.get(HA_CONNECTION_TIMEOUT),
                clock_s=time.monotonic,
                security=zookeeper_security(configuration),
            ) as retrieval,
            following_register(retrieval, "ZooKeeper") as finder,
        ):
            yield finder

    def leader_url(self, configuration: Configuration, *, wait_s: float, former: str = "") -> str | None:
        """Ask the ensemble for the leader, without an event loop."""
        _require(configuration, HA_QUORUM)
        from flintlock.ha.zookeeper.leader import serving_leader
        from flintlock.ha.zookeeper.tree import Tree

        leader = serving_leader(
            configuration.get(HA_QUORUM),
            Tree(configuration.get(HA_ROOT), _cluster_id(configuration)),
            connect_s=min(configuration.get(HA_CONNECTION_TIMEOUT), _CLIENT_CONNECT_S),
            wait_s=wait_s,
            former=former,
            security=zookeeper_security(configuration),
        )
        return None if leader is None else leader.rest

    def describe_register(self, configuration: Configuration) -> str:
        """Name the ensemble and its option."""
        return f"ZooKeeper at {configuration.get(HA_QUORUM)} ({HA_QUORUM.key})"

    def cluster_identity(self, configuration: Configuration) -> str:
        """Name the cluster's znode."""
        return f"zookeeper:{configuration.get(HA_ROOT)}/{_cluster_id(configuration)}"

    def shared_directory(self, configuration: Configuration) -> str:
        """Return the storage directory."""
        return configuration.get(HA_STORAGE_DIR)


def _cluster_id(configuration: Configuration) -> str:
    return configuration.get(HA_CLUSTER_ID) or configuration.get(CLUSTER_ID)


def _require(configuration: Configuration, *required: Option[str]) -> None:
    """Check the options that have no usable default, and that the packages for ZooKeeper are installed.

    Raises Invalid, naming each key; Refused for missing packages.
    """
    problems = [
        f"high-availability.type is zookeeper: {option.key} has to be set ({option.kind})"
        for option in required
        if not configuration.get(option)
    ]
    try:
        file_name(_cluster_id(configuration))
    except ValueError as error:
        problems.append(f"{CLUSTER_ID.key}: {error}; set {HA_CLUSTER_ID.key}")
    if problems:
        raise Invalid("; ".join(problems), problems=tuple(problems))
    require_extra("zookeeper", "high-availability.type: zookeeper")
