"""The HA services of a JobManager, from the backend that the configuration names."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    CHECKPOINTS_DIR,
    HA_RECOVERY,
    HEARTBEAT_TIMEOUT,
    RUNNER_DIRECTORY,
    RUNNER_USER,
    SAVEPOINTS_DIR,
    WORK_DIR,
)
from flintlock.entrypoints.process import ProcessSettings
from flintlock.gateways.leader import LeaderGateway, LeaderLivenessProbe
from flintlock.ha.backends import ha_backend
from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.protocols import HaServices
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes.process import start_time_of
from flintlock.host.runner_user import RunnerFiles, runner_files
from flintlock.model.errors import FlintlockError, Invalid, Unavailable
from flintlock.model.ids import session_of
from flintlock.monitoring.blocking_jobs import BlockingJobs
from flintlock.rpc.transport import Connector
from flintlock.security.cluster_secret import Purpose
from flintlock.taskmanager.lease import YIELD_PART


@asynccontextmanager
async def ha_services(
    settings: ProcessSettings, clock_ms: Callable[[], int], connector: Connector
) -> AsyncGenerator[HaServices]:
    """Open the services that `high-availability.type` names. Raises Invalid for options that are missing or clash."""
    configuration = settings.configuration
    check_leases(configuration)
    async with ha_backend(configuration).services(
        configuration,
        settings.state_dir,
        new_session=partial(_new_session, _cluster_name(settings)),
        clock_ms=clock_ms,
        boot_time_s=boot_time_s,
        leader_answers=partial(_leader_answers, connector),
        is_blocked=partial(_is_blocked, settings),
    ) as services:
        check_leases(configuration, granted_s=services.leader_timeout_s)
        yield services


def _is_blocked(settings: ProcessSettings, pid: int) -> bool:
    return BlockingJobs(blocking_jobs_dir(settings)).is_blocked(process_name(pid))


def process_name(pid: int) -> str:
    """Return what identifies a process of this machine in records of blocking jobs, also when its pid is used again."""
    return f"{pid}-{hashlib.sha256(str(start_time_of(pid)).encode()).hexdigest()[:12]}"


async def _leader_answers(connector: Connector, leader: LeaderInfo) -> bool:
    """Call the leader; return whether it answered."""
    try:
        answer = await connector.connect(LeaderGateway, leader.rpc).check_liveness(
            LeaderLivenessProbe(token=leader.token)
        )
    except Unavailable:
        return False
    except FlintlockError:
        return True  # a process of another version, which does not know the call: it answered
    return answer.in_term


def check_leases(configuration: Configuration, granted_s: float | None = None) -> None:
    """Check that running work outlives a change of leader. Raises Invalid, naming keys and values.

    A TaskManager stops its work at YIELD_PART of a lease that is not renewed. A silent leader is replaced after its
    timeout (`granted_s`, if another one was granted than is configured), and its successor accepts TaskManagers once it
    has recovered the jobs.
    """
    timeout = ha_backend(configuration).leader_timeout
    lease_s, wanted_s, recovery_s = (configuration.get(each) for each in (HEARTBEAT_TIMEOUT, timeout, HA_RECOVERY))
    silence_s = wanted_s if granted_s is None else granted_s
    if lease_s * YIELD_PART > silence_s + recovery_s:
        return
    configured = "" if silence_s == wanted_s else f", as granted, not {wanted_s:g} s as configured"
    raise Invalid(
        f"{HEARTBEAT_TIMEOUT.key} ({lease_s:g} s) is too short: every change of leader would stop the work. "
        f"{YIELD_PART:g} of it ({lease_s * YIELD_PART:g} s) must be more than {timeout.key} "
        f"({silence_s:g} s{configured}) and {HA_RECOVERY.key} ({recovery_s:g} s) together"
    )


def work_dir(settings: ProcessSettings) -> str:
    """Return where blocking results are: one place for all JobManagers, or a change of leader would lose them."""
    configuration = settings.configuration
    shared = ha_backend(configuration).shared_directory(configuration)
    configured = configuration.get(WORK_DIR) or (f"{shared.rstrip('/')}/work" if shared else "")
    files = runner_files_of(settings)
    return configured or str(settings.state_dir / "work" if files is None else files.work)


def checkpoints_dir(settings: ProcessSettings) -> str:
    """Return where the checkpoints of streaming jobs are: one place for all TaskManagers."""
    configuration = settings.configuration
    shared = ha_backend(configuration).shared_directory(configuration)
    configured = configuration.get(CHECKPOINTS_DIR) or (f"{shared.rstrip('/')}/checkpoints" if shared else "")
    files = runner_files_of(settings)
    return configured or str(settings.state_dir / "checkpoints" if files is None else files.checkpoints)


def unshared_checkpoints(settings: ProcessSettings) -> str:
    """Return where checkpoints are if that was not chosen, and is a directory of each machine; "" otherwise."""
    configuration = settings.configuration
    chosen = configuration.get(CHECKPOINTS_DIR) or ha_backend(configuration).shared_directory(configuration)
    return "" if chosen else checkpoints_dir(settings)


def savepoints_dir(settings: ProcessSettings) -> str:
    """Return where savepoints are made: one place for all JobManagers."""
    configuration = settings.configuration
    shared = ha_backend(configuration).shared_directory(configuration)
    configured = configuration.get(SAVEPOINTS_DIR) or (f"{shared.rstrip('/')}/savepoints" if shared else "")
    return configured or str(settings.state_dir / "savepoints")


def runner_files_of(settings: ProcessSettings) -> RunnerFiles | None:
    """Return where the files of `taskmanager.runner.user` are; None if user code has no user of its own."""
    user = settings.configuration.get(RUNNER_USER)
    return runner_files(settings.configuration.get(RUNNER_DIRECTORY), settings.state_dir, user) if user else None


def blocking_jobs_dir(settings: ProcessSettings) -> Path:
    """Return where jobs that block a leader are recorded, if the JobManagers have one state directory."""
    return settings.state_dir / "blocking-jobs"


def _cluster_name(settings: ProcessSettings) -> str:
    """Return how fencing tokens name the cluster. Not a secret, and derived from one where nothing else is unique."""
    identity = ha_backend(settings.configuration).cluster_identity(settings.configuration).encode()
    if not identity:
        identity = settings.secret.key(Purpose.CLUSTER_NAME)
    return hashlib.sha256(identity).hexdigest()[:16]


def _new_session(cluster: str) -> str:
    return session_of(cluster, uuid.uuid4().hex)
