"""Processes that listen beyond loopback: with TLS a job runs through all of them, without it none starts."""

from __future__ import annotations

import base64
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import grpc
import psutil
import pytest
from tests.cluster.processes import until

from flintlock.client.authoring.job import Job
from flintlock.client.connection.client import Client
from flintlock.client.connection.credentials import ClientCredentials
from flintlock.config.configuration import Configuration
from flintlock.host.processes.pid_files import ClusterFile, job_managers
from flintlock.security.certificates import AUTHORITY, issue, make_authority
from flintlock.spark.engine.conf import UI_KEY

ADDRESS = "127.0.0.1"
UI_PATHS = ("/jobs/", "/api/v1/applications")


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    make_authority(tmp_path / "certs")
    member = issue(tmp_path / "certs", ["node1"], tmp_path / "certs" / "node1")
    return {
        "security.tls.certificate-file": str(member),
        "security.tls.ca-file": str(tmp_path / "certs" / AUTHORITY),
        "rest.port": "0",
        "rest.bind-address": "0.0.0.0",
        "jobmanager.bind-host": "0.0.0.0",
        "taskmanager.bind-host": "0.0.0.0",
        "taskmanager.numberOfTaskSlots": "1",
    }


@pytest.fixture
def running() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(
    kind: str, state_dir: Path, settings: dict[str, str], running: ExitStack, index: int = 0
) -> subprocess.Popen[bytes]:
    flags = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    state_dir.mkdir(exist_ok=True)
    with (state_dir / f"{kind}-{index}.out").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", f"flintlock.entrypoints.{kind}", "--state-dir", str(state_dir),
             "--index", str(index), "--die-with-parent", str(os.getpid()), *flags],
            stdout=out, stderr=out,
        )  # fmt: skip

    def end() -> None:
        process.terminate()
        process.wait(30)

    running.callback(end)
    return process


def file_of(process: subprocess.Popen[bytes], state_dir: Path) -> ClusterFile:
    def found() -> ClusterFile | None:
        assert process.poll() is None, "".join(path.read_text()[-3000:] for path in state_dir.glob("*.out"))
        return next((file for file in job_managers(state_dir) if file.pid == process.pid), None)

    return until("a JobManager that listens", found, 60)


def client(url: str, settings: dict[str, str], state_dir: Path) -> Client:
    return Client([url], credentials=ClientCredentials(Configuration(settings), state_dir))


@pytest.mark.parametrize("kind", ["jobmanager", "taskmanager"])
def test_no_process_listens_beyond_loopback_without_tls(
    tmp_path: Path, settings: dict[str, str], running: ExitStack, kind: str
) -> None:
    open_settings = {key: value for key, value in settings.items() if not key.startswith("security.")}
    process = start(kind, tmp_path / "state", open_settings, running)

    assert process.wait(60) == 2
    out = (tmp_path / "state" / f"{kind}-0.out").read_text()
    assert "`flintlock certs init`, then `flintlock certs issue HOST`" in out


def connections(process: psutil.Process) -> list[Any]:
    """Return the connections of a process; none of one that has ended, as a runner does after its task."""
    try:
        return list(process.net_connections("tcp"))
    except psutil.NoSuchProcess:
        return []


def test_a_job_runs_over_tls_and_everything_that_listens_is_closed_to_strangers(
    tmp_path: Path, settings: dict[str, str], running: ExitStack
) -> None:
    state_dir = tmp_path / "state"
    leader = start("jobmanager", state_dir, settings, running)
    file = file_of(leader, state_dir)
    until("a leader", lambda: next((each for each in job_managers(state_dir) if each.epoch), None), 60)
    standby = file_of(start("jobmanager", state_dir, settings, running, index=1), state_dir)
    key = base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")
    worker = start(
        "taskmanager", state_dir, {**settings, "spark.ui.enabled": "true", "spark.ui.port": "0", UI_KEY: key}, running
    )

    assert urlsplit(file.rest).scheme == urlsplit(standby.rest).scheme == "https"
    job = Job("over-tls")
    job.result("rows", job.sql("one", "SELECT 1 AS n"))
    own = standby.rest.replace(urlsplit(standby.rest).hostname or "", ADDRESS)
    with client(own, settings, state_dir) as through_the_standby:
        assert len(through_the_standby.submit(job).wait(120).result("rows").rows()) == 1

    documented = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    for what in ("JobManager, REST", "JobManager, RPC", "TaskManager, RPC", *REFUSALS):
        assert f"| {what} |" in documented
    for process in (leader, worker):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        ports = {
            (connection.laddr.ip, connection.laddr.port)
            for each in family
            for connection in connections(each)
            if connection.status == psutil.CONN_LISTEN
        }
        beyond = {port for ip, port in ports if not ip.removeprefix("::ffff:").startswith("127.") and ip != "::1"}
        assert len(beyond) == (2 if process is leader else 1)  # REST and RPC, RPC
        for port in beyond:
            assert requires_tls(port), f"port {port} of {process.args} answers without TLS"
        refused = [refusal_of(port) for port in {port for _, port in ports} - beyond]
        assert set(refused) == (set(REFUSALS) if process is worker else set())


def requires_tls(port: int) -> bool:
    """Whether a port speaks TLS, and shows a certificate that the cluster's authority has issued."""
    with socket.create_connection((ADDRESS, port), 10) as plain:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as secured:
            return secured.version() in ("TLSv1.2", "TLSv1.3")


def refusal_of(port: int) -> str:
    """Return what listens at a port of an engine, which must refuse a stranger in the way that only it does."""
    found = [what for what, refuses in REFUSALS.items() if refuses(port)]
    assert len(found) == 1, f"port {port} of the engine is none that is known to refuse strangers: {found}"
    return found[0]


def connect_refuses(port: int) -> bool:
    with grpc.insecure_channel(f"{ADDRESS}:{port}") as channel:
        try:
            cast("Any", channel).unary_unary("/spark.connect.SparkConnectService/Config")(b"", timeout=5)
        except grpc.RpcError as error:
            return cast("grpc.Call", error).code() is grpc.StatusCode.UNAUTHENTICATED
    return False


def py4j_refuses(port: int) -> bool:
    """py4j answers the call of a static method with an error and closes the connection."""
    return received(port, b"c\nz:java.lang.System\ngetProperties\ne\n").startswith(b"!x")


def ui_refuses(port: int) -> bool:
    """Its pages and its API, which it starts with the first request."""
    pages = (f"GET {path} HTTP/1.1\r\nHost: {ADDRESS}\r\nConnection: close\r\n\r\n" for path in UI_PATHS)
    return all(received(port, page.encode(), patience_s=60).startswith(b"HTTP/1.1 403") for page in pages)


def driver_refuses(port: int) -> bool:
    """Spark's own protocol: a frame of a length, the type of a request with an answer, an id, and a body."""
    body = b"not a secret"
    content = b"\x03" + (1).to_bytes(8, "big") + len(body).to_bytes(4, "big") + body
    return b"SaslMessage" in received(port, (8 + len(content)).to_bytes(8, "big") + content)


def received(port: int, sent: bytes, patience_s: float = 2.0) -> bytes:
    """Return what a port answers until it pauses; empty if it answers nothing, or closes the connection."""
    answer = b""
    with socket.create_connection((ADDRESS, port), 5) as connection:
        connection.settimeout(patience_s)
        try:
            connection.sendall(sent)
            while data := connection.recv(4096):
                answer += data
        except (TimeoutError, ConnectionError):
            pass
    return answer


#: What listens in an engine, by the names of docs/security.md.
REFUSALS: Final[dict[str, Callable[[int], bool]]] = {
    "Spark Connect of an engine": connect_refuses,
    "py4j gateway of an engine": py4j_refuses,
    "Spark's own connections of an engine": driver_refuses,
    "Spark's UI of an engine": ui_refuses,
}
