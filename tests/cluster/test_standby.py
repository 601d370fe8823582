"""Several JobManagers over one state directory, as real processes: every one answers, and one leads.

Most of it needs no Spark: without a TaskManager jobs wait, and that is enough to be listed, cancelled and not lost.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.zookeeper.servers import Ensemble, zookeeper

import flintlock as fl
from flintlock.client.clusters.discovery import RunningCluster
from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials
from flintlock.client.errors import JobCanceled
from flintlock.config.configuration import Configuration
from flintlock.host.processes.pid_files import ClusterFile, announced, job_managers, running
from flintlock.model.states import JobStatus
from flintlock.testing import rest_requests

__all__ = ["zookeeper"]

SILENCE_S = 2.0
PROMPT_S = 3.0  # the aim is one second on a machine that does nothing else; this is for one that does


class Masters:
    """JobManagers by their index."""

    def __init__(
        self,
        state_dir: Path,
        *,
        command: Sequence[str] = ("-m", "flintlock.entrypoints.jobmanager"),
        environment: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.state_dir = state_dir
        self.command = command
        self.environment = {**os.environ, **(environment or {})}
        self.silence_s = silence_s
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, index: int) -> ClusterFile:
        """Start one and return where it listens."""
        with (self.state_dir / f"jobmanager-{index}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *self.command, "--state-dir", str(self.state_dir),
                 "--index", str(index), "-D", "rest.port=0",
                 "-D", f"high-availability.embedded.silence-timeout={self.silence_s:g}s"],
                stdout=log, stderr=log, env=self.environment,
            )  # fmt: skip
        self.all.append(process)

        def listens() -> ClusterFile | None:
            assert process.poll() is None, (self.state_dir / f"jobmanager-{index}.log").read_text()[-4000:]
            return next((file for file in job_managers(self.state_dir) if file.pid == process.pid), None)

        return until("a JobManager that listens", listens, 60.0)

    @property
    def leader(self) -> ClusterFile:
        """The leader, once there is one."""

        def leads() -> ClusterFile | None:
            return next((file for file in job_managers(self.state_dir) if file.epoch), None)

        return until("a leader", leads, 60.0)

    @property
    def standby(self) -> ClusterFile:
        """One that does not."""
        return next(file for file in job_managers(self.state_dir) if not file.epoch)

    def process(self, file: ClusterFile) -> subprocess.Popen[bytes]:
        """Return the process of one."""
        return next(process for process in self.all if process.pid == file.pid)

    def client(self) -> Client:
        """Return a client that knows the state directory."""
        urls = tuple(file.rest for file in job_managers(self.state_dir))
        credentials = ClientCredentials(Configuration({}), self.state_dir)
        return RunningCluster(urls=urls, state_dir=self.state_dir, credentials=credentials).client()

    def stop(self) -> None:
        """End all of them."""
        for process in self.all:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.all:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def masters(tmp_path: Path) -> Iterator[Masters]:
    """Two JobManagers, one of which leads."""
    made = Masters(tmp_path)
    try:
        made.start(0)
        _ = made.leader
        made.start(1)
        yield made
    finally:
        made.stop()


def job(name: str) -> fl.Job:
    made = fl.Job(name)
    made.result("r", made.sql("one", "SELECT 1 AS x"))
    return made


def listed(url: str, after_epoch: int = 0) -> Mapping[str, str] | None:
    """Return the jobs that a JobManager lists, by name; None if no later leader answers there."""
    try:
        response = rest_requests.get(url + "/jobs/overview", trust_env=False, timeout=60)
    except httpx.TransportError:
        return None
    if response.status_code != 200:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        return None
    if int(response.headers["flintlock-leader-epoch"]) <= after_epoch:
        return None
    return {line["name"]: line["state"] for line in response.json()["jobs"]}


@pytest.mark.parametrize(
    ("number", "limit_s", "code"),
    [
        (signal.SIGKILL, PROMPT_S, -signal.SIGKILL),
        (signal.SIGTERM, PROMPT_S, 0),
        (signal.SIGSTOP, SILENCE_S + PROMPT_S, -signal.SIGKILL),
    ],
    ids=["killed", "terminated", "stopped"],
)
def test_when_the_leader_goes_the_standby_knows_every_job(
    masters: Masters, number: signal.Signals, limit_s: float, code: int
) -> None:
    leader, standby = masters.leader, masters.standby
    with fl.connect(leader.rest) as first, fl.connect(standby.rest) as second:
        first.submit(job("through the leader"))
        second.submit(job("through the standby"))
        over = second.submit(job("over"))
        over.cancel()
        with pytest.raises(JobCanceled):
            over.wait(30)
    before = listed(standby.rest)
    assert before == listed(leader.rest)
    assert before is not None
    assert before["over"] == "CANCELED"

    process = masters.process(leader)
    at_s = time.monotonic()
    process.send_signal(number)
    after = until("the jobs on the other", lambda: listed(standby.rest, leader.epoch), 30.0)
    took_s = time.monotonic() - at_s

    assert after.keys() == before.keys()
    assert after["over"] == "CANCELED"
    assert took_s < limit_s
    assert process.wait(20) == code
    assert masters.leader.rest == standby.rest

    back = masters.start(0)
    assert until("the same through the one that is back", lambda: listed(back.rest)) is not None
    assert masters.leader.rest == standby.rest


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=["killed", "terminated", "stopped"]
)
def test_submissions_that_are_being_sent_make_one_job_each(masters: Masters, number: signal.Signals) -> None:
    """Four clients send jobs, each twice under one key, while leaders go and come."""
    leader = masters.leader
    keys = [f"job-{number}" for number in range(40)]
    begun = Event()

    def send(share: list[str]) -> dict[str, set[str]]:
        ids: dict[str, set[str]] = {}
        with masters.client() as client:
            for key in share:
                ids[key] = {client.submit(job(key), idempotency_key=key).id for _ in range(2)}
                begun.set()
        return ids

    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(send, keys[start::4]) for start in range(4)]
        assert begun.wait(30)
        masters.process(leader).send_signal(number)
        made = {key: ids for share in sent for key, ids in share.result(60).items()}

    assert all(len(ids) == 1 for ids in made.values()), made
    with masters.client() as client:
        lines = client.jobs()
    assert sorted(line.name for line in lines) == sorted(keys)
    assert {line.name: {line.jid} for line in lines} == made
    assert masters.leader.rest != leader.rest


def test_handles_follow_the_leader(masters: Masters) -> None:
    """wait() and events() of one job, through two changes of leader."""
    with masters.client() as client, masters.client() as another, ThreadPoolExecutor(2) as pool:
        handle = client.submit(job("followed"))
        states: list[JobStatus] = []

        def read() -> None:
            states.extend(line.state for line in another.job(handle.id).events())

        waiting = pool.submit(handle.wait, 120)
        reading = pool.submit(read)
        until("an event", lambda: states)
        for index, number in enumerate((signal.SIGKILL, signal.SIGTERM)):
            leader = masters.leader
            masters.process(leader).send_signal(number)
            until("another leader", lambda old=leader: masters.leader.epoch > old.epoch)
            masters.start(index)
        assert not waiting.done()
        with masters.client() as third:  # a new one: it knows none of the addresses that the first began with
            third.job(handle.id).cancel()

        with pytest.raises(JobCanceled):
            waiting.result(60)
        reading.result(60)
    assert states[-1] is JobStatus.CANCELED


@pytest.mark.parametrize("command", ["run", "logs"])
def test_commands_follow_the_leader(masters: Masters, tmp_path: Path, command: str) -> None:
    (tmp_path / "job.yaml").write_text(
        "version: 1\nname: followed\nsteps:\n  one: {sql: SELECT 1 AS x}\n  r: {result: {}, inputs: [one]}\n"
    )
    arguments = ["run", "job.yaml"]
    if command == "logs":
        completed = flintlock("run", "-d", "job.yaml", "--state-dir", tmp_path, cwd=tmp_path)
        arguments = ["logs", "-f", completed.stdout.strip()]
    shell = subprocess.Popen(
        [sys.executable, "-m", "flintlock", *arguments, "--state-dir", str(tmp_path)],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "none")},
    )  # fmt: skip
    with shell:
        try:
            leader = masters.leader
            until("the job", lambda: listed(leader.rest))
            masters.process(leader).kill()
            until("the job on the other", lambda: listed(masters.leader.rest, leader.epoch))
            assert shell.poll() is None
            ended = flintlock("cancel", "followed", "--state-dir", tmp_path, cwd=tmp_path)
            assert ended.returncode == 0, ended.stderr
            output, errors = shell.communicate(timeout=60)
        finally:
            shell.kill()
    assert shell.returncode == (1 if command == "run" else 0), errors
    assert "Traceback" not in output + errors
    if command == "run":
        assert "CANCELED" in errors


def test_addresses_may_be_given_in_place_of_the_state_directory(masters: Masters, tmp_path: Path) -> None:
    leader, standby = masters.leader, masters.standby
    with fl.connect([leader.rest, standby.rest]) as client:
        client.submit(job("kept"))
        masters.process(leader).kill()
        assert [line.name for line in client.jobs()] == ["kept"]
    with fl.connect(f"{leader.rest},{standby.rest}") as client:
        assert [line.name for line in client.jobs()] == ["kept"]
    for several in (("-m", leader.rest, "-m", standby.rest), ("-m", f"{leader.rest}, {standby.rest}")):
        completed = flintlock("list", *several, "--json", cwd=tmp_path)
        assert [line["name"] for line in json.loads(completed.stdout)["jobs"]] == ["kept"]
    alone = flintlock("list", "-m", leader.rest, cwd=tmp_path)
    assert alone.returncode == 3


def status_of(tmp_path: Path, code: int = 0) -> dict[str, Any]:
    completed = flintlock("cluster", "status", "--json", "--state-dir", tmp_path / "c", cwd=tmp_path)
    assert completed.returncode == code, completed.stderr
    return json.loads(completed.stdout)


def test_a_cluster_with_two_jobmanagers_runs_jobs_through_a_change_of_leader(
    tmp_path: Path, zookeeper: Ensemble
) -> None:
    """Started, looked at, bereaved of its leader and stopped by the command line; the TaskManager moves along.

    Over ZooKeeper: commands and TaskManager ask the quorum who leads.
    """
    (tmp_path / "flintlock.yaml").write_text(
        f"high-availability.type: zookeeper\nhigh-availability.zookeeper.quorum: {zookeeper.quorum}\n"
        f"high-availability.storageDir: {tmp_path / 'ha'}\nhigh-availability.cluster-id: {uuid.uuid4().hex}\n"
        "high-availability.zookeeper.client.session-timeout: 15 s\n"
    )
    (tmp_path / "job.yaml").write_text(
        "version: 1\nname: small\nsteps:\n  one: {sql: SELECT 1 AS x}\n  r: {result: {}, inputs: [one]}\n"
    )
    place = ("--state-dir", tmp_path / "c")
    try:
        started = flintlock(
            "cluster", "start", "--jobmanagers", "2", "--slots", "1", "-D", "rest.port=0", "--json", *place,
            "-D", "cluster.supervise=false", cwd=tmp_path, timeout_s=300,
        )  # fmt: skip
        assert started.returncode == 0, started.stderr
        members = json.loads(started.stdout)
        assert len(members["standbys"]) == 1
        before = status_of(tmp_path)
        assert (before["leader"], sorted(before["jobmanagers"])) == (
            members["rest"],
            sorted([members["rest"], *members["standbys"]]),
        )
        assert before["processes"].keys() == {"jobmanager", "jobmanager-1", "taskmanager-0"}
        first = flintlock("run", "job.yaml", *place, cwd=tmp_path)
        assert first.returncode == 0, first.stderr

        leader = next(file for file in job_managers(tmp_path / "c") if file.epoch)
        os.kill(leader.pid, signal.SIGKILL)
        second = flintlock("run", "job.yaml", *place, cwd=tmp_path)
        assert second.returncode == 0, second.stderr
        after = status_of(tmp_path, code=1)
        assert after["missing"].keys() == {"jobmanager"} or after["missing"].keys() == {"jobmanager-1"}
        assert after["leader"] == members["standbys"][0]
        assert leader.rest == members["rest"]
        assert len(after["jobmanagers"]) == 1
        assert after["overview"]["jobs-finished"] == 2
    finally:
        stopped = flintlock("cluster", "stop", "--json", *place, cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert not any(running(file) for file in announced(tmp_path / "c"))
    assert not (tmp_path / "c" / "cluster.json").exists()


def test_shutting_the_cluster_down_ends_every_jobmanager_and_keeps_its_jobs(masters: Masters) -> None:
    """Asked of the standby, which forwards it."""
    with masters.client() as client:
        job_id = client.submit(job("kept")).id
    answer = rest_requests.delete(f"{masters.standby.rest}/cluster", timeout=30.0)
    assert (answer.status_code, answer.json()) == (200, {})

    assert [process.wait(30) for process in masters.all] == [0, 0]

    masters.start(2)
    with masters.client() as client:
        assert client.job(job_id).id == job_id
    listed = rest_requests.get(f"{masters.leader.rest}/jobs", timeout=30.0).json()
    assert [(job["id"], job["status"]) for job in listed["jobs"]] == [(job_id, "RUNNING")]
