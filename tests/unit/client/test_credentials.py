"""Which credential a client sends, and to whom it sends none."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.unit.client.answering import serving

from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials
from flintlock.config.configuration import Configuration
from flintlock.host.processes.pid_files import ClusterFile, identity
from flintlock.model.errors import Forbidden, Refused, Unauthenticated
from flintlock.security.cluster_secret import open_cluster_secret
from flintlock.security.local_credentials import LIFETIME_MS, LocalAuthenticator

URL = "http://127.0.0.1:18081"
_LISTEN = """
import socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


def announce(state_dir: Path, url: str = URL) -> None:
    process = identity(os.getpid())
    file = ClusterFile(pid=process.pid, start_time=process.start_time, cluster_id="c", rest=url, epoch=1)
    (state_dir / "cluster.json").write_bytes(msgspec.json.encode(file))


def run(authenticator: LocalAuthenticator, credential: str, now_ms: int) -> str:
    principal = asyncio.run(authenticator.authenticate(credential, now_ms))
    assert principal is not None
    return principal.name


def test_the_user_who_runs_the_cluster_has_a_credential_made_with_its_secret(tmp_path: Path) -> None:
    secret = open_cluster_secret(Configuration({}), tmp_path)
    announce(tmp_path)
    credentials = ClientCredentials(Configuration({}), tmp_path)
    credential = credentials.find(URL, 1_000)
    assert credential is not None
    assert run(LocalAuthenticator(secret), credential, 1_000)
    assert (tmp_path / "cluster-secret").read_text().strip() not in credential
    assert credentials.find(URL, 2_000) == credential
    assert credentials.find(URL, LIFETIME_MS) != credential  # replaced long before it ends


def test_an_address_that_no_cluster_of_the_user_has_gets_nothing(tmp_path: Path) -> None:
    open_cluster_secret(Configuration({}), tmp_path)
    announce(tmp_path)
    credentials = ClientCredentials(Configuration({}), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert credentials.find(f"http://127.0.0.1:{other.getsockname()[1]}", 1_000) is None
    assert credentials.find("http://cluster.example:18081", 1_000) is None


def test_a_jobmanager_of_the_user_is_found_by_its_process(tmp_path: Path) -> None:
    secret = open_cluster_secret(Configuration({}), tmp_path / "elsewhere")
    command = [sys.executable, "-c", _LISTEN, "jobmanager", "--state-dir", str(tmp_path / "elsewhere")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        credential = ClientCredentials(Configuration({}), tmp_path).find(f"http://127.0.0.1:{port}", 1_000)
        process.kill()
    assert credential is not None
    assert run(LocalAuthenticator(secret), credential, 1_000)


def test_a_token_comes_before_the_secret_and_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from the file\n")
    announce(tmp_path)
    open_cluster_secret(Configuration({}), tmp_path)
    by_file = ClientCredentials(Configuration({"security.token-file": str(tmp_path / "token")}), tmp_path)
    assert by_file.find(URL, 1) == "from the file"
    assert ClientCredentials(Configuration({"security.token": "abc"}), tmp_path).find("http://other", 1) == "abc"
    with pytest.raises(Refused, match=r"security\.token-file"):
        ClientCredentials(Configuration({"security.token-file": str(tmp_path / "none")}), tmp_path).find(URL, 1)


class Made:
    """Credentials that are numbered."""

    def __init__(self) -> None:
        self.number = 0

    def find(self, url: str, now_ms: int) -> str | None:
        assert abs(now_ms - time.time() * 1000) < 60_000
        return f"number-{self.number}"

    @property
    def authorities(self) -> str:
        return ""

    def forget(self, url: str) -> bool:
        self.number += 1
        return True


def test_a_refused_credential_is_replaced_once_and_the_refusal_has_its_own_error(tmp_path: Path) -> None:
    for status, kind in ((401, Unauthenticated), (403, Forbidden)):
        credentials = Made()
        with (
            serving({"GET /versions": [(status, {"errors": ["because"]})] * 2}) as server,
            Client([server.url], credentials=credentials) as client,
            pytest.raises(kind, match="because"),
        ):
            client.versions()
        assert credentials.number == (1 if status == 401 else 0)
