"""What must hold of stored progress at any time: no attempt is recorded before the end of the one that it follows."""

from __future__ import annotations

from typing import Final

from flintlock.ha import payloads
from flintlock.model.ids import JobId, RegionId
from flintlock.model.tasks import RegionPhase
from flintlock.testing.fakes.memory_ha import MemoryCluster


class UnexplainedAttempts:
    """Compares each new record of an attempt with the stored history of its job."""

    def __init__(self, records: MemoryCluster) -> None:
        self._records: Final = records
        self._checked: dict[tuple[JobId, RegionId], bytes] = {}  # the latest record of each region that is stored
        self.violations: Final[list[str]] = []

    def check(self) -> None:
        """Check the records that were written since the last call. A leader that dies now leaves them as they are.

        Only records that are still stored are remembered.
        """
        checked, self._checked = self._checked, {}
        for job_id, regions in self._records.progress.items():
            for region, payload in regions.items():
                self._checked[job_id, region] = payload
                if checked.get((job_id, region)) is not payload:
                    self._check(job_id, payload)

    def _check(self, job_id: JobId, payload: bytes) -> None:
        record = payloads.REGION_RECORD.decode(payload, f"record of job {job_id}")
        if record.phase is not RegionPhase.DEPLOYED or not record.attempt:
            return
        stored = self._records.histories.get(job_id)
        history = None if stored is None else payloads.JOB_HISTORY.decode(stored, f"history of job {job_id}")
        known = () if history is None else history.attempts
        if not any((each.region, each.attempt) == (record.region, record.attempt - 1) for each in known):
            what = f"attempt {record.attempt} at region {record.region} of job {job_id}"
            self.violations.append(f"{what} is recorded before the end of the one that it follows")
