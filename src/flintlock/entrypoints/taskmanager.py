"""The TaskManager process: slots, a Spark engine, a template for runners, and the registration with the leader.

A watchdog runs beside it, and ends the engine and the runners when their lease ends, or when the TaskManager has ended.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import sys
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import psutil

from flintlock.blob.cache import BlobCache
from flintlock.config.configuration import WORKER_VARIABLES, Configuration
from flintlock.config.files import cache_directory
from flintlock.config.options import (
    CHECKPOINTS_DIR,
    RUNNER_USER,
    SECRETS_DIRECTORY,
    TM_BIND_HOST,
    TM_ENGINE_MEMORY,
    TM_HOST,
    TM_RESOURCE_ID,
    TM_RPC_PORT,
    TM_SLOTS,
    UNREGISTERED_TIMEOUT,
    YARN_APPLICATION_ID,
)
from flintlock.entrypoints.engines import EngineLauncherFactory, engine_launcher
from flintlock.entrypoints.high_availability import checkpoints_dir, runner_files_of, work_dir
from flintlock.entrypoints.log_files import rotating_logs
from flintlock.entrypoints.process import ProcessSettings, cluster_versions, set_variables, start, write_json
from flintlock.entrypoints.serving.rpc_security import rpc_security
from flintlock.entrypoints.workers.local_workers import FIRST_INDEX
from flintlock.gateways.blobs import BlobGateway
from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.ha.backends import ha_backend
from flintlock.host.addresses import reached_at
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.files.job_directory import JobDirectory
from flintlock.host.files.own_cluster import OwnCluster, write_own_cluster
from flintlock.host.files.run_directory import locked_run_directory, permanent_id
from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.host.processes.children import reap_leftovers
from flintlock.host.processes.pid_files import TaskManagerFile, identity
from flintlock.host.processes.process import LocalProcesses
from flintlock.host.processes.process_tree import TAG_VARIABLE
from flintlock.host.processes.watchdog_client import running_watchdog
from flintlock.host.runner_user import RunnerUser, find_runner_user
from flintlock.model.application import APPLICATION_REST_VARIABLE, APPLICATION_VARIABLE
from flintlock.model.ids import BlobKey, InstanceId, TaskManagerId
from flintlock.model.slots import Hardware, TaskManagerRegistration
from flintlock.monitoring.loop_monitor import LoopMonitor
from flintlock.rest.secrets import effective_settings
from flintlock.rpc.client import RpcChannels
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.server import RpcServer
from flintlock.taskmanager.endpoint import TaskManager
from flintlock.taskmanager.services import TaskManagerServices, make_linked_log, make_log_directory
from flintlock.taskmanager.token_guard import TokenGuard

G = TypeVar("G")
_REPORT_TIMEOUT_S: Final = 30.0
_BLOB_TIMEOUT_S: Final = 300.0  # before it sends the first part, a new leader fetches the whole blob and checks it


async def serve(settings: ProcessSettings, launcher: EngineLauncherFactory | None = None) -> None:
    """Serve as TaskManager until cancelled. Raises Refused if another process uses its run directory.

    `launcher`: of other engines than those of Spark.
    """
    run_dir = settings.state_dir / "run" / f"taskmanager-{settings.index}"
    with locked_run_directory(run_dir):
        await _serve(settings, run_dir, launcher or engine_launcher())


async def _serve(settings: ProcessSettings, run_dir: Path, launcher: EngineLauncherFactory) -> None:
    configuration, state_dir, name = settings.configuration, settings.state_dir, run_dir.name
    reap_leftovers(run_dir)
    user, files_dir = _runner_user(settings, run_dir)
    engine_log = state_dir / "log" / f"{name}-engine.log"
    is_worker = settings.index >= FIRST_INDEX
    is_aggregated = user is None and bool(configuration.get(YARN_APPLICATION_ID))
    slots = configuration.get(TM_SLOTS) or os.cpu_count() or 1
    tag = os.environ[TAG_VARIABLE] = uuid.uuid4().hex  # every process that is started from here on inherits it
    _set_application(settings)
    set_variables(configuration, WORKER_VARIABLES, os.environ)
    bind = configuration.get(TM_BIND_HOST)
    security = rpc_security(settings, bind or configuration.get(TM_HOST), TM_BIND_HOST if bind else TM_HOST)
    async with (
        rotating_logs(configuration, state_dir / "log", engine_log),
        running_watchdog(run_dir, tag) as watchdog,
        ha_backend(configuration).leader_finder(configuration, state_dir) as finder,
        _rpc_server(configuration, security) as rpc,
        RpcChannels(security=security) as channels,
        LoopMonitor(),  # last: a start imports much
    ):
        guard = TokenGuard(boot_time_s)

        def leader(gateway: type[G], timeout_s: float = _REPORT_TIMEOUT_S) -> G:
            return channels.connect(gateway, finder.find(), lambda: guard.token, timeout_s)

        def resource_manager() -> ResourceManagerGateway:
            return channels.connect(ResourceManagerGateway, finder.follow(), None, _REPORT_TIMEOUT_S)

        blobs = BlobCache(files_dir / "blobs", lambda: leader(BlobGateway, _BLOB_TIMEOUT_S))
        services = TaskManagerServices(
            offer=TaskManagerRegistration(
                id=task_manager_id(settings, run_dir),
                instance=_new_instance(),
                address=rpc.address,
                slots=slots,
                versions=cluster_versions(),
                hardware=_hardware(configuration),
                engine=configuration.spark().get("spark.master", f"local[{slots}]"),
                worker=is_worker,
            ),
            launcher=launcher(
                slots=slots,
                configuration=configuration,
                run_dir=run_dir,
                files_dir=files_dir,
                user=user,
                log_file=engine_log,
                work_dir=work_dir(settings),
                checkpoints_dir=checkpoints_dir(settings),
                archive_dir=cache_directory(),
                secrets_dir=Path(configuration.get(SECRETS_DIRECTORY) or state_dir / "secrets"),
            ),
            resource_manager=resource_manager,
            leader_moved=finder.moved,
            job_masters=lambda: leader(JobMasterGateway),
            fetch_blob=partial(_fetch_shared, blobs, user) if user is not None else blobs.fetch,
            pin_blobs=blobs.pin,
            log_directory=state_dir / "log" / "jobs",
            prepare_log=make_linked_log if is_aggregated else make_log_directory,
            new_instance=_new_instance,
            dropped_log_lines=lambda: settings.log_output.dropped,
            free_memory=lambda: psutil.virtual_memory().available,
            clock_s=boot_time_s,
            set_watchdog_deadline=watchdog.watch,
            end_process=settings.abort,
            processes=LocalProcesses(),
            unregistered_timeout_s=configuration.get(UNREGISTERED_TIMEOUT) if is_worker else math.inf,
            process_logs=ProcessLogs.of(state_dir / "log", engine=engine_log),
            settings=effective_settings(configuration),
        )
        task_manager = TaskManager(services, guard)
        rpc.serve(TaskManagerGateway, task_manager, guard.check)
        pid_file = state_dir / "run" / f"{name}.json"
        own = identity(os.getpid())
        write_json(pid_file, TaskManagerFile(pid=own.pid, start_time=own.start_time, rpc=rpc.address))
        try:
            await task_manager.run()
        finally:
            with suppress(FileNotFoundError):
                pid_file.unlink()


def _set_application(settings: ProcessSettings) -> None:
    """Let user code of an application cluster find its own cluster, and that of any other cluster none."""
    state_dir = settings.state_dir
    description = JobDirectory(state_dir).describe()
    os.environ.pop(APPLICATION_VARIABLE, None)
    rest = os.environ.pop(APPLICATION_REST_VARIABLE, "")
    if rest:
        write_own_cluster(state_dir, OwnCluster(rest=rest, settings=settings.configuration.as_dict()))
    if rest or (description is not None and description.application):
        os.environ[APPLICATION_VARIABLE] = str(state_dir)


def task_manager_id(settings: ProcessSettings, run_dir: Path) -> TaskManagerId:
    """Return the permanent id of the TaskManager with this run directory, which this process holds. Raises OSError."""
    configured = settings.configuration.get(TM_RESOURCE_ID)
    return TaskManagerId(configured or f"{socket.gethostname()}-{permanent_id(run_dir)}-{settings.index}")


def _runner_user(settings: ProcessSettings, run_dir: Path) -> tuple[RunnerUser | None, Path]:
    """Return whom user code runs as (None: the user of this process), and where that user's files are.

    Raises Refused if user code cannot run as the configured user.
    """
    files = runner_files_of(settings)
    if files is None:
        return None, run_dir
    user = find_runner_user(settings.configuration.get(RUNNER_USER))
    # A place for checkpoints that was not chosen is not required: a cluster without streaming jobs never writes there.
    chosen = (work_dir, checkpoints_dir) if settings.configuration.has(CHECKPOINTS_DIR) else (work_dir,)
    shared = [path(settings).removeprefix("file://") for path in chosen]
    files.prepare(run_dir.name, user, [directory for directory in shared if "://" not in directory])
    return user, files.of(run_dir.name)


async def _fetch_shared(blobs: BlobCache, user: RunnerUser, key: BlobKey) -> Path:
    """Return a local copy of a blob that the user can read. Raises as `BlobCache.fetch` does, and OSError."""
    path = await blobs.fetch(key)
    await asyncio.to_thread(user.share, path)
    return path


def _rpc_server(configuration: Configuration, security: RpcSecurity) -> RpcServer:
    host, port = configuration.get(TM_HOST), configuration.get(TM_RPC_PORT)
    return RpcServer(reached_at(host), port, security=security, bind=configuration.get(TM_BIND_HOST) or host)


def _hardware(configuration: Configuration) -> Hardware:
    memory = psutil.virtual_memory()
    return Hardware(
        cpu_cores=os.cpu_count() or 1,
        physical_memory=memory.total,
        free_memory=memory.available,
        managed_memory=configuration.get(TM_ENGINE_MEMORY),
    )


def _new_instance() -> InstanceId:
    return InstanceId(uuid.uuid4().hex)


if __name__ == "__main__":
    sys.exit(start("taskmanager", serve))
