"""Which processes of a cluster are expected, which are missing, and when a job may run on an embedded cluster."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.shell_completion import ShellComplete
from tests.unit.client.answering import serving

from flintlock.cli.main import app, run_app
from flintlock.cli.settings import announced_wait
from flintlock.client.clusters.cluster_processes import command_of, missing_processes
from flintlock.client.clusters.discovery import cluster_or_embedded
from flintlock.client.clusters.local_cluster import stop_cluster
from flintlock.config.files import load
from flintlock.host.cluster_spec import (
    SPEC_FILE,
    ClusterSpec,
    expected_cluster,
    read_cluster_spec,
    read_settings_file,
    write_cluster_spec,
)
from flintlock.host.files.run_directory import start_lock
from flintlock.host.processes.pid_files import ExitFile, PidFile, identity
from flintlock.model.errors import Conflict, Invalid, Unavailable

SECRET = "s3cr3t-0f-th3-st0r3"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty directory, with no configuration and no cluster."""
    for name in [name for name in os.environ if name.startswith("FLINTLOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def write(state_dir: Path, path: str, file: PidFile) -> None:
    (state_dir / "run" / path).parent.mkdir(parents=True, exist_ok=True)
    (state_dir / "run" / path).write_bytes(msgspec.json.encode(file))


def test_what_is_expected_and_does_not_run_is_missing_with_its_reason(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    write_cluster_spec(tmp_path, ClusterSpec(jobmanagers=2, taskmanagers=2))
    write(tmp_path, "started/jobmanager.json", identity(sleeper.pid))  # it does not listen yet
    write(tmp_path, "started/taskmanager-0.json", PidFile(pid=7, start_time=5.0))
    write(tmp_path, "exits/taskmanager-0.json", ExitFile(pid=7, start_time=5.0, code=4, reason="port 1 is in use"))
    write(tmp_path, "started/taskmanager-1.json", PidFile(pid=8, start_time=5.0))
    write(tmp_path, "exits/taskmanager-1.json", ExitFile(pid=9, start_time=5.0, code=0))  # of another process

    assert [(process.name, process.reason) for process in missing_processes(tmp_path)] == [
        ("jobmanager-1", "it was killed, or never started"),
        ("taskmanager-0", "port 1 is in use"),
        ("taskmanager-1", "it was killed, or never started"),
    ]


def test_after_a_stop_nothing_is_expected(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_cluster_spec(tmp_path, ClusterSpec())
    write(tmp_path, "started/jobmanager.json", identity(sleeper.pid))

    assert stop_cluster(tmp_path) == {"jobmanager": False}

    assert read_cluster_spec(tmp_path) is None
    assert missing_processes(tmp_path) == ()
    assert not list((tmp_path / "run" / "started").iterdir())


def test_settings_travel_in_a_file_of_their_owner_and_not_on_a_command_line(tmp_path: Path) -> None:
    key = "spark.hadoop.fs.s3a.secret.key"
    write_cluster_spec(tmp_path, ClusterSpec(jobmanagers=2, settings={key: SECRET}))

    assert stat.S_IMODE((tmp_path / SPEC_FILE).stat().st_mode) == 0o600
    assert read_settings_file(tmp_path / SPEC_FILE) == {key: SECRET}
    for name in ClusterSpec(jobmanagers=2, taskmanagers=2).names():
        command = " ".join(command_of(tmp_path, name))
        assert str(tmp_path / SPEC_FILE) in command
        assert SECRET not in command
    with pytest.raises(Invalid, match="cannot be read"):
        read_settings_file(tmp_path / "nothing")


def test_a_start_that_fails_expects_what_was_expected_before(tmp_path: Path) -> None:
    def fail() -> None:
        with expected_cluster(tmp_path, ClusterSpec(taskmanagers=2)):
            assert read_cluster_spec(tmp_path) == ClusterSpec(taskmanagers=2)
            raise Unavailable("the port is taken")

    with pytest.raises(Unavailable):
        fail()
    assert read_cluster_spec(tmp_path) is None
    write_cluster_spec(tmp_path, ClusterSpec(taskmanagers=3))
    with pytest.raises(Unavailable):
        fail()
    assert read_cluster_spec(tmp_path) == ClusterSpec(taskmanagers=3)


def test_two_do_not_start_processes_at_the_same_time(tmp_path: Path) -> None:
    with (
        start_lock(tmp_path, 0.0),
        pytest.raises(Conflict, match=f"process {os.getpid()} is starting"),
        start_lock(tmp_path, 0.2),
    ):
        raise AssertionError("both have the lock")
    with start_lock(tmp_path, 0.0):
        pass


def test_a_job_runs_embedded_only_where_no_cluster_was_ever_started(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    settings = load()
    state_dir = tmp_path / "state" / "flintlock" / "default"
    assert cluster_or_embedded(settings, (), state_dir) is None

    def refused() -> str:
        with pytest.raises(Unavailable) as raised:
            cluster_or_embedded(settings, (), state_dir)
        assert raised.value.unreachable
        return raised.value.public

    write(state_dir, "taskmanager-0.json", identity(sleeper.pid))  # a TaskManager lives, its JobManager is dead
    assert "start it with `flintlock cluster start`, or use --local" in refused()
    (state_dir / "run" / "taskmanager-0.json").unlink()
    write_cluster_spec(state_dir, ClusterSpec())
    refused()
    (state_dir / SPEC_FILE).unlink()
    (state_dir / "store.db").touch()  # stopped: its jobs are stored
    assert str(state_dir) in refused()
    (state_dir / "store.db").unlink()
    assert cluster_or_embedded(settings, (), state_dir) is None

    elsewhere = tmp_path / "other place"
    write_cluster_spec_in(elsewhere)
    with pytest.raises(Unavailable, match=f"--state-dir '{elsewhere}'`"):
        cluster_or_embedded(settings, (), elsewhere)


def test_what_shows_the_present_does_not_wait_for_a_jobmanager_that_is_started_again(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Other commands wait, and say so (`find_cluster`); a shell and `cluster status` are to answer at once."""
    write_cluster_spec(tmp_path, ClusterSpec(supervise=True))
    write(tmp_path, "supervisor.json", identity(sleeper.pid))  # and the JobManager was killed
    place = ["--state-dir", str(tmp_path)]

    began_s = time.monotonic()
    assert run_app(["cluster", "status", *place]) == 3
    completion = ShellComplete(app, {}, "flintlock", "_FLINTLOCK_COMPLETE")
    assert completion.get_completions(["status", *place], "") == []
    assert time.monotonic() - began_s < 15, "it has waited"
    output = capsys.readouterr()
    assert "waiting for the supervisor" not in output.err
    assert "missing       jobmanager" in output.err


def test_a_command_says_that_it_waits_for_a_jobmanager(capsys: pytest.CaptureFixture[str]) -> None:
    announce = announced_wait().announce
    assert announce is not None
    announce("waiting")
    assert capsys.readouterr() == ("", "waiting\n")


def write_cluster_spec_in(directory: Path) -> None:
    directory.mkdir()
    write_cluster_spec(directory, ClusterSpec())


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_run_names_the_cluster_that_does_not_run_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: tuple[str, ...]
) -> None:
    write_cluster_spec_in(tmp_path / "c")
    (tmp_path / "job.yaml").write_text("version: 1\nname: j\nsteps:\n  a: {sql: SELECT 1}\n")

    assert run_app(["run", "job.yaml", "--state-dir", "c", *quiet]) == 3

    error = capsys.readouterr().err
    assert f"error: the cluster of {tmp_path / 'c'} does not run: start it with `flintlock cluster start" in error
    assert "starting an embedded cluster" not in error


def test_a_configured_cluster_that_does_not_answer_is_named_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving({}) as server:
        port = server.url.rpartition(":")[2]
    (tmp_path / "flintlock.yaml").write_text(f"rest.port: {port}\n")
    (tmp_path / "job.yaml").write_text("version: 1\nname: j\nsteps:\n  a: {sql: SELECT 1}\n")

    assert run_app(["run", "job.yaml"]) == 3

    error = capsys.readouterr().err
    assert f"no cluster answers at http://127.0.0.1:{port}" in error
    assert f"configured by rest.port ({tmp_path / 'flintlock.yaml'}:1:1); start it with `flintlock cluster st" in error


def test_status_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cluster_spec_in(tmp_path / "c")
    write(tmp_path / "c", "exits/jobmanager.json", ExitFile(pid=7, start_time=5.0, code=4, reason="port 1 is in use"))

    assert run_app(["cluster", "status", "--state-dir", "c"]) == 3

    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == [
        "missing       jobmanager: port 1 is in use",
        "missing       taskmanager-0: it was killed, or never started",
    ]
