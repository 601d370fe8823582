"""A cluster for one job or application, on this machine: started in the background with it, and ended by it.

Its state directory is `per-job/<job id>` or `application/<job id>` in the user's. A supervisor starts its JobManager
again when that fails; the JobManager starts TaskManagers as they are needed. The directory stays when the cluster has
ended, with the logs, the job and its end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct, structs

from flintlock.client.authoring.package import JobPackage
from flintlock.client.clusters.discovery import RunningCluster, job_cluster
from flintlock.client.clusters.local_cluster import require_java, start_cluster
from flintlock.client.connection.client import Client
from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.files import LoadedConfiguration, environment_settings, split_assignment
from flintlock.config.options import HA_CLUSTER_ID, HA_TYPE, MAX_TASK_MANAGERS, SUPERVISE
from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.job_directory import JobDescription, JobDirectory
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import JobId
from flintlock.security.local_credentials import local_user

_PAUSE_S: Final = 0.1

#: Many such clusters may run at once on a machine: none has a configured port. `-D` comes before these.
_ADDRESSES: Final = {
    "rest.address": "127.0.0.1",
    "rest.bind-address": "127.0.0.1",
    "rest.port": "0",
    "jobmanager.rpc.address": "127.0.0.1",
    "jobmanager.bind-host": "127.0.0.1",
    "jobmanager.rpc.port": "0",
    "taskmanager.host": "127.0.0.1",
    "taskmanager.bind-host": "127.0.0.1",
    "taskmanager.rpc.port": "0",
}
#: The state directory of such a cluster has a secret of its own.
_FIXED: Final = {"security.secret-file": ""}


class JobCluster(Struct, frozen=True, kw_only=True):
    """A cluster that runs one job."""

    job_id: JobId
    state_dir: Path
    running: RunningCluster
    address: str = ""  # as `-m` takes it; empty: the state directory names the cluster


def job_cluster_directory(state_dir: Path, job_id: JobId, *, application: bool) -> Path:
    """Return the state directory of a job's own cluster."""
    return state_dir / ("application" if application else "per-job") / job_id


def with_job_id(package: JobPackage) -> JobPackage:
    """Return the package with a job id: the one in its document, else a new one."""
    job_id = package.spec.job_id or uuid.uuid4().hex
    return structs.replace(package, spec=structs.replace(package.spec, job_id=job_id))


def start_job_cluster(
    settings: LoadedConfiguration,
    state_dir: Path,
    package: JobPackage,
    overrides: Sequence[str],
    *,
    attached: bool,
    application: bool = False,
) -> JobCluster:
    """Start a cluster for the job; return once the job is durable there. The job may have ended then.

    `package` has a job id; `overrides` are `key=value`. `application`: the job is a program, which submits others.
    `attached`: the cluster keeps the result until `Client.shut_down`. Raises Refused if the packages of a cluster are
    not installed, Conflict if the job was run before, FlintlockError with the cause if the cluster does not start.
    """
    require_extra("cluster", "a cluster for one job")
    require_java()
    job_id = JobId(package.spec.job_id or "")
    directory = JobDirectory(job_cluster_directory(state_dir, job_id, application=application))
    # The program has a slot itself: on a machine with one core its jobs need another TaskManager.
    workers = 2 if application else 1
    given = dict(split_assignment(text, "-D") for text in overrides)
    spec = job_cluster_spec(settings, given, job_id, max_workers=workers)
    description = JobDescription(
        job_id=job_id,
        name=package.spec.name,
        attached=attached,
        submitted_by=local_user(),
        files=tuple(package.files),
        application=application,
    )
    own_dir = directory.path.parent
    directory.create(description, msgspec.json.encode(package.spec), package.files, spec)
    try:
        start_cluster(_settings_of(settings, spec), own_dir, spec)
    except FlintlockError:
        if directory.read_end() is None:
            raise  # otherwise it has ended already: the job was very short
    return JobCluster(job_id=job_id, state_dir=own_dir, running=job_cluster(settings.configuration, own_dir))


class JobClusters(Protocol):
    """Where clusters for one job are started."""

    def place(self, job_id: JobId) -> str:
        """Return where the cluster of a job is, as an adverbial phrase."""
        ...

    def start(self, package: JobPackage, overrides: Sequence[str], *, attached: bool) -> JobCluster:
        """Start a cluster for the job; return once the job is durable there. Raises as `start_job_cluster` does."""
        ...

    def await_end(self, client: Client, cluster: JobCluster) -> ApplicationStatus:
        """Wait until the end of a cluster is recorded, whose job has ended; return how it ends. Raises Unavailable."""
        ...


class LocalJobClusters:
    """JobClusters on this machine. `application`: the jobs are programs, which submit others."""

    def __init__(self, settings: LoadedConfiguration, state_dir: Path, *, application: bool = False) -> None:
        self._settings: Final = settings
        self._state_dir: Final = state_dir
        self._application: Final = application

    def place(self, job_id: JobId) -> str:
        """See `JobClusters`."""
        return f"in {job_cluster_directory(self._state_dir, job_id, application=self._application)}"

    def start(self, package: JobPackage, overrides: Sequence[str], *, attached: bool) -> JobCluster:
        """See `JobClusters`."""
        return start_job_cluster(
            self._settings, self._state_dir, package, overrides, attached=attached, application=self._application
        )

    def await_end(self, client: Client, cluster: JobCluster) -> ApplicationStatus:
        """See `JobClusters`."""
        return await_cluster_end(client, cluster.state_dir)


def await_cluster_end(client: Client, state_dir: Path) -> ApplicationStatus:
    """Wait until the end of a cluster is recorded, whose job has ended; return how it ends.

    A program may have left jobs behind, which end first. Raises Unavailable if the cluster is gone without a record.
    """
    directory = JobDirectory(state_dir)
    while (end := directory.read_end()) is None:
        client.overview()
        time.sleep(_PAUSE_S)  # noqa: TID251 a file of another process
    return end.application_status


def job_cluster_spec(
    settings: LoadedConfiguration, given: Mapping[str, str], job_id: JobId, *, max_workers: int
) -> ClusterSpec:
    """Return the processes and settings of a job's own cluster; `given` is what the user sets for this cluster.

    It has its HA data in its state directory, whatever a session cluster of this configuration uses, unless
    `high-availability.type` is among the given settings. In ZooKeeper it then has an id of its own: the data of a
    session cluster is removed by no job's end.
    """
    workers = {} if settings.configuration.get(MAX_TASK_MANAGERS) else {MAX_TASK_MANAGERS.key: str(max_workers)}
    return ClusterSpec(
        jobmanagers=1,
        taskmanagers=0,
        supervise=settings.configuration.get(SUPERVISE),
        conf=None if settings.file is None else str(settings.file),
        settings={
            **environment_settings(),
            **_ADDRESSES,
            **workers,
            HA_TYPE.key: str(HA_TYPE.default),
            **given,
            HA_CLUSTER_ID.key: job_id,
            **_FIXED,
        },
    )


def _settings_of(settings: LoadedConfiguration, spec: ClusterSpec) -> LoadedConfiguration:
    """Return the settings of the cluster, for its client."""
    merged = Configuration({**settings.configuration.as_dict(), **spec.settings})
    return structs.replace(settings, configuration=merged)
