"""Finds the cluster to use: the one named, else the configured one, else the one of the state directory.

If there is none and never was one, a job may run on an embedded one (`cluster_or_embedded`). Where a cluster is
configured, or the state directory belongs to one, its users mean that cluster: an embedded one in its place would take
a minute for each job, and leave no trace of it.

A cluster is configured by its ZooKeeper quorum (`high-availability.type: zookeeper`), or by `rest.address` and
`rest.port`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from msgspec import Struct

from flintlock.client.clusters.local_cluster import EmbeddedCluster, embedded_cluster
from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials, Credentials
from flintlock.config.configuration import Configuration
from flintlock.config.files import LoadedConfiguration, state_directory
from flintlock.config.options import REST_ADDRESS, REST_PORT, TLS_AUTHORITIES, TLS_MEMBER
from flintlock.ha.backends import ha_backend
from flintlock.ha.embedded.backend import STORE_FILE
from flintlock.host.addresses import in_url, is_loopback_host, reached_at
from flintlock.host.cluster_spec import SUPERVISOR, process_name, read_cluster_spec, read_given_up
from flintlock.host.files.job_directory import JobDirectory
from flintlock.host.files.own_cluster import read_own_cluster
from flintlock.host.processes.pid_files import announced, cluster_processes, job_managers, read_exit
from flintlock.host.processes.supervision import BY_INTENT
from flintlock.model.application import APPLICATION_VARIABLE
from flintlock.model.errors import Refused, Unavailable

_PATIENCE_S = 30.0  # until a leader has to answer
#: The same on YARN, which starts the next attempt of a JobManager in another container.
YARN_PATIENCE_S = 120.0
_EMBEDDED_PATIENCE_S = 5.0  # an embedded JobManager is not restarted
_POLL_S = 0.1  # how often to look for a JobManager that is started again
_FIRST_LEADER_S = 5.0  # how long to wait for ZooKeeper to name a leader before the first request


class ClusterConnection(Struct, frozen=True):
    """A client of the cluster in use; `embedded` if that cluster ends with the connection."""

    client: Client
    embedded: EmbeddedCluster | None = None


class RestartWait(Struct, frozen=True, kw_only=True):
    """For how long a JobManager that its supervisor starts again is waited for, and where that is shown."""

    limit_s: float = _PATIENCE_S
    announce: Callable[[str], None] | None = None  # called once with what is waited for, if there is a wait


NO_WAIT: Final = RestartWait(limit_s=0.0)
"""For commands that show what is there now."""
_SILENT_WAIT: Final = RestartWait()


class RunningCluster(Struct, frozen=True, kw_only=True):
    """The addresses of a cluster's JobManagers, and where to find new ones when none of them responds.

    That is the state directory, for JobManagers of this machine, and the ZooKeeper quorum of a configuration.
    """

    urls: tuple[str, ...]
    state_dir: Path | None = None
    quorum: Configuration | None = None
    credentials: Credentials | None = None
    advice: str = ""  # what to do if no address answers, as a clause
    own_cluster: bool = False  # of the application whose program this is
    find: Callable[[], tuple[str, ...]] | None = None  # asks for the addresses elsewhere; takes seconds
    patience_s: float = _PATIENCE_S

    def client(self) -> Client:
        """Return a client that follows the leader."""
        discovers = self.state_dir is not None or self.quorum is not None or self.find is not None
        return Client(
            self.urls,
            patience_s=self.patience_s,
            discover=self._discover if discovers else None,
            replaceable=self.quorum is not None or self.find is not None,
            credentials=self.credentials,
            advice=self.advice,
            own_cluster=self.own_cluster,
        )

    def _discover(self) -> tuple[str, ...]:
        if self.find is not None:
            return self.find()
        local = () if self.state_dir is None else _local_urls(self.state_dir)
        if self.quorum is None:
            return local
        try:
            leader = ha_backend(self.quorum).leader_url(self.quorum, wait_s=0.0)
        except Unavailable:
            leader = None  # the local addresses have to do
        return _leader_first(leader, local)


def find_cluster(
    settings: LoadedConfiguration, urls: Sequence[str], state_dir: Path, wait: RestartWait = _SILENT_WAIT
) -> RunningCluster | None:
    """Return the cluster to use; None if there is none. The state directory of a per-job cluster stands for that one.

    With ZooKeeper, the quorum names the leader; the JobManagers of the state directory are used while the quorum does
    not respond. Raises Unavailable if neither gives an address: a cluster is configured, and no other may be used
    instead.

    Without ZooKeeper, a configured address is the only one, unless it is that of a JobManager of the state directory:
    then the other JobManagers there are used too. One that its supervisor starts again is waited for.
    """
    configuration = settings.configuration
    credentials = ClientCredentials(configuration, state_dir)
    if any(url.startswith("yarn:") for url in urls):
        return _on_yarn(configuration, urls, state_dir)
    if urls:
        return RunningCluster(urls=tuple(urls), credentials=credentials)
    own = own_cluster(state_dir)
    if own is not None:
        return own
    if JobDirectory(state_dir).path.exists():
        _await_restart(state_dir, wait)
        found = job_cluster(configuration, state_dir)
        return found if found.urls else None
    port = configuration.get(REST_PORT)
    if ha_backend(configuration).spans_hosts:
        urls = _quorum_urls(configuration, _local_urls(state_dir))
        return RunningCluster(urls=urls, state_dir=state_dir, quorum=configuration, credentials=credentials)
    _await_restart(state_dir, wait)
    local = _local_urls(state_dir)
    if (configuration.has(REST_ADDRESS) or configuration.has(REST_PORT)) and port:
        scheme = "https" if configuration.get(TLS_MEMBER) or configuration.get(TLS_AUTHORITIES) else "http"
        configured = f"{scheme}://{in_url(reached_at(configuration.get(REST_ADDRESS)))}:{port}"
        advice = _configured_advice(settings, state_dir)
        if all(file.rest != configured for file in announced(state_dir)):
            return RunningCluster(urls=(configured,), credentials=credentials, advice=advice)
        urls = local or (configured,)
        return RunningCluster(urls=urls, state_dir=state_dir, credentials=credentials, advice=advice)
    return RunningCluster(urls=local, state_dir=state_dir, credentials=credentials) if local else None


def _on_yarn(configuration: Configuration, urls: Sequence[str], state_dir: Path) -> RunningCluster:
    """Return the session of `yarn://application_…`. Raises Refused, Unavailable."""
    from flintlock.client.clusters.yarn_cluster import YarnSessions

    if len(urls) != 1:
        raise Refused("an application on YARN is a cluster of its own: give no other address beside it")
    return YarnSessions(configuration, state_dir).find(urls[0]).running


def job_cluster(configuration: Configuration, state_dir: Path) -> RunningCluster:
    """Return the cluster of a job's own state directory: what is configured for others does not apply to it."""
    tls = Configuration({TLS_AUTHORITIES.key: configuration.get(TLS_AUTHORITIES)})
    return RunningCluster(
        urls=_local_urls(state_dir),
        state_dir=state_dir,
        credentials=ClientCredentials(tls, state_dir),
        own_cluster=os.environ.get(APPLICATION_VARIABLE) == str(state_dir),
    )


def own_cluster(state_dir: Path) -> RunningCluster | None:
    """Return the cluster of the application whose program runs in this state directory, on a machine of its own."""
    found = read_own_cluster(state_dir)
    if found is None or os.environ.get(APPLICATION_VARIABLE) != str(state_dir):
        return None
    configuration = Configuration(found.settings)
    spans_hosts = ha_backend(configuration).spans_hosts
    return RunningCluster(
        urls=_quorum_urls(configuration, (found.rest,)) if spans_hosts else (found.rest,),
        quorum=configuration if spans_hosts else None,
        credentials=ClientCredentials(configuration, state_dir),
        own_cluster=True,
        patience_s=YARN_PATIENCE_S,
    )


def cluster_or_embedded(
    settings: LoadedConfiguration, urls: Sequence[str], state_dir: Path, wait: RestartWait = _SILENT_WAIT
) -> RunningCluster | None:
    """Return the cluster to run a job on; None: an embedded one may be started for it.

    Raises Unavailable if the state directory belongs to a cluster that does not run.
    """
    found = find_cluster(settings, urls, state_dir, wait)
    if found is None and _belongs_to_a_cluster(state_dir):
        raise _unreachable(
            f"the cluster of {state_dir} does not run: start it with `{_start_command(settings, state_dir)}`,"
            " or use --local to run the job on an embedded cluster"
        )
    return found


def cluster_client(
    settings: LoadedConfiguration, urls: Sequence[str], state_dir: Path, wait: RestartWait = _SILENT_WAIT
) -> Client:
    """Return a client of the cluster that `find_cluster` finds. Raises Unavailable if there is none."""
    return session_cluster(settings, urls, state_dir, wait).client()


def session_cluster(
    settings: LoadedConfiguration, urls: Sequence[str], state_dir: Path, wait: RestartWait = _SILENT_WAIT
) -> RunningCluster:
    """Return the cluster that `find_cluster` finds. Raises Unavailable if there is none."""
    found = find_cluster(settings, urls, state_dir, wait)
    if found is not None:
        return found
    own_job = JobDirectory(state_dir)
    end = own_job.read_end()
    if end is not None:
        raise _unreachable(
            f"the cluster of {state_dir} has ended with its job, {end.application_status}:"
            f" {own_job.end_file} has the job's end and its results"
        )
    raise _unreachable(
        f"no cluster runs in {state_dir}, and none is configured: "
        f"start one with `{_start_command(settings, state_dir)}`, or name one with -m"
    )


@contextmanager
def connected_cluster(
    settings: LoadedConfiguration, cluster: RunningCluster | None, overrides: Sequence[str] = ()
) -> Generator[ClusterConnection]:
    """Connect to the cluster; without one, run an embedded cluster for the duration of the block.

    `overrides` (`key=value`) configure an embedded cluster.
    """
    if cluster is not None:
        with cluster.client() as client:
            yield ClusterConnection(client)
        return
    with (
        embedded_cluster(settings, overrides) as embedded,
        embedded.client(patience_s=_EMBEDDED_PATIENCE_S) as client,
    ):
        yield ClusterConnection(client, embedded)


def _quorum_urls(configuration: Configuration, local: tuple[str, ...]) -> tuple[str, ...]:
    """Return the leader's address, as the quorum has it, and the local ones. Raises Unavailable if there is none."""
    backend = ha_backend(configuration)
    reason = f"{backend.describe_register(configuration)} has no leading JobManager"
    leader = None
    try:
        leader = backend.leader_url(configuration, wait_s=0.0 if local else _FIRST_LEADER_S)
    except Unavailable as error:
        reason = error.public
    found = _leader_first(leader, local)
    if not found:
        raise _unreachable(reason)
    return found


def _unreachable(text: str) -> Unavailable:
    error = Unavailable(text)
    error.unreachable = True
    return error


def _belongs_to_a_cluster(state_dir: Path) -> bool:
    """Return whether a cluster was ever started in the state directory: stopped ones store their jobs there."""
    return (
        read_cluster_spec(state_dir) is not None
        or JobDirectory(state_dir).path.exists()
        or bool(announced(state_dir))
        or (state_dir / STORE_FILE).exists()
        or bool(cluster_processes(state_dir))
    )


def _start_command(settings: LoadedConfiguration, state_dir: Path) -> str:
    """Return the command that starts the cluster of a state directory, as the same user would type it."""
    usual = state_dir == state_directory(settings)
    return "flintlock cluster start" if usual else f"flintlock cluster start --state-dir {shlex.quote(str(state_dir))}"


def _configured_advice(settings: LoadedConfiguration, state_dir: Path) -> str:
    """Return what to do if the configured address does not answer."""
    option = REST_ADDRESS if settings.configuration.has(REST_ADDRESS) else REST_PORT
    place = f"it is configured by {option.key} ({settings.places.get(option.key, 'set')})"
    if not is_loopback_host(reached_at(settings.configuration.get(REST_ADDRESS))):
        return place
    return f"{place}; start it with `{_start_command(settings, state_dir)}`"


def _leader_first(leader: str | None, others: tuple[str, ...]) -> tuple[str, ...]:
    return others if leader is None else (leader, *(url for url in others if url != leader))


def _local_urls(state_dir: Path) -> tuple[str, ...]:
    return tuple(file.rest for file in job_managers(state_dir))


def _await_restart(state_dir: Path, wait: RestartWait) -> None:
    """Wait for a JobManager of a state directory, if none runs and the supervisor there starts one again."""
    give_up_s, pause, waits = time.monotonic() + wait.limit_s, Event(), False
    while time.monotonic() < give_up_s and not _local_urls(state_dir) and _is_supervised(state_dir):
        if not waits and wait.announce is not None:
            wait.announce(f"waiting for the supervisor of {state_dir} to start a JobManager again")
        waits = True
        pause.wait(_POLL_S)


def _is_supervised(state_dir: Path) -> bool:
    """Return whether a supervisor has a JobManager to start there: one that it has not given up or left ended."""
    spec = read_cluster_spec(state_dir)
    names = {process_name("jobmanager", index) for index in range(spec.jobmanagers if spec is not None else 0)}
    expected = {name for name in names - read_given_up(state_dir).keys() if not _ended_by_intent(state_dir, name)}
    return bool(expected) and SUPERVISOR in cluster_processes(state_dir)


def _ended_by_intent(state_dir: Path, name: str) -> bool:
    ended = read_exit(state_dir, name)
    return ended is not None and ended.code in BY_INTENT
