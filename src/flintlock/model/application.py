"""Applications: how the cluster of one ended, and how its program finds the jobs that it has submitted."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

from flintlock.model.ids import JobId, is_job_id
from flintlock.model.states import JobStatus


class ApplicationStatus(StrEnum):
    """Why a cluster shuts down. It decides the exit code of its processes, and whether its HA data may be removed."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    UNKNOWN = "UNKNOWN"  # a process was stopped or has failed: the cluster may be started again

    @property
    def is_final(self) -> bool:
        """Whether the cluster has ended for good. Its HA data must stay otherwise: the next start recovers from it."""
        return self is not ApplicationStatus.UNKNOWN


#: How a cluster ends whose only job has ended so.
STATUS_OF_JOB: Final = {
    JobStatus.FINISHED: ApplicationStatus.SUCCEEDED,
    JobStatus.FAILED: ApplicationStatus.FAILED,
    JobStatus.CANCELED: ApplicationStatus.CANCELED,
}


#: The state directory of an application cluster, in the environment of its user code: clients there use this cluster.
APPLICATION_VARIABLE: Final = "FLINTLOCK_APPLICATION_DIR"

#: The REST address of an application's JobManager, for TaskManagers whose state directory is not the JobManager's.
APPLICATION_REST_VARIABLE: Final = "FLINTLOCK_APPLICATION_REST"

#: Which job a running program is, and its process: `<job id> <pid>`. In the environment of the program.
PROGRAM_VARIABLE: Final = "FLINTLOCK_PROGRAM"

_PROGRAM_KEY: Final = "application-"


def program_key(program: JobId, number: int) -> str:
    """Return the idempotency key of the n-th job that a program of an application submits, however often it runs."""
    return f"{_PROGRAM_KEY}{program}-{number}"


def is_program_key(key: str) -> bool:
    """Return whether a key is that of a job that a program has submitted by its number."""
    program, _, number = key.removeprefix(_PROGRAM_KEY).partition("-")
    return key.startswith(_PROGRAM_KEY) and is_job_id(program) and number.isdecimal()


class ShutDownCluster(Struct, frozen=True, kw_only=True):
    """Client to Dispatcher: end all processes of the cluster."""

    status: ApplicationStatus = ApplicationStatus.SUCCEEDED
