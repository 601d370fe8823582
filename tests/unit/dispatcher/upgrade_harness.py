"""A job that takes the place of another one, under a Dispatcher whose JobMasters run nothing."""

from __future__ import annotations

from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B, C, DispatcherHarness, until
from tests.unit.dispatcher.test_savepoints import streaming

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.ha import payloads
from flintlock.model.commands import DrainTask
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, vertex_id
from flintlock.model.jobs import AwaitJob, JobQuery, JobSnapshot, JobSubmission
from flintlock.model.states import JobStatus
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner

LOCATION = f"/savepoints/{A[:6]}-{B}"
BACK = JobId(vertex_id(B, "the job before the upgrade"))


def upgrade(former: JobGraph) -> JobSubmission:
    """Return the submission of a job that takes the place of A."""
    vertices = tuple(structs.replace(vertex, id=vertex_id(B, vertex.name)) for vertex in former.vertices)
    config = {"execution.upgrade-of": A}
    return JobSubmission(graph=structs.replace(former, job_id=B, name="another name", vertices=vertices, config=config))


def other_upgrade(former: JobGraph) -> JobSubmission:
    """Return the submission of another job that takes the place of A."""
    return JobSubmission(graph=structs.replace(upgrade(former).graph, job_id=C))


def former_graph(harness: DispatcherHarness, job_id: JobId = A) -> JobGraph:
    return payloads.STORED_JOB.decode(harness.cluster.graphs[job_id], "the job").graph


def runner_of(harness: DispatcherHarness, job_id: JobId) -> FakeJobMasterRunner | None:
    """Return the latest JobMaster of a job."""
    return next((each for each in reversed(harness.job_masters.made) if each.job.graph.job_id == job_id), None)


async def running_of(harness: DispatcherHarness, job_id: JobId) -> FakeJobMasterRunner:
    await until(lambda: runner_of(harness, job_id) is not None)
    runner = runner_of(harness, job_id)
    assert runner is not None
    await until(lambda: runner.status is JobStatus.RUNNING)
    return runner


async def snapshot(dispatcher: Dispatcher, job_id: JobId) -> JobSnapshot:
    return await dispatcher.job(JobQuery(job_id=job_id))


async def stopping(harness: DispatcherHarness, dispatcher: Dispatcher) -> FakeJobMasterRunner:
    """Submit A, upgrade it to B, and return the JobMaster of A, which is asked to drain."""
    runner = await streaming(harness, dispatcher)
    await dispatcher.submit_job(upgrade(former_graph(harness)))
    await until(lambda: bool(runner.queries))
    assert isinstance(runner.queries[0], DrainTask)
    return runner


async def ended(dispatcher: Dispatcher, job_id: JobId) -> JobSnapshot:
    return await dispatcher.await_job(AwaitJob(job_id=job_id, wait_s=60))
