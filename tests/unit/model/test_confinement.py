"""Which files a message about a job may name."""

from __future__ import annotations

from typing import Final

import pytest
from msgspec import structs

from flintlock.model.access.confinement import publication_problem, removal_problem, undeclared_sink
from flintlock.model.files.staging import staging_directory, success_marker
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.operations import SaveMode, Sink, Source
from flintlock.model.regions import Region, regions_of
from flintlock.model.tasks import FileMove, PublishFiles, RemoveFiles, SinkFiles

JOB: Final = JobId("0123456789abcdef0123456789abcdef")
A: Final = AttemptId(job_id=JOB, region=RegionId(0), attempt=1)
STAGING: Final = staging_directory("s3a://lake/out", A)
OWN: Final = SinkFiles(
    step=StepName("out"),
    target="s3a://lake/out",
    staging=STAGING,
    moves=(FileMove(f"{STAGING}/day=1/part-0.parquet", "s3a://lake/out/day=1/part-0.parquet"),),
    removes=("s3a://lake/out/_part=1/old.parquet",),
    success_marker=success_marker("s3a://lake/out"),
)


def graph_of(target: str) -> tuple[JobGraph, Region]:
    graph = JobGraph(
        job_id=JOB,
        name="job",
        vertices=(
            JobVertex(id=vertex_id(JOB, "a"), name=StepName("a"), operation=Source(format="csv", paths=("in",))),
            JobVertex(
                id=vertex_id(JOB, "out"),
                name=StepName("out"),
                operation=Sink(format="parquet", path=target, mode=SaveMode.OVERWRITE),
                inputs=(StepName("a"),),
            ),
        ),
    )
    return graph, regions_of(graph)[0]


def test_a_publication_within_its_target_is_not_refused() -> None:
    assert publication_problem(PublishFiles(attempt=A, sinks=(OWN,))) is None
    slash = structs.replace(
        OWN,
        target="/out/",
        staging=staging_directory("/out/", A),
        moves=(FileMove(f"{staging_directory('/out/', A)}/f", "/out/f"),),
        removes=("/out/g",),
        success_marker=success_marker("/out/"),
    )
    assert publication_problem(PublishFiles(attempt=A, sinks=(slash,))) is None


FOREIGN: Final[dict[str, SinkFiles]] = {
    "a removal elsewhere": structs.replace(OWN, removes=("/etc/passwd",)),
    "a removal of a neighbour": structs.replace(OWN, removes=("s3a://lake/out2/file",)),
    "a removal by a way up": structs.replace(OWN, removes=("s3a://lake/out/../secret",)),
    "a removal of the target": structs.replace(OWN, removes=("s3a://lake/out/",)),
    "a removal of another attempt's staging": structs.replace(OWN, removes=("s3a://lake/out/.flintlock-x/file",)),
    "a move to another place": structs.replace(OWN, moves=(FileMove(f"{STAGING}/f", "/etc/cron.d/f"),)),
    "a move from another place": structs.replace(OWN, moves=(FileMove("/etc/shadow", "s3a://lake/out/f"),)),
    "a move up from staging": structs.replace(OWN, moves=(FileMove(f"{STAGING}/../f", "s3a://lake/out/f"),)),
    "staging of another attempt": structs.replace(OWN, staging=f"{STAGING}0"),
    "staging elsewhere": structs.replace(OWN, staging="/"),
    "a marker elsewhere": structs.replace(OWN, success_marker="/etc/_SUCCESS"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_publication_that_leaves_its_target_is_refused_by_the_path(case: str) -> None:
    assert publication_problem(PublishFiles(attempt=A, sinks=(OWN, FOREIGN[case]))) is not None
    assert undeclared_sink((FOREIGN[case],), *graph_of("s3a://lake/out"), A) is not None


def test_only_targets_that_the_graph_declares_are_published() -> None:
    assert undeclared_sink((OWN,), *graph_of("s3a://lake/out"), A) is None
    assert undeclared_sink((OWN,), *graph_of("s3a://lake/other"), A) == (
        "step 'out' of the graph has no output at s3a://lake/out"
    )


@pytest.mark.parametrize("path", [f"/work/{JOB}", f"hdfs://nn/work/{JOB}/", STAGING, f"/out/.flintlock-{JOB}-0-*"])
def test_directories_of_the_job_are_removed(path: str) -> None:
    assert removal_problem(RemoveFiles(job_id=JOB, directories=(path,))) is None


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/home",
        f"/work/{JOB}/..",
        f"./{JOB}",
        "/out/.flintlock-*",
        f"/out/.flintlock-{'f' * 32}-0-0",
        f"x{JOB}",
    ],
)
def test_other_directories_are_not_removed(path: str) -> None:
    assert removal_problem(RemoveFiles(job_id=JOB, directories=(path,))) is not None
