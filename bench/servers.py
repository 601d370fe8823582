"""The servers that are measured, each in processes of its own, with a state directory that is thrown away."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Final

import httpx
import msgspec
from msgspec import Struct

from bench.loop_delays import longest_delay_ms
from flintlock.testing import rest_requests

#: The longest step of the event loop of each JobManager that was measured; emptied before each measure.
loop_delays_ms: Final[list[float]] = []


class Cluster(Struct, frozen=True, kw_only=True):
    """A running cluster."""

    state_dir: Path
    url: str
    port: int
    jobmanager_pid: int
    rest_after_s: float
    start_taskmanager: Callable[[int], subprocess.Popen[bytes]]
    """Start a TaskManager of that index; it ends with the cluster."""
    taskmanagers: tuple[subprocess.Popen[bytes], ...] = ()

    def await_slots(self, count: int) -> None:
        """Wait until so many slots are there."""
        _await(lambda: _slots(self.url) >= count, 180, "the TaskManagers")


@contextmanager
def cluster(
    *,
    taskmanagers: int = 1,
    slots: int = 2,
    settings: Sequence[str] = (),
    prepare: Callable[[Path], None] = lambda _: None,
) -> Generator[Cluster]:
    """Start a JobManager and TaskManagers; yield when every slot is there. `prepare` gets the state directory first."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as cleanup:
        state_dir = Path(scratch)
        prepare(state_dir)
        flags = [part for item in ("rest.port=0", *settings) for part in ("-D", item)]
        begun = time.perf_counter()
        jobmanager = _start(cleanup, state_dir, "jobmanager", flags)
        url = _await_rest(state_dir, jobmanager)
        rest_after_s = time.perf_counter() - begun

        def start_taskmanager(index: int) -> subprocess.Popen[bytes]:
            own = ["--index", str(index), "-D", f"taskmanager.numberOfTaskSlots={slots}"]
            return _start(cleanup, state_dir, "taskmanager", [*own, *flags])

        started = tuple(start_taskmanager(index) for index in range(taskmanagers))
        _await(lambda: _slots(url) >= taskmanagers * slots, 180, "the TaskManagers")
        yield Cluster(
            start_taskmanager=start_taskmanager,
            taskmanagers=started,
            state_dir=state_dir,
            url=url,
            port=int(url.rpartition(":")[2]),
            jobmanager_pid=jobmanager.pid,
            rest_after_s=rest_after_s,
        )
        with suppress(httpx.HTTPError):  # a measure may have ended it
            metrics = rest_requests.get(f"{url}/metrics", timeout=60).raise_for_status().text
            loop_delays_ms.append(longest_delay_ms(metrics))


@contextmanager
def bare_connect(cores: int = 2) -> Generator[str]:
    """Start a bare Spark Connect server, warm it up, and yield its address."""
    from flintlock.spark.engine.java import find_java, java_flags
    from flintlock.spark.engine.jvm import spark_home

    java = find_java(os.environ)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="flintlock-bare-") as scratch, ExitStack() as cleanup:
        command = [
            java.executable,
            *java_flags(java.major, has_vector_module=java.has_vector_module),
            "-Xmx1g",
            "-cp",
            f"{spark_home()}/jars/*",
            "org.apache.spark.deploy.SparkSubmit",
            "--master",
            f"local[{cores}]",
            "--conf",
            f"spark.connect.grpc.binding.port={port}",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.scheduler.mode=FAIR",
            "--conf",
            f"spark.sql.warehouse.dir={scratch}/warehouse",
            "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "spark-internal",
        ]
        log = cleanup.enter_context(Path(scratch, "log").open("wb"))
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=scratch, env=environment)
        cleanup.callback(_end, process)
        url = f"sc://127.0.0.1:{port}"
        _await(lambda: _answers(url), 90, "the bare Connect server")
        for _ in range(5):
            _answers(url)
        yield url


def _start(cleanup: ExitStack, state_dir: Path, name: str, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    log = cleanup.enter_context((state_dir / f"{name}.log").open("ab"))
    process = subprocess.Popen(
        [sys.executable, "-m", f"flintlock.entrypoints.{name}", "--state-dir", str(state_dir), *flags],
        stdout=log,
        stderr=log,
    )
    cleanup.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await_rest(state_dir: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until REST answers with a leader behind it; polled often, because the time is a figure."""
    found: list[str] = []

    def there() -> bool:
        if process.poll() is not None:
            raise RuntimeError((state_dir / "jobmanager.log").read_text())
        if not (state_dir / "cluster.json").exists():
            return False
        url = str(msgspec.json.decode((state_dir / "cluster.json").read_bytes())["rest"])
        found.append(url)
        return rest_requests.get(f"{url}/readyz").status_code == 200

    _await(there, 30, "REST", every_s=0.01)
    return found[-1]


def _slots(url: str) -> int:
    return int(rest_requests.get(f"{url}/overview").json()["slots-total"])


def _answers(url: str) -> bool:
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(url).create()
    except Exception:  # noqa: BLE001 (whatever it says while it starts, it is not there yet)
        return False
    try:
        return session.sql("SELECT 1 AS one").collect()[0].one == 1
    finally:
        session.stop()


def _await(condition: Callable[[], bool], limit_s: float, what: str, every_s: float = 0.1) -> None:
    end = time.monotonic() + limit_s
    pause = Event()
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not come within {limit_s} s")
        pause.wait(every_s)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
