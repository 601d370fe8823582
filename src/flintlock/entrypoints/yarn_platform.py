"""What a JobManager that is the ApplicationMaster of an application on YARN has around it.

It registers once REST listens, so that the tracking URL is known, and requests containers for TaskManagers as active
mode needs them. Nothing else waits for that, nor for the bridge: the next attempt leads, and tasks that run have a
leader again, while the JVM starts. Only one that finds nothing stored of the cluster's own job asks first whether that
has ended. When the cluster has shut down, it unregisters with its status, and the staging
directory is removed. If it is killed, or ends by an error, YARN starts the next attempt, if the application has more
than one: the containers run on, and that attempt takes them over. The bridge to YARN is its child; without it this
process ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tarfile
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec import Struct, structs

from flintlock.config.configuration import MASTER_VARIABLES
from flintlock.config.options import (
    HEARTBEAT_TIMEOUT,
    JM_RPC_ADDRESS,
    JM_RPC_PORT,
    MAX_TASK_MANAGERS,
    TM_RESOURCE_ID,
    YARN_APPLICATION_ID,
    YARN_HEARTBEAT,
    YARN_HEARTBEAT_WAITING,
    YARN_NODE_EXCLUSION,
    YARN_NODE_FAILURES,
    YARN_STAGING,
)
from flintlock.entrypoints.jobmanager import ClusterEntrypoint
from flintlock.entrypoints.process import ProcessSettings, set_variables
from flintlock.entrypoints.workers.local_workers import FIRST_INDEX
from flintlock.entrypoints.workers.providers import WorkerDriverOpener
from flintlock.gateways.workers import WorkerDriver
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.host.files.job_directory import JobDirectory
from flintlock.host.files.whole_files import write_whole
from flintlock.model import log_events
from flintlock.model.application import APPLICATION_REST_VARIABLE, ApplicationStatus
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.failures.failure_text import render
from flintlock.model.ids import FencingToken
from flintlock.model.states import JobStatus
from flintlock.model.tasks import Failure
from flintlock.yarn.bridge import opening_bridge
from flintlock.yarn.bridge_watch import watch_bridge
from flintlock.yarn.client_bridge import BridgedStaging
from flintlock.yarn.containers import HeartbeatIntervals, YarnContainers
from flintlock.yarn.gateways import ApplicationMasterGateway, StagingGateway
from flintlock.yarn.layout import (
    END_NAME,
    JOB_NAME,
    NOT_FOR_WORKERS,
    attempt_of,
    container_files,
    launch_of,
    slots_of,
    worker_size,
)
from flintlock.yarn.master_bridge import BridgedApplicationMaster
from flintlock.yarn.messages import Container, FinalStatus, Launch, StagedFile
from flintlock.yarn.node_failures import ExclusionRules
from flintlock.yarn.workers import yarn_workers

log = structlog.get_logger()

_DIAGNOSTICS: Final = 4000  # characters; YARN stores them with each application
_FINAL: Final = {
    ApplicationStatus.SUCCEEDED: FinalStatus.SUCCEEDED,
    ApplicationStatus.FAILED: FinalStatus.FAILED,
    ApplicationStatus.CANCELED: FinalStatus.KILLED,
}


class YarnPlatform:
    """A Platform: a container of YARN, with workers in other containers of the application."""

    ends_for_good: bool = True

    def __init__(
        self,
        settings: ProcessSettings,
        master: ApplicationMasterGateway,
        staging: Callable[[], StagingGateway],
        attempt: ApplicationAttempt | None = None,
    ) -> None:
        """`staging` may wait for the bridge."""
        self.attempt: Final = attempt
        configuration = self._configuration = settings.configuration
        self._master: Final = master
        self._staging: Final = staging
        self._rpc_address = ""  # set by `workers`, before the first worker is started
        self._rest_url = ""  # set by `serving`, likewise
        description = JobDirectory(settings.state_dir).describe()
        self._is_application: Final = description is not None and description.application
        self._state_dir: Final = settings.state_dir
        self._files: tuple[StagedFile, ...] = ()  # set by `serving`, before the first container comes
        intervals = HeartbeatIntervals(
            idle_s=configuration.get(YARN_HEARTBEAT), waiting_s=configuration.get(YARN_HEARTBEAT_WAITING)
        )
        exclusion = ExclusionRules(
            failures=configuration.get(YARN_NODE_FAILURES), duration_s=configuration.get(YARN_NODE_EXCLUSION)
        )
        self._containers: Final = YarnContainers(
            master, worker_size(configuration), self._launch, intervals, exclusion=exclusion
        )

    def workers(self, rpc_address: str) -> WorkerDriverOpener | None:
        """See `Platform`."""
        self._rpc_address = rpc_address
        return self._open_workers if self._configuration.get(MAX_TASK_MANAGERS) else None

    def _open_workers(self, _token: FencingToken) -> AbstractAsyncContextManager[WorkerDriver]:
        return yarn_workers(self._containers, slots_of(self._configuration))

    @asynccontextmanager
    async def serving(self, rest_url: str) -> AsyncGenerator[None]:
        """Register as ApplicationMaster, and send heartbeats. Raises (in a group) Unavailable if YARN gives it up."""
        self._rest_url = rest_url
        async with asyncio.TaskGroup() as tasks:
            attending = tasks.create_task(self._attend(rest_url), name="yarn-heartbeats")
            try:
                yield
            finally:
                attending.cancel()

    async def _attend(self, rest_url: str) -> None:
        parts = urlsplit(rest_url)
        await self._containers.register(parts.hostname or "", parts.port or 0, rest_url)
        async with asyncio.TaskGroup() as tasks:
            limit_s = self._configuration.get(HEARTBEAT_TIMEOUT)
            tasks.create_task(watch_bridge(self._master, limit_s), name="yarn-bridge-watch")
            files = await self._containers.call(lambda: container_files(self._configuration, self._staging()))
            self._files = tuple(file for file in files if file.name not in NOT_FOR_WORKERS)
            await self._containers.run()

    async def keep_end(self, file: Path) -> None:
        """Copy it into the staging directory: the next attempt has another container."""
        try:
            await self._containers.call(lambda: self._staging().put(END_NAME, file))
        except FlintlockError as error:
            raise OSError(f"{END_NAME} of the staging directory: {error.public}") from error

    async def find_end(self, file: Path) -> None:
        """Read it in the staging directory, if there was an earlier attempt. Waits for the registration."""
        if self.attempt is not None and self.attempt.number == 1:
            return
        await self._containers.registered.wait()
        try:
            content = await self._containers.call(lambda: self._staging().read(END_NAME))
        except NotFound:
            return
        except FlintlockError as error:
            raise OSError(f"{END_NAME} of the staging directory: {error.public}") from error
        await asyncio.to_thread(write_whole, file, content, mode=0o600)

    async def finish(self, status: ApplicationStatus) -> None:
        """Unregister: YARN starts no other attempt. Then remove what the application has staged."""
        final = _FINAL[status]
        await self._containers.registered.wait()
        diagnostics = await asyncio.to_thread(_diagnostics, JobDirectory(self._state_dir), status)
        await self._containers.call(lambda: self._master.unregister(final, diagnostics))
        log.info(log_events.YARN_UNREGISTERED, status=final)
        try:
            await self._containers.call(lambda: self._staging().remove())
        except FlintlockError as error:
            log.warning(log_events.YARN_STAGING_NOT_REMOVED, directory=self._staging().url, reason=error.public)

    def _launch(self, container: Container) -> Launch:
        host, _, port = self._rpc_address.rpartition(":")
        settings = {
            TM_RESOURCE_ID.key: container.id,
            JM_RPC_ADDRESS.key: host,  # with ZooKeeper its leader counts, not this address
            JM_RPC_PORT.key: port,
        }
        flags = [f"-D {key}={value}" for key, value in settings.items()]
        module = "flintlock.entrypoints.taskmanager"
        launch = launch_of(module, ["--index", str(FIRST_INDEX), *flags], self._configuration, self._files)
        if not self._is_application:
            return launch
        return structs.replace(launch, environment={**launch.environment, APPLICATION_REST_VARIABLE: self._rest_url})


def unpack_job(archive: Path, state_dir: Path) -> None:
    """Put the job of a per-job cluster where it belongs, if it is for one. Idempotent. Raises OSError."""
    if archive.is_file() and not JobDirectory(state_dir).path.exists():
        with tarfile.open(archive) as tar:
            tar.extractall(state_dir, filter="data")


def _diagnostics(directory: JobDirectory, status: ApplicationStatus) -> str:
    """Return what a user of YARN reads: of a cluster for one job, how the job has ended."""
    end, description = directory.read_end(), directory.describe()
    if end is None or description is None:
        return f"the cluster has shut down: {status}"
    what = "program" if description.application else "job"
    text = f"{what} {description.name!r} ({description.job_id}): {status}"
    failure = msgspec.json.decode(end.job, type=_EndedProgram).failure
    if failure is not None:
        text += f": {render(failure)}"
    elif status is ApplicationStatus.FAILED:
        left = msgspec.json.decode(end.jobs, type=list[_EndedJob])
        failed = [f"{job.name!r} ({job.jobid})" for job in left if job.status is JobStatus.FAILED]
        text += f": it has left jobs that failed: {', '.join(failed)}"
    return text if len(text) <= _DIAGNOSTICS else f"{text[:_DIAGNOSTICS]}…"


class _EndedProgram(Struct):
    failure: Failure | None = None


class _EndedJob(Struct):
    jobid: str
    name: str
    status: JobStatus


async def serve(settings: ProcessSettings, bridge: subprocess.Popen[str] | None = None) -> ApplicationStatus:
    """Serve as a JobManager in a container of YARN. `bridge`: its JVM, if that was started already."""
    configuration = settings.configuration
    application_id, root = configuration.get(YARN_APPLICATION_ID), configuration.get(YARN_STAGING)
    set_variables(configuration, MASTER_VARIABLES, os.environ)
    with opening_bridge(os.environ, bridge) as jvm, closing(BridgedApplicationMaster(jvm)) as master:
        staging = cache(lambda: BridgedStaging(jvm(), application_id, root))
        unpack_job(Path.cwd() / JOB_NAME, settings.state_dir)
        platform = YarnPlatform(settings, master, staging, attempt_of(os.environ))
        return await ClusterEntrypoint(settings, platform=platform).run()
