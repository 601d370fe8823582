from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import msgspec
import pytest

from flintlock.client.clusters.discovery import NO_WAIT, RestartWait, find_cluster
from flintlock.client.clusters.local_cluster import cluster_status, remove_leftovers, stop_cluster
from flintlock.config.files import load
from flintlock.host.cluster_spec import ClusterSpec, write_cluster_spec, write_given_up
from flintlock.host.processes import pid_files
from flintlock.host.processes.pid_files import (
    PidFile,
    announced,
    identity,
    job_managers,
    read_cluster_file,
    record_exit,
    running,
)
from flintlock.model.errors import Invalid, Unavailable


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def write_pid(state_dir: Path, name: str, pid: PidFile) -> None:
    (state_dir / "run").mkdir(exist_ok=True)
    (state_dir / "run" / f"{name}.json").write_bytes(msgspec.json.encode(pid))


def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    meant = identity(sleeper.pid)

    assert running(meant) is not None
    assert running(PidFile(pid=meant.pid, start_time=meant.start_time - 60)) is None
    sleeper.kill()
    sleeper.wait()
    assert running(meant) is None


def test_a_process_with_a_used_pid_is_never_ended(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    write_pid(tmp_path, "taskmanager-0", PidFile(pid=sleeper.pid, start_time=1.0))

    assert stop_cluster(tmp_path) == {}
    assert sleeper.poll() is None


def test_a_process_of_the_cluster_is_ended_and_forgotten(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    meant = identity(sleeper.pid)
    write_pid(tmp_path, "taskmanager-0", meant)
    assert cluster_status(tmp_path).processes == {"taskmanager-0": sleeper.pid}

    assert stop_cluster(tmp_path) == {"taskmanager-0": False}
    assert running(meant) is None
    assert not (tmp_path / "run" / "taskmanager-0.json").exists()


def test_one_that_does_not_obey_is_killed(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        meant = identity(stubborn.pid)
        write_pid(tmp_path, "jobmanager", meant)

        assert stop_cluster(tmp_path, patience_s=0.2) == {"jobmanager": True}
        assert running(meant) is None


def test_a_cluster_file_counts_only_while_its_jobmanager_runs(tmp_path: Path) -> None:
    own = identity(os.getpid())
    document = {"cluster-id": "default", "rest": "http://127.0.0.1:1", "pid": own.pid, "start-time": own.start_time}
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(document))
    found = read_cluster_file(tmp_path)
    assert found is not None
    assert found.rest == "http://127.0.0.1:1"

    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode({**document, "start-time": 5.0}))
    assert read_cluster_file(tmp_path) is None
    (tmp_path / "cluster.json").write_text('{"cluster-id": ')
    assert read_cluster_file(tmp_path) is None


def announce(state_dir: Path, file: str, rest: str, process: PidFile, epoch: int = 0) -> None:
    document = {"cluster-id": "default", "rest": rest, "rpc": "", "pid": process.pid, "start-time": process.start_time}
    (state_dir / "run").mkdir(exist_ok=True)
    (state_dir / file).write_bytes(msgspec.json.encode({**document, "epoch": epoch}))


def test_the_leader_comes_first_and_a_dead_one_does_not_count(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    own, other = identity(os.getpid()), identity(sleeper.pid)
    announce(tmp_path, "run/jobmanager.json", "http://h:1", own)
    announce(tmp_path, "run/jobmanager-1.json", "http://h:2", other)
    announce(tmp_path, "cluster.json", "http://h:2", other, epoch=7)

    assert [(file.rest, file.epoch) for file in job_managers(tmp_path)] == [("http://h:2", 7), ("http://h:1", 0)]
    assert cluster_status(tmp_path).processes == {"jobmanager": own.pid, "jobmanager-1": other.pid}

    sleeper.kill()
    sleeper.wait()
    assert [file.rest for file in job_managers(tmp_path)] == ["http://h:1"]
    found = read_cluster_file(tmp_path)
    assert found is not None
    assert (found.rest, found.epoch) == ("http://h:1", 0)
    assert [file.rest for file in announced(tmp_path)] == ["http://h:2", "http://h:1"]


def test_a_configured_address_brings_the_others_of_its_state_directory(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own, dead = identity(os.getpid()), PidFile(pid=sleeper.pid, start_time=5.0)
    announce(tmp_path, "run/jobmanager.json", "http://127.0.0.1:9", dead)
    announce(tmp_path, "run/jobmanager-1.json", "http://127.0.0.1:10", own)

    def addresses(*settings: str, urls: tuple[str, ...] = ()) -> tuple[str, ...] | None:
        found = find_cluster(load(settings), urls, tmp_path)
        return None if found is None else found.urls

    assert addresses() == ("http://127.0.0.1:10",)
    assert addresses("rest.port=9") == ("http://127.0.0.1:10",)
    assert addresses("rest.port=11") == ("http://127.0.0.1:11",)  # of another cluster: this one is not meant
    assert addresses(urls=("http://a:1", "http://b:1")) == ("http://a:1", "http://b:1")


def test_a_jobmanager_that_its_supervisor_starts_again_is_waited_for(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its users may not conclude that the cluster has ended, and start it again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own = identity(os.getpid())
    write_cluster_spec(tmp_path, ClusterSpec(supervise=True))
    write_pid(tmp_path, "supervisor", identity(sleeper.pid))

    def killed() -> None:
        announce(tmp_path, "run/jobmanager.json", "http://127.0.0.1:9", PidFile(pid=own.pid, start_time=5.0))

    killed()
    again = Timer(0.3, announce, (tmp_path, "run/jobmanager.json", "http://127.0.0.1:10", own))
    again.start()
    found = find_cluster(load(), (), tmp_path)
    again.join()
    assert found is not None
    assert found.urls == ("http://127.0.0.1:10",)

    killed()
    assert find_cluster(load(), (), tmp_path, NO_WAIT) is None
    write_given_up(tmp_path, {"jobmanager": "it was killed"})
    assert find_cluster(load(), (), tmp_path) is None
    write_given_up(tmp_path, {})
    sleeper.kill()
    sleeper.wait()
    assert find_cluster(load(), (), tmp_path) is None


@pytest.mark.parametrize(("code", "waited"), [(0, False), (2, False), (6, False), (1, True), (None, True)])
def test_a_jobmanager_that_ended_by_intent_is_not_waited_for(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    code: int | None,
    *,
    waited: bool,
) -> None:
    """Its supervisor does not start it again, although it stays for the TaskManagers. Without a code it was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    write_cluster_spec(tmp_path, ClusterSpec(supervise=True))
    write_pid(tmp_path, "supervisor", identity(sleeper.pid))
    if code is not None:
        record_exit(tmp_path, "jobmanager", code)

    said: list[str] = []
    assert find_cluster(load(), (), tmp_path, RestartWait(limit_s=0.2, announce=said.append)) is None
    assert bool(said) is waited
    assert len(said) <= 1


def test_with_zookeeper_those_of_the_state_directory_stand_in_while_it_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    settings = load(
        (
            "high-availability.type=zookeeper",
            "high-availability.zookeeper.quorum=127.0.0.1:1",
            "high-availability.zookeeper.client.connection-timeout=200 ms",
            "rest.port=9",  # the JobManagers' own: clients ask the quorum
        )
    )
    with pytest.raises(Unavailable, match="has not answered") as raised:
        find_cluster(settings, (), tmp_path)
    assert raised.value.unreachable

    announce(tmp_path, "run/jobmanager.json", "http://127.0.0.1:10", identity(os.getpid()))
    found = find_cluster(settings, (), tmp_path)
    assert found is not None
    assert found.urls == ("http://127.0.0.1:10",)
    with pytest.raises(Invalid, match=r"zookeeper\.quorum has to be set"):
        find_cluster(load(("high-availability.type=zookeeper",)), (), tmp_path)
    named = find_cluster(load(("high-availability.type=zookeeper",)), ("http://a:1",), tmp_path)
    assert named is not None
    assert named.urls == ("http://a:1",)


def test_stopping_a_cluster_forgets_those_that_ended_before(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    announce(tmp_path, "run/jobmanager.json", "http://h:1", PidFile(pid=sleeper.pid, start_time=5.0))
    announce(tmp_path, "run/jobmanager-1.json", "http://h:2", identity(sleeper.pid))

    assert stop_cluster(tmp_path) == {"jobmanager-1": False}
    assert announced(tmp_path) == []


def test_a_started_process_writes_its_log(tmp_path: Path) -> None:
    started = pid_files.start("this", ["this"], tmp_path / "log" / "this.log")

    assert started.ended_within(30)
    assert started.process.returncode == 0
    assert "Beautiful is better than ugly" in started.tail()


def test_only_directories_of_embedded_clusters_without_an_owner_are_removed(tmp_path: Path) -> None:
    own = identity(os.getpid())
    for name, owner in {
        "flintlock-embedded-gone": PidFile(pid=own.pid, start_time=5.0),
        "flintlock-embedded-running": own,
        "unrelated": PidFile(pid=own.pid, start_time=5.0),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "owner.json").write_bytes(msgspec.json.encode(owner))
    (tmp_path / "flintlock-embedded-unknown").mkdir()

    remove_leftovers(tmp_path)

    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["flintlock-embedded-running", "flintlock-embedded-unknown", "unrelated"]
