"""A real JobManager as it starts without any configuration: who is served, what is closed, what survives a restart."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until

import flintlock as fl

_AS_NOBODY = """
import encodings.idna, http.client, os, sys  # all before this user can read no module any more
os.setgroups([]); os.setgid(65534); os.setuid(65534)
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("GET", "/jobs")
print(connection.getresponse().status)
try:
    print(open(sys.argv[2] + "/cluster-secret").read())
except PermissionError:
    print("closed")
"""


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Processes]:
    """A JobManager without TaskManagers, in a directory that was open to everybody."""
    state_dir = tmp_path / "cluster"
    state_dir.mkdir(mode=0o755)
    processes = Processes(state_dir)
    try:
        processes.start_jobmanager()
        processes.await_leader()
        yield processes
    finally:
        processes.stop()


def test_a_request_without_a_credential_is_refused_and_the_own_commands_need_no_set_up(
    alone: Processes, tmp_path: Path
) -> None:
    refused = httpx.get(f"{alone.url}/jobs", trust_env=False)
    assert refused.status_code == 401
    assert "flintlock token create" in refused.json()["errors"][0]
    assert httpx.get(f"{alone.url}/healthz", trust_env=False).status_code == 200
    page = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert httpx.post(f"{alone.url}/jobs", json={}, headers=page, trust_env=False).status_code == 403

    assert flintlock("list", "-m", alone.url, cwd=tmp_path).returncode == 0
    assert flintlock("list", "--state-dir", alone.state_dir, cwd=tmp_path).returncode == 0
    with fl.connect(alone.url) as client:
        assert client.jobs() == ()


def test_the_audit_log_has_the_address_that_connects_and_not_one_that_the_client_claims(alone: Processes) -> None:
    claims = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}
    assert httpx.get(f"{alone.url}/jobs", headers=claims, trust_env=False).status_code == 401
    log = alone.state_dir / "log" / "jobmanager-audit.log"
    line = until("the refusal", lambda: log.read_bytes().splitlines()[-1:])[0]
    assert msgspec.json.decode(line)["from"] == "127.0.0.1"


def test_everything_in_the_state_directory_is_closed_to_other_users(alone: Processes) -> None:
    assert stat.S_IMODE(alone.state_dir.stat().st_mode) == 0o700
    for name in ("cluster-secret", "store.db", "store.db-wal", "store.db-shm", "log/jobmanager-audit.log"):
        assert stat.S_IMODE((alone.state_dir / name).stat().st_mode) == 0o600, name


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")
def test_another_user_of_the_machine_is_refused(alone: Processes) -> None:
    command = [sys.executable, "-c", _AS_NOBODY, alone.url.removeprefix("http://"), str(alone.state_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["401", "closed"]


def test_tokens_survive_a_killed_leader_and_so_does_their_end(alone: Processes, tmp_path: Path) -> None:
    def create(name: str) -> tuple[str, str]:
        made = flintlock(
            "token", "create", "--role", "viewer", "--name", name, "--expires", "1d", "--json", "-m", alone.url,
            cwd=tmp_path,
        )  # fmt: skip
        found = msgspec.json.decode(made.stdout)
        return found["id"], found["token"]

    (_, kept), (gone_id, gone) = create("kept"), create("gone")
    assert flintlock("token", "revoke", gone_id, "-m", alone.url, cwd=tmp_path).returncode == 0
    alone.kill_jobmanager()
    alone.start_jobmanager()
    alone.await_leader()

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{alone.url}/whoami", headers=headers, trust_env=False).status_code

    assert (status(kept), status(gone)) == (200, 401)
    listed = flintlock("token", "list", "--json", "-m", alone.url, cwd=tmp_path).stdout
    assert [each["name"] for each in msgspec.json.decode(listed)["tokens"]] == ["kept"]
    assert kept not in (alone.state_dir / "log" / "jobmanager-audit.log").read_text()


def test_a_link_opens_a_session_that_a_restart_does_not_end(alone: Processes, tmp_path: Path) -> None:
    link = flintlock("dashboard", "-m", alone.url, cwd=tmp_path).stdout.strip()
    url, _, code = link.partition("/login#")
    answer = httpx.post(f"{url}/login", json={"code": code}, trust_env=False)
    cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
    assert httpx.get(f"{alone.url}/jobs", headers=cookie, trust_env=False).status_code == 200
    alone.kill_jobmanager()
    alone.start_jobmanager()
    alone.await_leader()
    assert httpx.get(f"{alone.url}/jobs", headers=cookie, trust_env=False).status_code == 200
    assert httpx.delete(f"{alone.url}/cluster", headers=cookie, trust_env=False).status_code == 403
    again = httpx.post(f"{alone.url}/login", json={"code": code}, trust_env=False)
    assert "flintlock dashboard" in again.json()["errors"][0]


def test_a_new_secret_ends_what_was_made_with_the_former_one(alone: Processes) -> None:
    with fl.connect(alone.url, state_dir=alone.state_dir) as client:
        assert client.jobs() == ()
        alone.stop()
        (alone.state_dir / "cluster-secret").unlink()
        alone.start_jobmanager()
        alone.await_leader()
        stale = httpx.get(
            f"{alone.url}/jobs", headers={"Authorization": "Bearer flc_eA.9999999999999.x"}, trust_env=False
        )
        assert stale.status_code == 401
    with fl.connect(alone.url, state_dir=alone.state_dir) as client:
        assert client.jobs() == ()
