"""The jobs that a program of an application submits have numbers, so that it finds them when it runs again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.client.answering import serving

from flintlock.client.authoring.sql_form import SqlJob
from flintlock.client.clusters.discovery import cluster_client, find_cluster, job_cluster, own_cluster
from flintlock.client.connection.client import Client
from flintlock.client.connection.program_keys import next_program_key
from flintlock.config.configuration import Configuration
from flintlock.config.files import load, state_directory
from flintlock.entrypoints.process import write_json
from flintlock.host.files.own_cluster import OwnCluster, write_own_cluster
from flintlock.host.processes.pid_files import LEADER_FILE, ClusterFile, identity
from flintlock.model.application import APPLICATION_VARIABLE, PROGRAM_VARIABLE, program_key
from flintlock.model.ids import JobId

A = JobId("a" * 32)


def number_of(key: str | None) -> int:
    assert key is not None
    assert key.startswith(program_key(A, 0)[:-1])
    return int(key.rpartition("-")[2])


def test_each_submission_of_the_programs_own_process_has_the_next_number() -> None:
    environ = {PROGRAM_VARIABLE: f"{A} {os.getpid()}"}
    first = number_of(next_program_key(environ))
    assert number_of(next_program_key(environ)) == first + 1
    assert next_program_key({PROGRAM_VARIABLE: f"{A} {os.getpid() + 1}"}) is None, "a process that the program started"
    assert next_program_key({}) is None
    assert number_of(next_program_key(environ)) == first + 2


def test_a_program_finds_its_own_cluster_whatever_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(APPLICATION_VARIABLE, str(tmp_path))
    monkeypatch.setenv("FLINTLOCK_STATE_DIR", str(tmp_path / "other"))
    (tmp_path / "job").mkdir()
    own = identity(os.getpid())
    write_json(
        tmp_path / LEADER_FILE,
        ClusterFile(pid=own.pid, start_time=own.start_time, cluster_id="x", rest="http://127.0.0.1:9"),
    )
    settings = load(("rest.address=elsewhere", "rest.port=8081"))
    assert settings.warnings == ()
    assert state_directory(settings) == tmp_path
    with cluster_client(settings, (), tmp_path) as client:
        assert client.http.urls == ("http://127.0.0.1:9",)
    assert job_cluster(Configuration(), tmp_path).own_cluster
    assert not job_cluster(Configuration(), tmp_path / "other").own_cluster


@pytest.mark.parametrize("own_cluster", [True, False])
def test_only_submissions_to_the_own_cluster_are_numbered(monkeypatch: pytest.MonkeyPatch, own_cluster: bool) -> None:
    import msgspec

    from flintlock.client.connection.versions import own_versions

    monkeypatch.setenv(PROGRAM_VARIABLE, f"{A} {os.getpid()}")
    versions = (200, msgspec.to_builtins(own_versions()))
    with serving({"GET /versions": [versions], "POST /jobs": [(202, {"jobid": A})]}) as server:
        with Client([server.url], own_cluster=own_cluster) as client:
            client.submit(SqlJob("SELECT 1"))
            client.submit(SqlJob("SELECT 1"), idempotency_key="mine")
        numbered, given = [seen.headers["idempotency-key"] for seen in server.seen if seen.method == "POST"]
    assert numbered.startswith(f"application-{A}-") is own_cluster
    assert given == "mine"


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of a TaskManager that shares none with its JobManager; this process is its user code."""
    (tmp_path / "cluster-secret").write_text("ab" * 32)
    (tmp_path / "cluster-secret").chmod(0o600)
    settings = {"security.secret-file": str(tmp_path / "cluster-secret")}
    write_own_cluster(tmp_path, OwnCluster(rest="http://10.0.0.1:8081", settings=settings))
    monkeypatch.setenv(APPLICATION_VARIABLE, str(tmp_path))
    return tmp_path


def test_a_program_in_a_container_finds_the_jobmanager_of_its_application(container: Path) -> None:
    """Whatever is configured; its credential is made with the secret of the application."""
    settings = load(("rest.address=elsewhere", "rest.port=8081"))
    found = find_cluster(settings, (), state_directory(settings))
    assert found is not None
    assert (found.urls, found.own_cluster) == (("http://10.0.0.1:8081",), True)
    assert found.credentials is not None
    assert found.credentials.find("http://10.0.0.1:8081", 1_000) is not None
    assert (container / "own-cluster.json").stat().st_mode & 0o077 == 0


def test_a_damaged_file_is_not_the_cluster_of_a_program(container: Path) -> None:
    (container / "own-cluster.json").write_text("{")
    assert own_cluster(container) is None


def test_the_file_counts_for_the_program_only(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(APPLICATION_VARIABLE)
    assert own_cluster(container) is None
