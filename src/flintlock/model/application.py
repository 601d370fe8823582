"""How a cluster ended, as far as the processes that ran it can say."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

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


class ShutDownCluster(Struct, frozen=True, kw_only=True):
    """Client to Dispatcher: end all processes of the cluster."""

    status: ApplicationStatus = ApplicationStatus.SUCCEEDED
