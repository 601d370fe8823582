"""Which cluster: the one named, else the configured, else the live one of the state directory, else an embedded one.

A cluster is configured by its ZooKeeper quorum (`high-availability.type: zookeeper`), or by `rest.address` and
`rest.port`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from flintlock.client.clusters.local_cluster import EmbeddedCluster, embedded_cluster
from flintlock.client.connection.client import Client
from flintlock.config.configuration import Configuration
from flintlock.config.files import Settings
from flintlock.config.options import HA_QUORUM, REST_ADDRESS, REST_PORT
from flintlock.ha.zookeeper.settings import leader_url, uses_zookeeper
from flintlock.host.addresses import in_url, reached_at
from flintlock.host.pid_files import announced, job_managers
from flintlock.model.errors import Unavailable

_EMBEDDED_PATIENCE_S = 5.0  # nobody restarts an embedded JobManager
_NEXT_LEADER_S = 5.0  # how long a leader is waited for at first, as for an address at which nobody ever answered


class Chosen(Struct, frozen=True):
    """A client of the cluster that was chosen; `embedded` if it lives only as long as this."""

    client: Client
    embedded: EmbeddedCluster | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """A standing cluster: where its JobManagers are, and what tells when others join them.

    That is the state directory, for JobManagers of this machine, and the ZooKeeper quorum of a configuration.
    """

    urls: tuple[str, ...]
    state_dir: Path | None = None
    quorum: Configuration | None = None

    def client(self) -> Client:
        """Return a client that follows whoever leads."""
        known = self.state_dir is not None or self.quorum is not None
        return Client(self.urls, discover=self._discover if known else None, replaceable=self.quorum is not None)

    def _discover(self) -> tuple[str, ...]:
        live = () if self.state_dir is None else _live(self.state_dir)
        if self.quorum is None:
            return live
        try:
            leader = leader_url(self.quorum, wait_s=0.0)
        except Unavailable:
            leader = None  # what is known has to do
        return _led_by(leader, live)


def standing_cluster(settings: Settings, urls: Sequence[str], state_dir: Path) -> Standing | None:
    """Return the standing cluster to talk to; None if there is none.

    With ZooKeeper the quorum says who leads; JobManagers of the state directory stand in while it cannot. Raises
    Unavailable if neither knows of one: the cluster is configured, nothing takes its place.

    Without, a configured address counts alone, unless it is that of a JobManager of the state directory: then the
    others count.
    """
    if urls:
        return Standing(urls=tuple(urls))
    configuration = settings.configuration
    port = configuration.get(REST_PORT)
    live = _live(state_dir)
    if uses_zookeeper(configuration):
        return Standing(urls=_asked(configuration, live), state_dir=state_dir, quorum=configuration)
    if (configuration.has(REST_ADDRESS) or configuration.has(REST_PORT)) and port:
        configured = f"http://{in_url(reached_at(configuration.get(REST_ADDRESS)))}:{port}"
        if all(file.rest != configured for file in announced(state_dir)):
            return Standing(urls=(configured,))
        return Standing(urls=live or (configured,), state_dir=state_dir)
    return Standing(urls=live, state_dir=state_dir) if live else None


def _asked(configuration: Configuration, live: tuple[str, ...]) -> tuple[str, ...]:
    """Return where to find the leader that the quorum tells of, or who stands in for it. Raises Unavailable."""
    reason = f"no JobManager leads, says ZooKeeper at {configuration.get(HA_QUORUM)} ({HA_QUORUM.key})"
    leader = None
    try:
        leader = leader_url(configuration, wait_s=0.0 if live else _NEXT_LEADER_S)
    except Unavailable as error:
        reason = error.public
    found = _led_by(leader, live)
    if not found:
        error = Unavailable(reason)
        error.unreachable = True
        raise error
    return found


def _led_by(leader: str | None, live: tuple[str, ...]) -> tuple[str, ...]:
    return live if leader is None else (leader, *(url for url in live if url != leader))


def _live(state_dir: Path) -> tuple[str, ...]:
    return tuple(file.rest for file in job_managers(state_dir))


def standing_client(settings: Settings, urls: Sequence[str], state_dir: Path) -> Client:
    """Return a client of the standing cluster. Raises Unavailable if there is none."""
    found = standing_cluster(settings, urls, state_dir)
    if found is None:
        error = Unavailable(
            f"no cluster runs in {state_dir}, and none is configured: "
            "start one with `flintlock cluster start`, or name one with -m"
        )
        error.unreachable = True
        raise error
    return found.client()


@contextmanager
def chosen_cluster(
    settings: Settings, urls: Sequence[str], state_dir: Path, *, local: bool = False, overrides: Sequence[str] = ()
) -> Generator[Chosen]:
    """Connect to the standing cluster, or run an embedded one for the time of the block.

    `local` forces an embedded one; `overrides` (`key=value`) configure it.
    """
    found = None if local else standing_cluster(settings, urls, state_dir)
    if found is not None:
        with found.client() as client:
            yield Chosen(client)
        return
    with (
        embedded_cluster(settings, overrides) as embedded,
        Client([embedded.url], patience_s=_EMBEDDED_PATIENCE_S) as client,
    ):
        yield Chosen(client, embedded)
