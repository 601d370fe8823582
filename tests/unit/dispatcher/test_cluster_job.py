"""A cluster for one job: the job is there from the beginning, runs once, and the cluster ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    CODE,
    A,
    B,
    C,
    DispatcherHarness,
    graph,
    rows,
    settle,
    submission,
    until,
)

from flintlock.dispatcher.cluster_job import CLEANUP_PATIENCE_S, ClusterEnd, ClusterJob, ProgramJobs
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.leadership.leader_process import ApplicationLeaderProcessFactory
from flintlock.dispatcher.leadership.runner import DispatcherRunner
from flintlock.dispatcher.services import TermServices
from flintlock.ha.leader_info import LeaderAddresses
from flintlock.ha.protocols import Stores
from flintlock.model.application import ApplicationStatus, ShutDownCluster, is_program_key, program_key
from flintlock.model.commands import CancelJob
from flintlock.model.errors import Conflict, Invalid, KeyReused, Unavailable
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.jobs import JobQuery, ResultQuery, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.fakes.memory_ha import MemoryCluster
from flintlock.testing.virtual_time import run_virtual, virtual_time

RESULT_S: Final = 300.0


class Disk:
    """What outlives the HA data: the job, and the record of its end."""

    def __init__(self, job: JobGraph | None = None) -> None:
        self.job: Final = job or graph(A, blobs=[CODE])
        self.loads = 0
        self.ends: list[ClusterEnd] = []
        self.fail_with: OSError | None = None
        self.answers: Final = asyncio.Event()  # set; reads wait while it is not
        self.answers.set()

    @property
    def job_id(self) -> JobId:
        return self.job.job_id

    async def load(self) -> JobGraph:
        self.loads += 1
        return self.job

    async def read(self) -> ApplicationStatus | None:
        await asyncio.sleep(0)
        await self.answers.wait()
        return self.ends[0].status if self.ends else None

    async def write(self, end: ClusterEnd) -> None:
        await asyncio.sleep(0)
        if self.fail_with is not None:
            raise self.fail_with
        self.ends.append(end)


class JobCluster:
    """A JobManager of a per-job cluster; one that is made with the stores and the disk of another is its successor."""

    def __init__(
        self,
        stores: MemoryCluster | None = None,
        disk: Disk | None = None,
        *,
        attached: bool = False,
        program: bool = False,
    ) -> None:
        self.harness: Final = DispatcherHarness(stores)
        self.disk: Final = disk or Disk()
        self.current: Final = CurrentDispatcher()
        application = ClusterJob(
            source=self.disk,
            record=self.disk,
            result_timeout_s=RESULT_S if attached else 0.0,
            program_jobs=ProgramJobs(A) if program else None,
        )
        self.runner: Final = DispatcherRunner(
            self.harness.ha,
            ApplicationLeaderProcessFactory(self.harness.services, self._open_term, application),
            self.current,
            LeaderAddresses(rpc="jm:1", rest="http://jm"),
            removes_ha_data=True,
        )

    @asynccontextmanager
    async def _open_term(self, token: FencingToken, stores: Stores) -> AsyncGenerator[TermServices]:
        yield self.harness.term(stores)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[ApplicationStatus]]:
        """Contend and lead; on exit this JobManager has ended, as if it had been killed if it had not."""
        async with asyncio.timeout(30 * 86400), asyncio.TaskGroup() as tasks:
            contending = tasks.create_task(self.runner.run())
            await settle()
            self.harness.cluster.grant("jm")
            yield contending
            contending.cancel()

    async def job_master(self, job_id: JobId = A) -> FakeJobMasterRunner:
        """Wait for the JobMaster of a job."""
        await until(lambda: any(master.job.graph.job_id == job_id for master in self.harness.job_masters.made))
        await until(lambda: self.harness.runner(job_id).status is JobStatus.RUNNING)
        return self.harness.runner(job_id)

    async def submit(self, job_id: JobId, number: int) -> Submitted:
        """Submit a job, as the program does with its n-th one."""
        return await self.current.gateway.submit_job(submission(job_id, key=program_key(A, number), digest=job_id))


def fail(master: FakeJobMasterRunner) -> None:
    master.fail("no")


def is_empty(stores: MemoryCluster) -> bool:
    return not (stores.graphs or stores.results or stores.ended or stores.progress)


@virtual_time
async def test_the_job_is_there_as_soon_as_the_leader_is_and_the_cluster_ends_with_its_status() -> None:
    endings: dict[Callable[[FakeJobMasterRunner], None], ApplicationStatus] = {
        lambda master: master.finish(rows()): ApplicationStatus.SUCCEEDED,
        fail: ApplicationStatus.FAILED,
        FakeJobMasterRunner.cancel: ApplicationStatus.CANCELED,
    }
    for end, status in endings.items():
        cluster = JobCluster()
        async with cluster.running() as contending:
            await cluster.current.wait_for_leader()
            assert not (await cluster.current.gateway.job(JobQuery(job_id=A))).status.globally_terminal
            end(await cluster.job_master())
            assert await contending is status
        assert [end.status for end in cluster.disk.ends] == [status]
        assert is_empty(cluster.harness.cluster), "the HA data is removed"
        assert cluster.harness.blobs.references == {}


@virtual_time
async def test_the_record_of_the_end_has_the_rows_and_precedes_the_removal_of_the_ha_data() -> None:
    cluster = JobCluster()
    cluster.disk.fail_with = OSError("no space left on device")
    async with cluster.running() as contending:
        (await cluster.job_master()).finish(rows())
        await asyncio.sleep(100)
        assert not contending.done()
        assert not is_empty(cluster.harness.cluster)

        cluster.disk.fail_with = None
        assert await contending is ApplicationStatus.SUCCEEDED
    assert [(end.status, end.results) for end in cluster.disk.ends] == [(ApplicationStatus.SUCCEEDED, (rows(),))]


@virtual_time
async def test_another_job_is_refused_with_the_reason_and_nothing_of_it_is_stored() -> None:
    cluster = JobCluster()
    async with cluster.running():
        await cluster.job_master()
        for key in (None, "k"):
            with pytest.raises(Conflict, match=f"runs job {A} and ends with it, and accepts no other job"):
                await cluster.current.gateway.submit_job(submission(B, key=key, blobs=[CODE]))
        assert cluster.harness.cluster.graphs.keys() == {A}
        assert cluster.harness.blobs.references.keys() <= {A}


@virtual_time
async def test_a_cluster_that_is_shut_down_before_its_job_ends_keeps_everything_and_continues() -> None:
    cluster = JobCluster()
    async with cluster.running() as contending:
        await cluster.job_master()
        await cluster.current.gateway.shut_down_cluster(ShutDownCluster(status=ApplicationStatus.SUCCEEDED))
        assert await contending is ApplicationStatus.UNKNOWN
    assert cluster.disk.ends == []
    assert cluster.harness.cluster.graphs.keys() == {A}

    again = JobCluster(cluster.harness.cluster, cluster.disk)
    async with again.running() as contending:
        (await again.job_master()).finish(rows())
        assert await contending is ApplicationStatus.SUCCEEDED
    assert cluster.disk.loads == 1, "the stored job continues"


@virtual_time
async def test_a_leader_of_a_stored_job_does_not_wait_for_the_record_of_its_end() -> None:
    """Work that runs has its leader again while the record cannot be read yet; the cluster ends only after that."""
    cluster = JobCluster()
    async with cluster.running():
        await cluster.job_master()
    cluster.disk.answers.clear()

    again = JobCluster(cluster.harness.cluster, cluster.disk)
    async with again.running() as contending:
        (await again.job_master()).finish(rows())
        await asyncio.sleep(100)
        assert not contending.done()
        cluster.disk.answers.set()
        assert await contending is ApplicationStatus.SUCCEEDED


@virtual_time
async def test_the_result_is_kept_for_an_attached_client_until_it_says_so_or_is_gone_for_long() -> None:
    cluster = JobCluster(attached=True)
    async with cluster.running() as contending:
        (await cluster.job_master()).finish(rows())
        await asyncio.sleep(RESULT_S / 2)
        assert await cluster.current.gateway.result(ResultQuery(job_id=A, name="top")) == rows()
        await cluster.current.gateway.shut_down_cluster(ShutDownCluster())
        assert await contending is ApplicationStatus.SUCCEEDED

    forgotten = JobCluster(attached=True)
    async with forgotten.running() as contending:
        fail(await forgotten.job_master())
        await asyncio.sleep(RESULT_S + CLEANUP_PATIENCE_S)
        assert await contending is ApplicationStatus.FAILED


@virtual_time
async def test_a_cancelled_job_ends_the_cluster_as_canceled_not_with_the_status_of_the_request_to_end() -> None:
    cluster = JobCluster(attached=True)
    async with cluster.running() as contending:
        await cluster.job_master()
        await cluster.current.gateway.command(CancelJob(job_id=A))
        await until(lambda: bool(cluster.disk.ends))
        await cluster.current.gateway.shut_down_cluster(ShutDownCluster(status=ApplicationStatus.SUCCEEDED))
        assert await contending is ApplicationStatus.CANCELED


@virtual_time
async def test_files_that_no_task_manager_removes_delay_the_end_of_the_cluster_and_do_not_prevent_it() -> None:
    cluster = JobCluster()
    cluster.harness.resource_manager.fail_with = Unavailable("no TaskManager is registered")
    async with cluster.running() as contending:
        (await cluster.job_master()).finish(rows(), scratch=("work",))
        await asyncio.sleep(CLEANUP_PATIENCE_S / 2)
        assert not contending.done()
        await asyncio.sleep(CLEANUP_PATIENCE_S)
        assert await contending is ApplicationStatus.SUCCEEDED


@virtual_time
async def test_a_quarantined_job_has_not_ended_the_cluster_waits_for_the_operator() -> None:
    cluster = JobCluster()
    cluster.harness.lost_leaders = {A: 5}
    async with cluster.running() as contending:
        await cluster.current.wait_for_leader()
        await asyncio.sleep(3600)
        assert not contending.done()
        assert (await cluster.current.gateway.job(JobQuery(job_id=A))).status is JobStatus.FAILED

        await cluster.current.gateway.retry_quarantined(JobQuery(job_id=A))
        (await cluster.job_master()).finish(rows())
        assert await contending is ApplicationStatus.SUCCEEDED


@virtual_time
async def test_a_job_that_cannot_run_ends_the_process_with_the_reason() -> None:
    cluster = JobCluster(disk=Disk(graph(JobId("nonsense"))))
    with pytest.raises(ExceptionGroup) as raised:
        async with cluster.running() as contending:
            await asyncio.wait({contending})
    assert raised.value.subgroup(Invalid) is not None


async def run_with_a_death_after(steps: int) -> bool:
    """Kill the first JobManager after so many steps of its stores; return whether it ran that long."""
    first = JobCluster()
    finished: list[JobId] = []

    def finish_soon(master: FakeJobMasterRunner) -> None:
        def finish() -> None:
            if not master.suspended:
                finished.append(master.job.graph.job_id)
                master.finish(rows(), scratch=("work",))

        asyncio.get_running_loop().call_later(1, finish)

    first.harness.job_masters.prepare = finish_soon
    async with first.running() as contending:
        first.harness.faults.die_after(steps)
        await asyncio.wait({contending}, timeout=200)
    died = first.harness.faults.dead
    ended = bool(first.disk.ends)

    second = JobCluster(first.harness.cluster, first.disk)
    second.harness.job_masters.prepare = finish_soon
    async with second.running() as contending:
        assert await contending is ApplicationStatus.SUCCEEDED
    made = second.harness.job_masters.made
    assert not ended or not made, "a job that has ended does not run again"
    assert len(first.disk.ends) == 1, "a job ends once"
    assert [(end.status, end.results) for end in first.disk.ends] == [(ApplicationStatus.SUCCEEDED, (rows(),))]
    assert is_empty(second.harness.cluster), "the HA data is removed"
    return died


def test_the_job_runs_once_and_nothing_is_left_wherever_the_jobmanager_dies() -> None:
    deaths = 0
    while run_virtual(run_with_a_death_after(deaths)):
        deaths += 1

    assert deaths > 20


@virtual_time
async def test_the_job_is_stored_with_the_reading_of_the_clock_that_its_timeout_counts_on() -> None:
    """Also if the JobManager dies before it has recovered anything, and the next one's clock is a day ahead."""
    first = JobCluster()
    stores = first.harness.stores()
    job = ClusterJob(source=first.disk, record=first.disk, result_timeout_s=0.0)
    await job.prepare(stores, first.harness.services, first.harness.term(stores).gate)

    second = JobCluster(first.harness.cluster, first.disk)
    second.harness.clock_error_ms = 86_400_000
    async with second.running():
        master = await second.job_master()

        assert 0 <= master.cluster_ms() - master.job.submitted_at_ms < 1000


@virtual_time
async def test_a_jobmanager_that_is_started_after_the_end_runs_nothing() -> None:
    """Its HA data is gone, and a supervisor that was paused starts it once more."""
    cluster = JobCluster()
    async with cluster.running() as contending:
        fail(await cluster.job_master())
        assert await contending is ApplicationStatus.FAILED

    again = JobCluster(cluster.harness.cluster, cluster.disk, attached=True)
    async with again.running() as contending:
        assert await contending is ApplicationStatus.FAILED
    assert again.harness.job_masters.made == []
    with pytest.raises(Unavailable):
        await again.current.gateway.job(JobQuery(job_id=A))


# Application clusters


@virtual_time
async def test_an_application_ends_with_the_last_of_its_jobs_and_accepts_none_after_its_program() -> None:
    cluster = JobCluster(program=True)
    async with cluster.running() as contending:
        program = await cluster.job_master()
        await cluster.submit(B, 1)
        other = await cluster.job_master(B)
        program.finish()
        await asyncio.sleep(100)
        assert not contending.done(), "a job of its still runs"
        with pytest.raises(Conflict, match=f"the program of this application, job {A}, has ended"):
            await cluster.submit(C, 2)
        other.finish(rows())
        assert await contending is ApplicationStatus.SUCCEEDED
    (end,) = cluster.disk.ends
    assert [(job.job_id, job.status) for job in end.jobs] == [(B, JobStatus.FINISHED)]
    assert is_empty(cluster.harness.cluster)


@virtual_time
async def test_a_program_that_runs_again_finds_its_nth_job_whatever_differs_but_the_name() -> None:
    cluster = JobCluster(program=True)
    async with cluster.running():
        await cluster.job_master()
        assert await cluster.submit(B, 1) == Submitted(job_id=B)
        (await cluster.job_master(B)).finish(rows())
        await settle()

    again = JobCluster(cluster.harness.cluster, cluster.disk, program=True)
    async with again.running() as contending:
        program = await again.job_master()
        assert await again.submit(C, 1) == Submitted(job_id=B, existing=True), "another id and digest, the same number"
        other = submission(C, key=program_key(A, 1))
        with pytest.raises(KeyReused):
            await again.current.gateway.submit_job(
                structs.replace(other, graph=structs.replace(other.graph, name="another"))
            )
        assert await again.submit(C, 2) == Submitted(job_id=C)
        assert [master.job.graph.job_id for master in again.harness.job_masters.made].count(B) == 0
        (await again.job_master(C)).finish(rows())
        program.finish()
        assert await contending is ApplicationStatus.SUCCEEDED


def test_only_numbered_keys_of_programs_are_compared_by_name() -> None:
    assert is_program_key(program_key(A, 12))
    for key in ("k", "application-1-1", f"application-{A}-", f"application-{A}-x", f"{A}-1"):
        assert not is_program_key(key)


@virtual_time
async def test_the_jobs_of_a_program_that_failed_or_was_cancelled_are_cancelled() -> None:
    for end, status in ((fail, ApplicationStatus.FAILED), (FakeJobMasterRunner.cancel, ApplicationStatus.CANCELED)):
        cluster = JobCluster(program=True)
        async with cluster.running() as contending:
            program = await cluster.job_master()
            await cluster.submit(B, 1)
            await cluster.job_master(B)
            end(program)
            assert await contending is status
        (recorded,) = cluster.disk.ends
        assert [job.status for job in recorded.jobs] == [JobStatus.CANCELED]


@virtual_time
async def test_a_job_that_fails_after_the_program_has_ended_is_the_applications_failure() -> None:
    """One that failed before, the program could see."""
    cluster = JobCluster(program=True)
    async with cluster.running() as contending:
        program = await cluster.job_master()
        await cluster.submit(B, 1)
        fail(await cluster.job_master(B))
        await asyncio.sleep(1)
        program.finish()
        assert await contending is ApplicationStatus.SUCCEEDED

    cluster = JobCluster(program=True)
    async with cluster.running() as contending:
        program = await cluster.job_master()
        await cluster.submit(B, 1)
        other = await cluster.job_master(B)
        program.finish()
        await asyncio.sleep(1)
        fail(other)
        assert await contending is ApplicationStatus.FAILED


@virtual_time
async def test_a_leader_that_takes_over_after_the_programs_end_waits_for_its_jobs() -> None:
    cluster = JobCluster(program=True)
    async with cluster.running():
        program = await cluster.job_master()
        await cluster.submit(B, 1)
        await cluster.job_master(B)
        program.finish()
        await asyncio.sleep(5)

    again = JobCluster(cluster.harness.cluster, cluster.disk, program=True)
    async with again.running() as contending:
        other = await again.job_master(B)
        assert [master.job.graph.job_id for master in again.harness.job_masters.made] == [B], "the program has ended"
        fail(other)
        assert await contending is ApplicationStatus.FAILED


@virtual_time
async def test_a_leader_that_takes_over_after_the_programs_end_accepts_no_job_from_its_first_moment() -> None:
    jobs = ProgramJobs(A)
    assert jobs.refuse(B) is None
    cluster = JobCluster(program=True)
    async with cluster.running():
        program = await cluster.job_master()
        await cluster.submit(B, 1)
        await cluster.job_master(B)
        program.finish()
        await asyncio.sleep(5)

    stores = cluster.harness.stores()
    await ClusterJob(source=cluster.disk, record=cluster.disk, result_timeout_s=0.0, program_jobs=jobs).prepare(
        stores, cluster.harness.services, cluster.harness.term(stores).gate
    )
    assert jobs.refuse(C) is not None
    assert jobs.refuse(A) is None
