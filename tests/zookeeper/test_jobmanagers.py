"""Real JobManager processes on ZooKeeper: what one has acknowledged, the next one knows, and leads at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio.to_thread
import httpx
import msgspec
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import until
from tests.zookeeper.servers import Ensemble
from tests.zookeeper.wire import Wire, wired

import flintlock as fl
from flintlock.entrypoints.process import EXIT_FATAL
from flintlock.testing import rest_requests

ROOT: Final = Path(__file__).parents[2]
BLOCKED: Final = ROOT / "tests" / "cluster" / "blocked_jobmanager.py"
JOB: Final = "ab" * 16
T = TypeVar("T")

#: The longest session that the server grants. A standby that leads long before it has passed did not wait for it.
LONG_SESSION: Final = "20 s"
LONG_BEFORE_S: Final = 10.0


class LeaderSilent(Exception):
    """The leader did not answer the member that forwarded a request to it."""


class JobManager:
    """One JobManager process with a state directory of its own, as if it were on a machine of its own."""

    def __init__(self, state_dir: Path, settings: dict[str, str], fatal_job: str = "") -> None:
        """`fatal_job`: the name of a job on which its loop never goes on."""
        self._state_dir: Final = state_dir
        flags = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
        program = [str(BLOCKED)] if fatal_job else ["-m", "flintlock.entrypoints.jobmanager"]
        command = [sys.executable, *program, "--state-dir", str(state_dir)]
        state_dir.mkdir()
        with (state_dir / "out").open("wb") as out:
            self.process: Final = subprocess.Popen(
                [*command, "--die-with-parent", str(os.getpid()), *flags], cwd=ROOT, stdout=out, stderr=out,
                env={**os.environ, "FATAL_JOB": f"{fatal_job}:block"},
            )  # fmt: skip

    @property
    def url(self) -> str:
        """Where its REST endpoint is, once it listens."""

        def listens() -> str | None:
            with suppress(OSError, msgspec.DecodeError):
                return msgspec.json.decode((self._state_dir / "run" / "jobmanager.json").read_bytes())["rest"]
            assert self.process.poll() is None, self.output[-4000:]
            return None

        return until("a JobManager that listens", listens)

    @property
    def is_announced(self) -> bool:
        """Whether its state directory names it as the leader."""
        return (self._state_dir / "cluster.json").exists()

    @property
    def output(self) -> str:
        """What it has printed."""
        return (self._state_dir / "out").read_text()

    def ask(self, path: str) -> httpx.Response | None:
        """Return what it answers, None if it does not."""
        with suppress(httpx.HTTPError):
            return rest_requests.get(f"{self.url}{path}", timeout=5, trust_env=False)
        return None

    def listing(self, after_epoch: int = 0) -> tuple[int, list[str]] | None:
        """Return the jobs it lists and the epoch of the answering leader; None without a leader of a later epoch."""
        answer = self.ask("/jobs/overview")
        if answer is None or not answer.is_success:
            assert answer is None or (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            return None
        epoch = int(answer.headers["flintlock-leader-epoch"])
        return (epoch, [job["jid"] for job in answer.json()["jobs"]]) if epoch > after_epoch else None

    def upload(self, content: bytes) -> str:
        """Upload a file for a later job."""
        answer = rest_requests.post(f"{self.url}/blobs", content=content, timeout=30, trust_env=False)
        assert answer.is_success, answer.text
        return answer.json()["blob"]

    def states(self) -> dict[str, str]:
        """Return the state of each job by its name; empty if no leader answers."""
        answer = self.ask("/jobs/overview")
        if answer is None or not answer.is_success:
            return {}
        return {job["name"]: job["state"] for job in answer.json()["jobs"]}

    def submit(self, job_id: str = JOB, blob: str | None = None, name: str = "waits for slots") -> None:
        """Submit a job that waits for slots; no TaskManager runs."""
        steps: dict[str, dict[str, Any]] = {"n": {"sql": "SELECT 1"}, "top": {"result": {}, "inputs": ["n"]}}
        artifacts = [] if blob is None else [{"name": "data.txt", "blob": blob}]
        body = {"name": name, "jobId": job_id, "steps": steps, "artifacts": artifacts}
        answer = rest_requests.post(f"{self.url}/jobs", json=body, timeout=30, trust_env=False)
        if answer.status_code == HTTPStatus.BAD_GATEWAY:  # from a member that is not the leader
            raise LeaderSilent(answer.text)
        assert answer.is_success, answer.text


@pytest.fixture
def settings(zookeeper: Ensemble, tmp_path: Path) -> dict[str, str]:
    return {
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper.quorum,
        "high-availability.zookeeper.client.session-timeout": LONG_SESSION,
        "high-availability.cluster-id": uuid.uuid4().hex,
        "high-availability.storageDir": str(tmp_path / "ha"),
        "rest.port": "0",
        **rest_requests.shared_secret(tmp_path),
    }


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def wire(zookeeper: Ensemble) -> AsyncGenerator[Wire]:
    async with wired(zookeeper.servers[0].port) as wire:
        yield wire


def start(running: ExitStack, state_dir: Path, settings: dict[str, str], fatal_job: str = "") -> JobManager:
    jobmanager = JobManager(state_dir, settings, fatal_job)

    def end() -> None:
        jobmanager.process.kill()
        jobmanager.process.wait()

    running.callback(end)
    return jobmanager


def start_leader_and_standbys(
    running: ExitStack, tmp_path: Path, settings: dict[str, str], standbys: int
) -> list[JobManager]:
    leader = start(running, tmp_path / "0", settings)
    until("a leader", leader.listing)
    return [leader, *(start(running, tmp_path / str(n + 1), settings) for n in range(standbys))]


def test_killed_and_terminated_leaders_are_replaced_long_before_their_session_expires(
    tmp_path: Path, settings: dict[str, str], running: ExitStack
) -> None:
    first, second, third = start_leader_and_standbys(running, tmp_path, settings, 2)
    used, unused = second.upload(b"used"), second.upload(b"not used yet")
    second.submit(blob=used)
    assert until("a standby that answers", third.listing) == (1, [JOB])

    first.process.send_signal(signal.SIGKILL)
    for survivor in (second, third):
        assert until("the next leader", lambda one=survivor: one.listing(1), LONG_BEFORE_S) == (2, [JOB])
    leader, standby = (second, third) if second.is_announced else (third, second)

    conf = tmp_path / "flintlock.yaml"
    conf.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    completed = flintlock("list", "--json", "--conf", conf, cwd=tmp_path)  # asks the quorum
    assert completed.returncode == 0, completed.stderr
    assert [job["jid"] for job in json.loads(completed.stdout)["jobs"]] == [JOB]
    with fl.connect(f"{first.url},{leader.url},{standby.url}") as client:
        leader.process.send_signal(signal.SIGTERM)
        assert until("the last one to lead", lambda: standby.listing(2), LONG_BEFORE_S) == (3, [JOB])
        assert [job.jid for job in client.jobs()] == [JOB]
    assert leader.process.wait(60) == 0
    assert not leader.is_announced
    assert standby.is_announced
    for job_id, blob in (("cd" * 16, used), ("ef" * 16, unused)):  # uploaded to a machine that is gone
        standby.submit(job_id, blob)


def test_a_frozen_leader_is_replaced_after_the_session_timeout_and_stands_by_when_it_wakes_up(
    tmp_path: Path, settings: dict[str, str], running: ExitStack
) -> None:
    short = {**settings, "high-availability.zookeeper.client.session-timeout": "3 s"}
    first, second = start_leader_and_standbys(running, tmp_path, short, 1)
    first.submit()
    until("the standby", second.listing)
    (epoch, _) = until("an epoch", first.listing)

    first.process.send_signal(signal.SIGSTOP)
    assert until("the standby to lead", lambda: second.listing(epoch)) == (epoch + 1, [JOB])
    first.process.send_signal(signal.SIGCONT)

    assert until("the old leader to forward", lambda: first.listing(epoch)) == (epoch + 1, [JOB])
    lost = [json.loads(line) for line in first.output.splitlines() if '"leadership-lost"' in line]
    assert [(line["epoch"], "session" in line["reason"]) for line in lost] == [(epoch, True)]
    until("the old leader to remove its cluster file", lambda: not first.is_announced)
    assert first.process.poll() is None


def test_a_job_that_blocks_leader_after_leader_is_quarantined_and_the_other_one_goes_on(
    tmp_path: Path, settings: dict[str, str], running: ExitStack
) -> None:
    """The threads of ZooKeeper's client keep the session of a blocked leader alive: it ends itself."""
    short = {**settings, "high-availability.zookeeper.client.session-timeout": "6 s"}
    members = [start(running, tmp_path / str(n), short, fatal_job="fatal") for n in range(2)]
    until("a leader", members[0].listing)
    members[0].submit(name="innocent")
    with suppress(httpx.HTTPError, LeaderSilent):  # the job may block the leader before it answers
        members[0].submit("cd" * 16, name="fatal")
    ended: list[JobManager] = []

    def is_quarantined() -> bool:
        """Start what has ended again, as a service manager does."""
        for place, member in enumerate(members):
            if member.process.poll() is not None:
                ended.append(member)
                members[place] = start(running, tmp_path / str(len(members) + len(ended)), short, fatal_job="fatal")
        return any(member.states() == {"innocent": "RUNNING", "fatal": "FAILED"} for member in members)

    until("a leader that stays", is_quarantined, 240.0)
    assert [member.process.returncode for member in ended] == [EXIT_FATAL, EXIT_FATAL]
    assert all("its event loop has stood still for" in member.output for member in ended)


@pytest.mark.anyio
async def test_a_leader_that_is_cut_off_answers_503_and_back_in_time_it_goes_on(
    tmp_path: Path, settings: dict[str, str], running: ExitStack, wire: Wire
) -> None:
    async def seen(what: str, condition: Callable[[], T | None]) -> T:
        return await anyio.to_thread.run_sync(lambda: until(what, condition))

    leader = start(running, tmp_path / "0", {**settings, "high-availability.zookeeper.quorum": wire.address})
    assert await seen("a leader", leader.listing) == (1, [])

    wire.cut()
    refusal = await seen("a refusal", lambda: _refusal(leader.ask("/taskmanagers")))
    assert "does not know whether it still leads" in refusal
    assert await seen("its own health", lambda: leader.ask("/healthz"))
    wire.restore()
    assert await seen("the leader to go on", leader.listing) == (1, [])
    assert "leadership-lost" not in leader.output


def _refusal(answer: httpx.Response | None) -> str | None:
    if answer is None or answer.status_code != 503:
        return None
    assert answer.headers["retry-after"] == "1"
    return answer.json()["errors"][0]


def test_settings_that_are_missing_are_named_all_at_once(tmp_path: Path, running: ExitStack) -> None:
    jobmanager = start(running, tmp_path / "one", {"high-availability.type": "zookeeper"})

    assert jobmanager.process.wait(30) == 2
    assert "high-availability.zookeeper.quorum has to be set" in jobmanager.output
    assert "high-availability.storageDir has to be set" in jobmanager.output


def test_commands_without_a_leader_say_so_and_start_nothing(tmp_path: Path, settings: dict[str, str]) -> None:
    conf = tmp_path / "flintlock.yaml"
    conf.write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (tmp_path / "job.yaml").write_text("version: 1\nname: x\nsteps:\n  a: {sql: SELECT 1}\n")

    completed = flintlock("run", "job.yaml", "--conf", conf, cwd=tmp_path)

    assert completed.returncode == 3, completed.stderr
    assert "has no leading JobManager" in completed.stderr
