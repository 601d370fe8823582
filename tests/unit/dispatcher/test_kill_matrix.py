"""A leader that dies between any two steps of a job: what was promised holds under the next one."""

import asyncio

from tests.unit.dispatcher.dispatcher_harness import CODE, A, B, DispatcherHarness, empty, rows, submission

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.ids import JobId
from flintlock.model.jobs import AwaitJob, JobQuery, ResultQuery, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.job_lists import all_jobs
from flintlock.testing.virtual_time import run_virtual


class Client:
    """Submits with a key, polls its job until it has ended, and records the answers."""

    def __init__(self) -> None:
        self.acknowledged: Submitted | None = None
        self.statuses: list[JobStatus] = []

    async def use(self, dispatcher: Dispatcher, job_id: JobId) -> None:
        answer = await dispatcher.submit_job(submission(job_id, key="k", blobs=[CODE]))
        assert self.acknowledged is None or answer == Submitted(job_id=self.acknowledged.job_id, existing=True)
        self.acknowledged = self.acknowledged or answer
        while True:
            job = await dispatcher.await_job(AwaitJob(job_id=answer.job_id, wait_s=0.3))
            self.statuses.append(job.status)
            self.statuses += [line.status for line in (await all_jobs(dispatcher))]
            if job.status.globally_terminal:
                return


def finish_soon(runner: FakeJobMasterRunner) -> None:
    def finish() -> None:
        if not runner.suspended:
            runner.finish(rows(), scratch=("work",))

    asyncio.get_running_loop().call_later(1, finish)


async def run_with_a_death_after(steps: int) -> bool:
    """Kill the first leader after so many steps of its stores; return whether it ran that long."""
    harness, client = DispatcherHarness(), Client()
    harness.job_masters.prepare = finish_soon
    async with asyncio.TaskGroup() as tasks, harness.leading() as dispatcher:
        harness.faults.die_after(steps)
        use = tasks.create_task(client.use(dispatcher, A))
        await asyncio.sleep(10)
        use.cancel()
    died = harness.faults.dead
    harness.faults.clear_death()
    harness.blobs.references.clear()  # what a process knows of references goes with it

    async with harness.leading() as dispatcher:
        if client.acknowledged is not None:
            assert (await dispatcher.job(JobQuery(job_id=A))).graph.job_id == A, "an acknowledged job is never lost"
        await client.use(dispatcher, B)
        await empty(dispatcher)
        assert client.acknowledged is not None
        job_id = client.acknowledged.job_id
        assert await dispatcher.result(ResultQuery(job_id=job_id, name="top")) == rows()
        assert [line.job_id for line in (await all_jobs(dispatcher))] == [job_id], "one key is one job"

    first_end = client.statuses.index(JobStatus.FINISHED)
    assert set(client.statuses[first_end:]) == {JobStatus.FINISHED}, "a terminal state never changes"
    cluster = harness.cluster
    assert (cluster.graphs, cluster.progress, harness.blobs.references) == ({}, {}, {}), "nothing is left over"
    assert cluster.results.keys() == cluster.ended.keys() == {job_id}
    assert not cluster.results[job_id].dirty
    assert harness.faults.seen.count("results.create_dirty:after") <= 1, "a job ends once"
    assert {message.directories for message in harness.resource_manager.removed} == {("work",)}
    return died


def test_guarantees_hold_wherever_the_leader_dies() -> None:
    deaths = 0
    while run_virtual(run_with_a_death_after(deaths)):
        deaths += 1

    assert deaths > 12  # key, put, expire, archive, dirty, three removals, clean: before and after each
