"""Names of staging directories, and what counts as data."""

from __future__ import annotations

import pytest

from flintlock.model.files.staging import (
    is_data,
    staging_directories,
    staging_directory,
    success_marker,
)
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Sink, Source
from flintlock.model.regions import regions_of

JOB = JobId("0123456789abcdef" * 2)
ATTEMPT = AttemptId(job_id=JOB, region=RegionId(2), attempt=3)


def test_the_name_depends_on_target_and_attempt_only() -> None:
    expected = f"s3a://bucket/out/.flintlock-{JOB}-2-3"
    assert staging_directory("s3a://bucket/out", ATTEMPT) == expected
    assert staging_directory("s3a://bucket/out/", ATTEMPT) == expected


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("part-0.parquet", True),
        ("day=1/part-0.parquet", True),
        ("_part=1/part-0.parquet", True),
        ("_SUCCESS", False),
        (".part-0.parquet.crc", False),
        (f".flintlock-{JOB}-0-0/part-0.parquet", False),
        ("_temporary/0/part-0.parquet", False),
        ("day=1/.hidden", False),
    ],
)
def test_hidden_files_are_not_data(path: str, data: bool) -> None:
    assert is_data(path) is data


def test_only_files_at_a_path_are_staged() -> None:
    def vertex(name: str, operation: Source | Sink, *inputs: str) -> JobVertex:
        return JobVertex(
            id=vertex_id(JOB, name),
            name=StepName(name),
            operation=operation,
            inputs=tuple(StepName(source) for source in inputs),
        )

    graph = JobGraph(
        job_id=JOB,
        name="j",
        vertices=(
            vertex("a", Source(table="t")),
            vertex("files", Sink(format="Parquet", path="/out"), "a"),
            vertex("table", Sink(table="u"), "a"),
            vertex("lake", Sink(format="delta", path="/lake"), "a"),
        ),
    )
    (region,) = regions_of(graph)
    attempt = AttemptId(job_id=JOB, region=region.id, attempt=0)
    assert staging_directories(graph, region, attempt) == (f"/out/.flintlock-{JOB}-0-0",)


def test_the_marker_is_in_the_target() -> None:
    assert success_marker("/out") == success_marker("/out/") == "/out/_SUCCESS"
