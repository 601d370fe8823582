"""Of two jobs whose sinks require an empty target, one writes to it."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import FILES, JOB, graph_of, sink, source, staged
from tests.unit.jobmaster.test_endpoint import EndpointHarness, settle

from flintlock.jobmaster.target_claims import TargetClaims
from flintlock.model.commands import CancelJob
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import SaveMode, Sink
from flintlock.model.states import JobStatus
from flintlock.model.tasks import FilesPublished, RegionPhase, RegionRecord, TaskCanceled, TaskFinished, TaskRunning
from flintlock.testing.virtual_time import virtual_time

OTHER = JobId("b" * 32)
THIRD = JobId("c" * 32)
OUT = StepName("out")


def writer(path: str = "/data/out", mode: SaveMode = SaveMode.ERROR_IF_EXISTS) -> JobVertex:
    return structs.replace(sink("out", "orders"), operation=Sink(format="parquet", path=path, mode=mode))


def graph_with(job_id: JobId, mode: SaveMode = SaveMode.ERROR_IF_EXISTS) -> JobGraph:
    return structs.replace(graph_of(source("orders", parallelism=2), writer(mode=mode)), job_id=job_id)


@pytest.mark.parametrize("mode", [SaveMode.ERROR_IF_EXISTS, SaveMode.IGNORE])
@pytest.mark.parametrize("first", list(SaveMode))
def test_a_target_that_must_be_empty_is_refused_while_another_job_has_it(first: SaveMode, mode: SaveMode) -> None:
    claims = TargetClaims()
    assert claims.claim(JOB, [writer(mode=first)]) == {}
    assert claims.claim(OTHER, [writer(mode=mode)]) == {OUT: JOB}
    assert claims.claim(JOB, [writer(mode=first)]) == {}, "the next attempt of the same job gets it"
    claims.release(OTHER)
    assert claims.claim(THIRD, [writer(mode=mode)]) == {OUT: JOB}, "a job releases only what it has"
    claims.release(JOB)
    claims.release(JOB)
    assert claims.claim(OTHER, [writer(mode=mode)]) == {}


@pytest.mark.parametrize("mode", [SaveMode.APPEND, SaveMode.OVERWRITE])
def test_appends_and_overwrites_are_never_refused(mode: SaveMode) -> None:
    claims = TargetClaims()
    claims.claim(JOB, [writer()])
    assert claims.claim(OTHER, [writer(mode=mode)]) == {}


@pytest.mark.parametrize("path", ["/data/out/", "file:/data/out", "file:///data/out", "/data//x/../out"])
def test_a_path_is_known_by_its_usual_spellings(path: str) -> None:
    claims = TargetClaims()
    claims.claim(JOB, [writer()])
    assert claims.claim(OTHER, [writer(path)]) == {OUT: JOB}
    assert claims.claim(OTHER, [writer("/data/out2")]) == {}
    assert claims.claim(OTHER, [writer("s3a://data/out")]) == {}


def test_a_new_leader_gives_a_target_to_the_job_that_had_it() -> None:
    claims = TargetClaims()
    claims.restore(OTHER, [writer()], {OUT: JOB})
    claims.restore(JOB, [writer()], {})
    assert claims.claim(OTHER, [writer()]) == {OUT: JOB}
    assert claims.claim(JOB, [writer()]) == {}


class Rivals:
    """Two JobMasters of one term."""

    def __init__(self, claims: TargetClaims | None = None) -> None:
        self.claims = claims or TargetClaims()
        self.first = EndpointHarness(graph_with(JOB), claims=self.claims)
        self.second = EndpointHarness(graph_with(OTHER), claims=self.claims)


@virtual_time
async def test_an_attempt_is_told_which_targets_another_job_has() -> None:
    rivals = Rivals()
    async with rivals.first.running(), rivals.second.running():
        (first,), (second,) = rivals.first.machine.deployed, rivals.second.machine.deployed
        assert (first.taken, second.taken) == ({}, {OUT: JOB})


@virtual_time
async def test_a_target_is_claimed_until_the_job_has_ended_and_published() -> None:
    claims = TargetClaims()
    first = EndpointHarness(graph_with(JOB), claims=claims)
    async with first.running() as running:
        await first.report(TaskRunning())
        await first.report(TaskFinished(sinks=(staged("f", target="/data/out"),)))
        assert claims.claim(OTHER, [writer()]) == {OUT: JOB}, "it is publishing"
        await first.report(FilesPublished(done=2, total=2, complete=True))
        assert (await running).snapshot.status is JobStatus.FINISHED
    assert claims.claim(OTHER, [writer()]) == {}


@virtual_time
async def test_a_job_that_is_cancelled_releases_its_targets() -> None:
    claims = TargetClaims()
    first = EndpointHarness(graph_with(JOB), claims=claims)
    async with first.running() as running:
        first.master.command(CancelJob(job_id=JOB))
        await settle()
        await first.report(TaskCanceled())
        assert (await running).snapshot.status is JobStatus.CANCELED
    assert claims.claim(OTHER, [writer()]) == {}


def stored(harness: EndpointHarness, job_id: JobId) -> tuple[RegionRecord, ...]:
    return tuple(record for record in harness.store.records.values() if record.job_id == job_id)


@virtual_time
async def test_the_next_leader_knows_from_the_records_which_job_has_a_target() -> None:
    """The JobManager ends when both attempts are deployed; the one that was refused is recovered first."""
    before = Rivals()
    async with before.first.running(), before.second.running():
        records = stored(before.first, JOB), stored(before.second, OTHER)
    assert [record.phase for found in records for record in found] == [RegionPhase.DEPLOYED] * 2
    after = Rivals()
    after.second.make(records[1])
    after.first.make(records[0])
    assert after.claims.claim(THIRD, [writer()]) == {OUT: JOB}
    assert after.claims.claim(JOB, [writer()]) == {}
    assert after.claims.claim(OTHER, [writer()]) == {OUT: JOB}


@virtual_time
async def test_the_next_leader_gives_no_target_away_that_is_being_published() -> None:
    first = EndpointHarness(graph_with(JOB))
    async with first.running():
        await first.report(TaskRunning())
        await first.report(TaskFinished(sinks=(staged("f", target="/data/out"),)))
        records = stored(first, JOB)
    assert [record.phase for record in records] == [RegionPhase.ACCEPTED]
    after = TargetClaims()
    EndpointHarness(graph_with(JOB), claims=after).make(records)
    assert after.claim(OTHER, [writer()]) == {OUT: JOB}


@virtual_time
async def test_a_job_without_rivals_is_recorded_and_deployed_as_before() -> None:
    alone = EndpointHarness(FILES)
    async with alone.running():
        (order,) = alone.machine.deployed
        assert order.taken == {}
        assert [record.taken for record in stored(alone, JOB)] == [{}]
