"""Who leads, asked of the ZooKeeper quorum that the configuration names. kazoo is imported only when it is asked."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from flintlock.config.configuration import Configuration, Option, file_name
from flintlock.config.extras import require_extra
from flintlock.config.options import (
    CLUSTER_ID,
    HA_CLUSTER_ID,
    HA_CONNECTION_TIMEOUT,
    HA_QUORUM,
    HA_ROOT,
    HA_SESSION_TIMEOUT,
    HA_TYPE,
)
from flintlock.ha.protocols import LeaderRetrieval
from flintlock.model.errors import Invalid

_CONNECT_S: Final = 5.0  # a client's patience, at most


def uses_zookeeper(configuration: Configuration) -> bool:
    """Tell whether the cluster's leader is found through ZooKeeper."""
    return configuration.get(HA_TYPE) == "zookeeper"


def cluster_id(configuration: Configuration) -> str:
    """Return the cluster's name in ZooKeeper."""
    return configuration.get(HA_CLUSTER_ID) or configuration.get(CLUSTER_ID)


def check_zookeeper(configuration: Configuration, *needed: Option[str]) -> None:
    """Check what ZooKeeper needs and no default can give.

    Raises Invalid, naming each key, or Refused if the packages that speak to ZooKeeper are not installed.
    """
    problems = [
        f"high-availability.type is zookeeper: {option.key} has to be set ({option.kind})"
        for option in (HA_QUORUM, *needed)
        if not configuration.get(option)
    ]
    try:
        file_name(cluster_id(configuration))
    except ValueError as error:
        problems.append(f"{CLUSTER_ID.key}: {error}; set {HA_CLUSTER_ID.key}")
    if problems:
        raise Invalid("; ".join(problems), problems=tuple(problems))
    require_extra("zookeeper", "high-availability.type: zookeeper")


@asynccontextmanager
async def leader_retrieval(configuration: Configuration) -> AsyncGenerator[LeaderRetrieval]:
    """Ask the quorum who leads, and hear when that changes, while the context lasts; nothing is written.

    Raises Invalid if a setting is missing, Unavailable if the quorum cannot be reached.
    """
    check_zookeeper(configuration)
    from flintlock.ha.zookeeper.services import zookeeper_leader

    async with zookeeper_leader(
        configuration.get(HA_QUORUM),
        root=configuration.get(HA_ROOT),
        cluster_id=cluster_id(configuration),
        session_timeout_s=configuration.get(HA_SESSION_TIMEOUT),
        connection_timeout_s=configuration.get(HA_CONNECTION_TIMEOUT),
        clock_s=time.monotonic,
    ) as retrieval:
        yield retrieval


def leader_url(configuration: Configuration, *, wait_s: float) -> str | None:
    """Return where clients reach the leader, waiting a while for one; None if nobody leads.

    Raises Invalid if a setting is missing, Unavailable if the quorum cannot be reached.
    """
    check_zookeeper(configuration)
    from flintlock.ha.zookeeper.leader import serving_leader
    from flintlock.ha.zookeeper.tree import Tree

    leader = serving_leader(
        configuration.get(HA_QUORUM),
        Tree(configuration.get(HA_ROOT), cluster_id(configuration)),
        connect_s=min(configuration.get(HA_CONNECTION_TIMEOUT), _CONNECT_S),
        wait_s=wait_s,
    )
    return None if leader is None else leader.rest
