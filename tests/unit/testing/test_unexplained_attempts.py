"""The simulation's check of attempts finds one without a cause, and remembers nothing of jobs that are removed."""

from __future__ import annotations

import gc

from tests.unit.dispatcher.dispatcher_harness import A, B

from flintlock.ha import payloads
from flintlock.model.ids import InstanceId, JobId, RegionId, TaskManagerId
from flintlock.model.tasks import RegionPhase, RegionRecord
from flintlock.testing.fakes.memory_ha import MemoryCluster
from flintlock.testing.simulation.checks.record_checks import UnexplainedAttempts


def _store(cluster: MemoryCluster, job_id: JobId, attempt: int) -> None:
    record = RegionRecord(
        job_id=job_id,
        region=RegionId(0),
        phase=RegionPhase.DEPLOYED,
        attempt=attempt,
        task_manager=TaskManagerId("tm"),
        instance=InstanceId("instance-1"),
    )
    cluster.progress.setdefault(job_id, {})[RegionId(0)] = payloads.REGION_RECORD.encode(record)


def test_an_attempt_is_found_whose_predecessor_has_no_recorded_end() -> None:
    cluster = MemoryCluster()
    attempts = UnexplainedAttempts(cluster)

    _store(cluster, A, 0)
    attempts.check()
    assert attempts.violations == []

    _store(cluster, A, 1)
    attempts.check()
    attempts.check()
    assert attempts.violations == [
        f"attempt 1 at region 0 of job {A} is recorded before the end of the one that it follows"
    ]


def test_the_records_of_a_removed_job_are_forgotten() -> None:
    cluster = MemoryCluster()
    attempts = UnexplainedAttempts(cluster)
    _store(cluster, A, 0)
    attempts.check()
    payload = cluster.progress.pop(A)[RegionId(0)]

    _store(cluster, B, 0)
    attempts.check()

    assert not any(isinstance(each, dict) and payload in each.values() for each in gc.get_referrers(payload))
