"""The job of a per-job cluster, read from its state directory as POST /jobs would read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.dispatcher.dispatcher_harness import graph

from flintlock.config.configuration import Configuration
from flintlock.dispatcher.cluster_job import ClusterEnd
from flintlock.entrypoints.components import SESSION
from flintlock.entrypoints.own_job import DirectoryJobSource, FileJobEndRecord, deployment_mode, result_timeout_s
from flintlock.entrypoints.process import ProcessSettings
from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.job_directory import JobDescription, JobDirectory
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Invalid
from flintlock.model.ids import BlobKey, JobId, StepName
from flintlock.model.jobs import JobSnapshot
from flintlock.model.regions import regions_of
from flintlock.model.states import JobStatus
from flintlock.model.tasks import ResultRows
from flintlock.security.cluster_secret import ClusterSecret

A = JobId("a" * 32)
STEPS: dict[str, object] = {"one": {"sql": "SELECT 1 AS x"}, "rows": {"result": {}, "inputs": ["one"]}}


class Blobs:
    """Stores nothing, and counts."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        content = b"".join([piece async for piece in stream])
        self.stored.append(content)
        return BlobKey("key"), len(content)


class Ends:
    """Keeps the records of ends elsewhere."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    async def keep_end(self, file: Path) -> None:
        self.kept.append(file.read_bytes())

    async def find_end(self, file: Path) -> None:
        for content in self.kept[-1:]:
            file.write_bytes(content)


def written(state_dir: Path, document: dict[str, object]) -> JobDirectory:
    directory = JobDirectory(state_dir)
    description = JobDescription(job_id=A, submitted_by="ada", files=("lib.zip",))
    directory.create(description, json.dumps(document).encode(), {"lib.zip": b"zip"}, ClusterSpec())
    return directory


def settings(state_dir: Path) -> ProcessSettings:
    return ProcessSettings(state_dir=state_dir, configuration=Configuration(), secret=ClusterSecret(b"s" * 32))


def test_the_state_directory_decides_the_mode(tmp_path: Path) -> None:
    assert deployment_mode(settings(tmp_path / "none"), Blobs(), Ends()) is SESSION
    written(tmp_path / "job", {"name": "small", "steps": STEPS, "artifacts": ["lib.zip"]})
    mode = deployment_mode(settings(tmp_path / "job"), Blobs(), Ends())
    assert (mode.name, mode.removes_ha_data) == ("per-job", True)


def test_a_cluster_without_a_waiting_client_serves_long_enough_for_one_that_has_just_cancelled_the_job() -> None:
    configured = Configuration({"jobmanager.per-job.result-timeout": "20 s"})
    assert result_timeout_s(configured, JobDescription(job_id=A, attached=True)) == 20.0
    assert 1.0 <= result_timeout_s(configured, JobDescription(job_id=A)) <= 10.0


def test_a_program_is_refused_where_user_code_may_not_read_the_secret(tmp_path: Path) -> None:
    description = JobDescription(job_id=A, application=True)
    document = json.dumps({"name": "small", "steps": STEPS}).encode()
    JobDirectory(tmp_path).create(description, document, {}, ClusterSpec())
    assert deployment_mode(settings(tmp_path), Blobs(), Ends()).name == "application"
    with_user = ProcessSettings(
        state_dir=tmp_path,
        configuration=Configuration({"taskmanager.runner.user": "nobody"}),
        secret=ClusterSecret(b"s" * 32),
    )
    with pytest.raises(Invalid, match="runner"):
        deployment_mode(with_user, Blobs(), Ends())


def test_the_graph_has_the_id_the_submitter_and_the_artifacts_of_the_directory(tmp_path: Path) -> None:
    directory = written(tmp_path, {"name": "small", "steps": STEPS, "artifacts": ["lib.zip"]})
    description, blobs = directory.describe(), Blobs()
    assert description is not None
    source = DirectoryJobSource(directory, description, blobs)
    found = asyncio.run(source.load())

    assert (source.job_id, found.submitted_by, [vertex.name for vertex in found.vertices]) == (A, "ada", [*STEPS])
    (artifact,) = found.artifacts
    assert (artifact.name, artifact.size, blobs.stored) == ("lib.zip", 3, [b"zip"])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"steps": {}}, "steps"),
        ({"artifacts": ["other.zip"]}, "other.zip"),
        ({"artifacts": [{"name": "b", "blob": "sha256-" + "0" * 64}]}, "names a blob"),
        ({"config": {"nonsense": 1}}, "nonsense"),
    ],
)
def test_a_job_that_cannot_run_is_refused_before_the_jobmanager_contends(
    tmp_path: Path, changed: dict[str, object], problem: str
) -> None:
    written(tmp_path, {"name": "small", "steps": STEPS, "artifacts": ["lib.zip"], **changed})
    with pytest.raises(Invalid, match=problem):
        deployment_mode(settings(tmp_path), Blobs(), Ends())


def test_the_end_has_the_document_that_run_prints(tmp_path: Path) -> None:
    directory = written(tmp_path, {"name": "small", "steps": STEPS})
    ends = Ends()
    record = FileJobEndRecord(directory, ends)
    assert asyncio.run(record.read()) is None
    job = graph(A)
    snapshot = JobSnapshot(
        graph=job,
        regions=regions_of(job),
        status=JobStatus.FINISHED,
        timestamps={JobStatus.INITIALIZING: 1, JobStatus.FINISHED: 2},
        end_ms=2,
        last_modified_ms=2,
        executions=(),
        exceptions=(),
        result_names=(StepName("top"),),
    )
    table = b'{"columns":[{"name":"x","type":"int"}],"rows":[[1]]}'
    rows = ResultRows(name=StepName("top"), rows=1, truncated=False, arrow=b"", json=table)
    job_line = snapshot.summary()
    asyncio.run(
        record.write(
            ClusterEnd(status=ApplicationStatus.SUCCEEDED, snapshot=snapshot, results=(rows,), jobs=(job_line,))
        )
    )

    assert asyncio.run(record.read()) is ApplicationStatus.SUCCEEDED
    assert ends.kept == [directory.end_file.read_bytes()]  # before the record counts as durable
    directory.end_file.unlink()  # a JobManager that is started again has another directory
    assert asyncio.run(record.read()) is ApplicationStatus.SUCCEEDED
    end = directory.read_end()
    assert end is not None
    assert json.loads(bytes(end.jobs)) == [{"jobid": A, "name": "job", "status": "FINISHED"}]
    document = json.loads(bytes(end.job))
    assert (document["jobid"], document["status"], document["failure"]) == (A, "FINISHED", None)
    assert document["results"]["top"] == {
        "name": "top",
        "truncated": False,
        "columns": [{"name": "x", "type": "int"}],
        "rows": [[1]],
    }
