"""What failed jobs keep, how long and how much of it, and jobs that continue where they failed."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import (
    A,
    B,
    C,
    DispatcherHarness,
    empty,
    graph,
    outcome_of,
    record,
    rows,
    settle,
    status,
    until,
)

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.retention.kept_results import MAX_JOBS, results_to_keep, reused_records
from flintlock.model.errors import Conflict
from flintlock.model.ids import JobId, RegionId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobType
from flintlock.model.jobs import ExecutionInfo, JobOutcome, JobSnapshot, JobSubmission
from flintlock.model.operations import SaveMode, Sink
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind, RegionPhase, RegionRecord, StepOutput
from flintlock.testing.fakes.fake_jobmaster import FakeJobMasterRunner
from flintlock.testing.virtual_time import virtual_time

HOURS = 3600.0


def blocking(job_id: JobId = A, *, reuses: tuple[JobId, ...] = ()) -> JobGraph:
    """A graph of two regions: a blocking result, and a reader of it."""
    plain = graph(job_id)
    first = structs.replace(plain.vertices[0], exchange=Exchange.BLOCKING)
    return structs.replace(plain, vertices=(first, *plain.vertices[1:]), reuses=reuses)


async def failed_half_way(
    harness: DispatcherHarness, dispatcher: Dispatcher, job_id: JobId = A, *, size: int = 100, finished: bool = True
) -> None:
    """Run a job whose first region finishes, and which then fails."""
    await dispatcher.submit_job(JobSubmission(graph=blocking(job_id)))
    runner = await running(harness, job_id)
    await harness.ha.stores(harness.cluster.token).progress.record(
        record(job_id, staging=(f"work/{job_id}",), materialised=f"work/{job_id}/rows/0", results=(rows("other"),))
    )
    if finished:
        runner.executions = (
            ExecutionInfo(
                region=RegionId(0),
                attempt=0,
                state=ExecutionState.FINISHED,
                timestamps={},
                outputs=(
                    StepOutput(step=StepName("rows"), bytes=size),
                    StepOutput(step=StepName("top"), bytes=1 << 40),
                ),
            ),
        )
    runner.move(JobStatus.FAILING)
    runner.end(JobStatus.FAILED, scratch=(f"work/{job_id}", f"out/.flintlock-{job_id}-1-0"))
    await until(lambda: job_id in harness.cluster.results)
    await settle()


async def running(harness: DispatcherHarness, job_id: JobId) -> FakeJobMasterRunner:
    await until(lambda: any(runner.job.graph.job_id == job_id for runner in harness.job_masters.made))
    await until(lambda: harness.runner(job_id).status is JobStatus.RUNNING)
    return harness.runner(job_id)


def removed(harness: DispatcherHarness) -> list[str]:
    return [path for message in harness.resource_manager.removed for path in message.directories]


@virtual_time
async def test_the_results_of_a_failed_job_are_kept_for_their_retention_and_the_rest_is_removed_at_once() -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.results-retention": "2 h"})
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        assert removed(harness) == [f"out/.flintlock-{A}-1-0"], "staging is removed at once"
        assert A not in harness.cluster.graphs
        await asyncio.sleep(1.9 * HOURS)
        assert harness.cluster.progress[A]
        await asyncio.sleep(0.2 * HOURS)
        assert removed(harness)[1:] == [f"work/{A}"]
        assert A not in harness.cluster.progress
        assert not harness.cluster.results[A].dirty
        await empty(dispatcher)


@virtual_time
async def test_a_new_leader_keeps_what_a_former_one_kept_for_the_rest_of_its_time() -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.results-retention": "2 h"})
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await asyncio.sleep(1 * HOURS)
    async with harness.leading() as dispatcher:
        await asyncio.sleep(0.9 * HOURS)
        assert f"work/{A}" not in removed(harness)
        await dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,))))
        assert [one.reused_from for one in (await running(harness, B)).progress] == [A]
        harness.runner(B).finish()
        await asyncio.sleep(0.2 * HOURS)
        assert f"work/{A}" in removed(harness)
        await empty(dispatcher)


@pytest.mark.parametrize(
    ("retention", "finished"), [("0 s", True), ("2 h", False)], ids=["switched off", "nothing had finished"]
)
@virtual_time
async def test_a_failed_job_with_nothing_to_keep_is_removed_at_once(retention: str, finished: bool) -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.results-retention": retention})
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher, finished=finished)
        await empty(dispatcher)
        assert removed(harness) == [f"work/{A}", f"out/.flintlock-{A}-1-0"]
        assert A not in harness.cluster.progress


@virtual_time
async def test_results_are_not_kept_longer_than_their_job() -> None:
    harness = DispatcherHarness(
        config={"execution.failed-jobs.results-retention": "20 h", "job-result-store.retention": "10 h"}
    )
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await asyncio.sleep(12 * HOURS)
        assert f"work/{A}" in removed(harness)
        assert A not in harness.cluster.results, "the job is forgotten"


@virtual_time
async def test_beyond_their_size_the_oldest_results_are_removed_first() -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.max-size": "250"})
    async with harness.leading() as dispatcher:
        for job_id in (A, B):
            await failed_half_way(harness, dispatcher, job_id)
            await asyncio.sleep(60)
        assert f"work/{A}" not in removed(harness)
        await failed_half_way(harness, dispatcher, C)
        await until(lambda: f"work/{A}" in removed(harness))
        assert {f"work/{B}", f"work/{C}"}.isdisjoint(removed(harness))


@virtual_time
async def test_no_more_jobs_keep_results_than_a_leader_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flintlock.dispatcher.retention.kept_results.MAX_JOBS", 1)
    assert MAX_JOBS > 1
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher, A)
        await asyncio.sleep(60)
        await failed_half_way(harness, dispatcher, B)
        await until(lambda: f"work/{A}" in removed(harness))
        assert f"work/{B}" not in removed(harness)


@virtual_time
async def test_a_job_continues_where_another_failed() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,))))
        (reused,) = (await running(harness, B)).progress
        assert (reused.job_id, reused.phase, reused.reused_from) == (B, RegionPhase.FINISHED, A)
        assert reused.outcome is not None
        assert reused.outcome.materialised == {"rows": f"work/{A}/rows/0"}
        assert reused.outcome.results == (rows("other"),), "rows that were collected are those of this job, too"
        assert harness.cluster.progress[B], "a new leader finds the same"


@virtual_time
async def test_results_that_a_job_uses_stay_until_it_has_ended() -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.results-retention": "1 h"})
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,))))
        await running(harness, B)
        await asyncio.sleep(5 * HOURS)
        assert f"work/{A}" not in removed(harness)
    async with harness.leading() as dispatcher:
        await asyncio.sleep(1 * HOURS)
        assert f"work/{A}" not in removed(harness), "nor does the next leader remove them"
        (await running(harness, B)).finish()
        await until(lambda: f"work/{A}" in removed(harness))
        await empty(dispatcher)


@virtual_time
async def test_a_job_is_refused_whose_results_are_no_longer_kept() -> None:
    harness = DispatcherHarness(config={"execution.failed-jobs.results-retention": "1 h"})
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await asyncio.sleep(2 * HOURS)
        answer = await outcome_of(dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,)))))
        assert isinstance(answer, Conflict)
        assert "without --from-failed" in answer.public
        assert B not in harness.cluster.graphs


@pytest.mark.parametrize("steps", range(1, 12))
@virtual_time
async def test_a_leader_that_dies_while_a_job_is_made_to_continue_leaves_it_to_the_next_one(steps: int) -> None:
    """Whatever was stored, the job begins with what had finished: its published output is never written again."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        harness.faults.die_after(steps)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,))))
        await settle()
    harness.faults.clear_death()
    async with harness.leading():
        await settle()
        if B in harness.cluster.graphs:
            assert [one.reused_from for one in (await running(harness, B)).progress] == [A]


@virtual_time
async def test_a_job_whose_records_to_continue_from_are_lost_fails_with_the_remedy() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        del harness.cluster.progress[A]
        await dispatcher.submit_job(JobSubmission(graph=blocking(B, reuses=(A,))))
        await until(lambda: B in harness.cluster.results)
        assert await status(dispatcher, B) is JobStatus.FAILED
        assert not any(runner.job.graph.job_id == B for runner in harness.job_masters.made), "it is not run as a whole"


@virtual_time
async def test_a_cluster_that_ends_keeps_no_results() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await failed_half_way(harness, dispatcher)
        await dispatcher.finish_cleanup(60.0)
        assert f"work/{A}" in removed(harness)
        assert not harness.cluster.results[A].dirty


@virtual_time
async def test_results_of_a_job_that_fails_while_the_cluster_ends_are_not_kept() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.finish_cleanup(60.0)
        await failed_half_way(harness, dispatcher)
        await until(lambda: not harness.cluster.results[A].dirty)
        assert f"work/{A}" in removed(harness)


def of_region(number: int, phase: RegionPhase = RegionPhase.FINISHED, **changes: object) -> RegionRecord:
    return structs.replace(record(A, materialised=f"work/{A}/rows/0"), region=RegionId(number), phase=phase, **changes)


def test_records_are_reused_once_and_only_of_what_had_finished() -> None:
    new = blocking(B, reuses=(A,))
    reused = reused_records(new, [of_region(0)], (), 7)
    assert [(one.region, one.recorded_ms, one.attempt) for one in reused] == [(0, 7, 0)]
    assert reused_records(new, [of_region(0)], reused, 8) == ()
    assert reused_records(new, [of_region(0, RegionPhase.DEPLOYED, outcome=None)], (), 7) == ()
    assert reused_records(new, [of_region(0, RegionPhase.ACCEPTED)], (), 7) == (), "its files may not be published"
    again = reused_records(new, [of_region(0, RegionPhase.DEPLOYED)], (), 7)
    assert [one.phase for one in again] == [RegionPhase.FINISHED], "it had been published, and lost its rows"
    assert reused_records(new, [of_region(9)], (), 7) == (), "a region that this version does not have"


def test_a_result_is_traced_to_the_job_that_computed_it() -> None:
    (first,) = reused_records(blocking(B, reuses=(A,)), [of_region(0)], (), 7)
    (second,) = reused_records(blocking(C, reuses=(B, A)), [first], (), 8)
    assert (second.job_id, second.reused_from) == (C, A)


@pytest.mark.parametrize(
    ("job_type", "mode", "kept"),
    [
        (JobType.BATCH, SaveMode.OVERWRITE, True),
        (JobType.BATCH, SaveMode.APPEND, False),
        (JobType.STREAMING, SaveMode.OVERWRITE, False),
    ],
    ids=["batch", "published in part", "streaming"],
)
def test_only_batch_jobs_that_can_be_continued_keep_results(job_type: JobType, mode: SaveMode, kept: bool) -> None:
    """Streaming jobs have checkpoints."""
    job = structs.replace(blocking(), job_type=job_type)
    sink = structs.replace(job.vertices[1], operation=Sink(format="parquet", path="out", mode=mode))
    job = structs.replace(job, vertices=(job.vertices[0], sink))
    finished = ExecutionInfo(region=RegionId(0), attempt=0, state=ExecutionState.FINISHED, timestamps={})
    unpublished = structs.replace(
        finished,
        region=RegionId(1),
        state=ExecutionState.FAILED,
        failure=Failure(kind=FailureKind.PUBLICATION, message="no space"),
    )
    snapshot = JobSnapshot(
        graph=job,
        regions=regions_of(job),
        status=JobStatus.FAILED,
        timestamps={},
        end_ms=1,
        last_modified_ms=1,
        executions=(finished, unpublished),
    )
    found = results_to_keep(JobOutcome(snapshot=snapshot, scratch=(f"checkpoints/{A}",)), 10.0, 10.0)
    assert (found is not None) is kept
