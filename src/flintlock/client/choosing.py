"""Which cluster: the one named, else the configured, else the live one of the state directory, else an embedded one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from flintlock.client.configuration_files import Settings
from flintlock.client.connection import Client
from flintlock.client.local_cluster import EmbeddedCluster, embedded_cluster
from flintlock.client.processes import announced, job_managers
from flintlock.model.errors import Unavailable
from flintlock.model.options import REST_ADDRESS, REST_PORT

_EMBEDDED_PATIENCE_S = 5.0  # nobody restarts an embedded JobManager


class Chosen(Struct, frozen=True):
    """A client of the cluster that was chosen; `embedded` if it lives only as long as this."""

    client: Client
    embedded: EmbeddedCluster | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """A standing cluster: where its JobManagers are, and the state directory that tells when others join them."""

    urls: tuple[str, ...]
    state_dir: Path | None = None

    def client(self) -> Client:
        """Return a client that follows whoever leads."""
        directory = self.state_dir
        return Client(self.urls, discover=None if directory is None else lambda: _live(directory))


def standing_cluster(settings: Settings, urls: Sequence[str], state_dir: Path) -> Standing | None:
    """Return the standing cluster to talk to; None if there is none.

    A configured address counts alone, unless it is that of a JobManager of the state directory: then the others count.
    """
    if urls:
        return Standing(urls=tuple(urls))
    configuration = settings.configuration
    port = configuration.get(REST_PORT)
    live = _live(state_dir)
    if (configuration.has(REST_ADDRESS) or configuration.has(REST_PORT)) and port:
        configured = f"http://{configuration.get(REST_ADDRESS)}:{port}"
        if all(file.rest != configured for file in announced(state_dir)):
            return Standing(urls=(configured,))
        return Standing(urls=live or (configured,), state_dir=state_dir)
    return Standing(urls=live, state_dir=state_dir) if live else None


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
