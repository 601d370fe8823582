"""Which JobMaster runs which job in this process."""

from __future__ import annotations

from typing import Final, Protocol, cast

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.model.errors import NotFound
from flintlock.model.ids import JobId
from flintlock.rpc.description import Message
from flintlock.rpc.routing import routed


class JobMasterDirectory:
    """The JobMasters of one term, by job. Calls of its `gateway` go to the JobMaster of the job that they name."""

    def __init__(self) -> None:
        self.gateway: Final[JobMasterGateway] = routed(JobMasterGateway, self._resolve)
        self._masters: Final[dict[JobId, JobMasterGateway]] = {}  # written by each JobMaster as it starts and ends

    def register(self, job_id: JobId, master: JobMasterGateway) -> None:
        """Make `master` the one for this job."""
        self._masters[job_id] = master

    def unregister(self, job_id: JobId, master: JobMasterGateway) -> None:
        """Remove `master`, unless another one has been registered for the job since."""
        if self._masters.get(job_id) is master:
            del self._masters[job_id]

    def _resolve(self, message: Message) -> JobMasterGateway:
        job_id = cast("_NamesJob", message).job_id
        master = self._masters.get(job_id)
        if master is None:
            raise NotFound(f"no JobMaster runs job {job_id}")
        return master


class _NamesJob(Protocol):
    """Every message to a JobMaster names its job."""

    @property
    def job_id(self) -> JobId: ...
