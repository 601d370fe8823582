"""POST /jobs/:jobid/rerun: an ended job is submitted once more, or it is said why that is not possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import A, RestHarness
from tests.unit.rest.test_submission import LIB, LIB_KEY, SPEC, WITH_LIB, parts

import flintlock as fl
from flintlock.model.ids import JobId, RegionId, StepName
from flintlock.model.jobgraph import Exchange, JobGraph, JobType, JobVertex, vertex_id
from flintlock.model.jobs import ExecutionInfo, JobSnapshot
from flintlock.model.operations import Result, SaveMode, Sink, Source
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import Failure, FailureKind


@pytest.fixture
def rest() -> RestHarness:
    return RestHarness()


def first_job(rest: RestHarness) -> str:
    response = rest.call("POST", "/jobs", files=parts(WITH_LIB, lib_zip=LIB))
    assert response.status_code == 202, response.text
    return response.json()["jobid"]


def rerun(rest: RestHarness, job_id: str, key: str | None = None, **params: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return rest.call("POST", f"/jobs/{job_id}/rerun", json={"params": params}, headers=headers)


def test_a_job_is_submitted_once_more_with_its_files_and_other_parameters(rest: RestHarness) -> None:
    first = first_job(rest)
    response = rerun(rest, first, day="2026-02-02")
    assert response.status_code == 202, response.text
    graph = rest.dispatcher.submissions[-1].graph
    assert graph.job_id == response.json()["jobid"] != first
    assert (graph.rerun_of, graph.submitted_by, graph.params["day"]) == (first, "maria", "2026-02-02")
    sink = graph.vertex("out").operation
    assert isinstance(sink, Sink)
    assert sink.path == "/out/2026-02-02"
    assert [artifact.blob for artifact in graph.artifacts] == [LIB_KEY]
    assert rest.blobs.pinned[-1] == (LIB_KEY,), "the files are not removed meanwhile"
    details = rest.call("GET", f"/jobs/{graph.job_id}").json()
    assert details["rerun-of"] == first


def test_a_job_of_a_client_is_run_again_at_the_paths_of_its_new_parameters(
    rest: RestHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a client makes of a relative path keeps its parameter."""
    monkeypatch.chdir(tmp_path)
    job = fl.Job("daily", params={"day": "monday"})
    job.sink("out", job.sql("n", "SELECT 1 AS one"), format="parquet", path="out/${day}")
    headers = {"Content-Type": "application/json"}
    response = rest.call("POST", "/jobs", content=msgspec.json.encode(job.package().spec), headers=headers)
    assert response.status_code == 202, response.text
    assert rerun(rest, response.json()["jobid"], day="tuesday").status_code == 202
    targets = [submission.graph.vertex("out").operation.target for submission in rest.dispatcher.submissions]
    assert targets == [f"{tmp_path}/out/monday", f"{tmp_path}/out/tuesday"]


def test_a_job_whose_files_are_gone_is_refused_with_the_remedy(rest: RestHarness) -> None:
    first = first_job(rest)
    rest.blobs.content.clear()
    response = rerun(rest, first)
    assert response.status_code == 409
    (error,) = response.json()["errors"]
    assert "lib.zip" in error
    assert "flintlock run" in error
    assert len(rest.dispatcher.submissions) == 1


def test_a_job_whose_archive_is_lost_is_refused_with_the_remedy(rest: RestHarness) -> None:
    rest.dispatcher.put(
        JobSnapshot(
            graph=JobGraph(job_id=A, name="lost"),
            regions=(),
            status=JobStatus.FINISHED,
            timestamps={},
            end_ms=1,
            last_modified_ms=1,
            executions=(),
        )
    )
    response = rerun(rest, A)
    assert response.status_code == 409
    assert "steps of job" in response.json()["errors"][0]


def test_wrong_parameters_and_unknown_jobs_are_refused(rest: RestHarness) -> None:
    first = first_job(rest)
    response = rerun(rest, first, dya="x", n="many")
    assert response.status_code == 400
    assert len(response.json()["errors"]) == 2
    assert rest.call("POST", f"/jobs/{first}/rerun", json={"param": {}}).status_code == 400
    assert rerun(rest, JobId("f" * 32)).status_code == 404
    assert len(rest.dispatcher.submissions) == 1


def test_a_repeated_request_creates_one_job(rest: RestHarness) -> None:
    first = rest.call("POST", "/jobs", json=SPEC).json()["jobid"]
    responses = [rerun(rest, first, "key-1"), rerun(rest, first, "key-1")]
    assert [response.status_code for response in responses] == [202, 202]
    assert responses[0].json() == responses[1].json()
    assert responses[1].headers["idempotent-replay"] == "true"
    assert rerun(rest, first, "key-1", n=5).status_code in (409, 422), "the same key for another request"


def ended(job_id: JobId, status: JobStatus, *states: ExecutionState, job_type: JobType = JobType.BATCH) -> JobSnapshot:
    """A job with a blocking result, and with regions in these states."""
    rows, top = StepName("rows"), StepName("top")
    graph = JobGraph(
        job_id=job_id,
        name="daily",
        job_type=job_type,
        params={"day": "monday"},
        vertices=(
            JobVertex(
                id=vertex_id(job_id, rows),
                name=rows,
                operation=Source(format="csv", paths=("in",)),
                exchange=Exchange.BLOCKING,
            ),
            JobVertex(id=vertex_id(job_id, top), name=top, operation=Result(), inputs=(rows,)),
        ),
    )
    return JobSnapshot(
        graph=graph,
        regions=regions_of(graph),
        status=status,
        timestamps={},
        end_ms=1,
        last_modified_ms=1,
        executions=tuple(
            ExecutionInfo(region=RegionId(number), attempt=0, state=state, timestamps={})
            for number, state in enumerate(states)
        ),
    )


def from_failed(rest: RestHarness, job_id: JobId, **params: str) -> httpx.Response:
    return rest.call("POST", f"/jobs/{job_id}/rerun", json={"params": params, "from-failed": True})


def test_a_failed_job_is_continued_with_the_results_of_those_that_it_had_continued(rest: RestHarness) -> None:
    failed = ended(A, JobStatus.FAILED, ExecutionState.FINISHED, ExecutionState.FAILED)
    former = JobId("d" * 32)
    rest.dispatcher.put(structs.replace(failed, graph=structs.replace(failed.graph, reuses=(former,))))
    response = from_failed(rest, A)
    assert response.status_code == 202, response.text
    graph = rest.dispatcher.submissions[-1].graph
    assert (graph.rerun_of, graph.reuses, graph.params) == (A, (A, former), {"day": "monday"})
    assert [vertex.id for vertex in graph.vertices] == [vertex_id(graph.job_id, "rows"), vertex_id(graph.job_id, "top")]
    assert rerun(rest, A).status_code == 202
    assert rest.dispatcher.submissions[-1].graph.reuses == (), "a job that is run again as a whole uses nothing"


@pytest.mark.parametrize(
    ("snapshot", "status", "message"),
    [
        (ended(A, JobStatus.FINISHED, ExecutionState.FINISHED), 409, "is FINISHED: only a job that has FAILED"),
        (ended(A, JobStatus.RUNNING, ExecutionState.FINISHED), 409, "is RUNNING: only a job that has FAILED"),
        (ended(A, JobStatus.FAILED, ExecutionState.FAILED), 409, "nothing of job"),
        (ended(A, JobStatus.FAILED, ExecutionState.FINISHED, job_type=JobType.STREAMING), 409, "flintlock run -s"),
    ],
    ids=["finished", "running", "nothing finished", "streaming"],
)
def test_a_job_that_cannot_be_continued_is_refused_with_the_reason(
    rest: RestHarness, snapshot: JobSnapshot, status: int, message: str
) -> None:
    rest.dispatcher.put(snapshot)
    response = from_failed(rest, A)
    assert (response.status_code, message in response.json()["errors"][0]) == (status, True), response.text
    assert not rest.dispatcher.submissions


def unpublished(mode: SaveMode, kind: FailureKind = FailureKind.PUBLICATION, form: str = "parquet") -> JobSnapshot:
    """A job that failed in its second region, which writes files: while it published them, or before."""
    job = ended(A, JobStatus.FAILED, ExecutionState.FINISHED, ExecutionState.FAILED)
    rows, out = job.graph.vertices
    wrote = structs.replace(out, operation=Sink(format=form, path="out", mode=mode))
    failed = structs.replace(job.executions[1], failure=Failure(kind=kind, message="gone"))
    graph = structs.replace(job.graph, vertices=(rows, wrote))
    return structs.replace(job, graph=graph, regions=regions_of(graph), executions=(job.executions[0], failed))


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (unpublished(SaveMode.APPEND), "with mode append would append its rows a second time"),
        (unpublished(SaveMode.IGNORE), "with mode ignore would take them for all of its rows"),
        (unpublished(SaveMode.OVERWRITE), None),
        (unpublished(SaveMode.ERROR_IF_EXISTS), None),
        (unpublished(SaveMode.APPEND, FailureKind.USER_CODE), None),
        (unpublished(SaveMode.APPEND, form="iceberg"), None),
    ],
    ids=["append", "ignore", "overwrite", "errorifexists", "before anything was published", "without staging"],
)
def test_a_job_whose_files_were_published_in_part_is_not_continued_where_that_changes_its_output(
    rest: RestHarness, job: JobSnapshot, reason: str | None
) -> None:
    rest.dispatcher.put(job)
    assert rest.call("GET", f"/jobs/{A}/attempts").json().get("continuable", False) is (reason is None)
    response = from_failed(rest, A)
    if reason is None:
        assert response.status_code == 202, response.text
    else:
        assert response.status_code == 409
        (message,) = response.json()["errors"]
        assert reason in message
        assert "out may have a part of the files of step 'top'" in message
        assert not rest.dispatcher.submissions
    assert rerun(rest, A).status_code == 202, "as a whole it can be run again"


def test_parameters_of_a_job_that_is_continued_cannot_be_changed(rest: RestHarness) -> None:
    rest.dispatcher.put(ended(A, JobStatus.FAILED, ExecutionState.FINISHED))
    response = from_failed(rest, A, day="tuesday")
    assert response.status_code == 400
    assert "from-failed" in response.json()["errors"][0]
