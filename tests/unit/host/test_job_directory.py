"""The files of a cluster's own job: complete or not there, and an end that is recorded once."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from flintlock.client.clusters.discovery import cluster_client, cluster_or_embedded, find_cluster
from flintlock.config.files import load
from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.job_directory import JobDescription, JobDirectory, JobEnd
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Conflict, Invalid, Unavailable
from flintlock.model.ids import JobId

A = JobId("a" * 32)
SPEC = ClusterSpec(taskmanagers=0, settings={"rest.port": "0"})


def created(state_dir: Path) -> JobDirectory:
    directory = JobDirectory(state_dir)
    source = state_dir.parent / "lib.zip"
    source.write_bytes(b"of a file")
    description = JobDescription(job_id=A, name="small", attached=True, files=("lib.zip", "pkg/code.bin"))
    directory.create(description, b"{}", {"lib.zip": source, "pkg/code.bin": b"in memory"}, SPEC)
    return directory


def test_what_is_written_is_found_again_and_belongs_to_its_owner(tmp_path: Path) -> None:
    directory = created(tmp_path / "state")

    description = directory.describe()
    assert description is not None
    assert (description.job_id, description.attached) == (A, True)
    contents = {name: path.read_bytes() for name, path in directory.files(description).items()}
    assert contents == {"lib.zip": b"of a file", "pkg/code.bin": b"in memory"}
    assert (directory.document(), directory.cluster_spec(), directory.read_end()) == (b"{}", SPEC, None)
    files = [path for path in directory.path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    with pytest.raises(Conflict, match=f"job {A} was run before"):
        created(tmp_path / "state")


def test_a_directory_that_is_not_complete_is_no_session_cluster(tmp_path: Path) -> None:
    """A client that died while it wrote the job must not leave a cluster that accepts others."""
    assert JobDirectory(tmp_path).describe() is None
    (tmp_path / "job").mkdir()
    with pytest.raises(Invalid, match="is not complete"):
        JobDirectory(tmp_path).describe()
    (tmp_path / "job" / "description.json").write_text("{")
    with pytest.raises(Invalid, match="cannot be read"):
        JobDirectory(tmp_path).describe()


def test_the_end_is_recorded_with_the_job_and_a_damaged_record_is_not_read_as_no_end(tmp_path: Path) -> None:
    directory = created(tmp_path / "state")
    end = JobEnd(application_status=ApplicationStatus.CANCELED, job=msgspec.Raw(b'{"status":"CANCELED"}'))
    directory.write_end(end)
    directory.write_end(end)

    found = directory.read_end()
    assert found is not None
    assert (found.application_status, bytes(found.job)) == (ApplicationStatus.CANCELED, b'{"status":"CANCELED"}')
    assert [path.name for path in directory.path.glob(".*")] == []
    directory.end_file.write_text("{")
    with pytest.raises(Invalid):
        directory.read_end()


def test_the_directory_of_a_per_job_cluster_stands_for_that_cluster_whatever_is_configured(tmp_path: Path) -> None:
    settings = load(("rest.address=elsewhere", "rest.port=8081"))
    directory = created(tmp_path / "state")
    state_dir = directory.path.parent

    assert find_cluster(settings, (), state_dir) is None
    with pytest.raises(Unavailable, match="does not run"):  # no embedded one in its place
        cluster_or_embedded(settings, (), state_dir)
    with pytest.raises(Unavailable, match="no cluster runs"):
        cluster_client(settings, (), state_dir)
    directory.write_end(JobEnd(application_status=ApplicationStatus.FAILED))
    with pytest.raises(Unavailable, match=r"has ended with its job, FAILED: .*end\.json has the job's end"):
        cluster_client(settings, (), state_dir)
