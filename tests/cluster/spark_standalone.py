"""A real Spark standalone cluster for tests: a master and workers, from the jars that PySpark brings."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from pyspark.sql import DataFrame
from tests.cluster.processes import ending_with_this_process, until

import flintlock as fl
from flintlock.spark.engine.java import find_java, java_flags
from flintlock.spark.engine.jvm import spark_home


class SparkStandalone:
    """One master, which can be killed and started again at its port, and its workers."""

    def __init__(self, home: Path) -> None:
        self._home: Final = home
        self._port, self._web_port = _free_port(), _free_port()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: Final[list[subprocess.Popen[bytes]]] = []

    @property
    def url(self) -> str:
        """The value of `spark.master`."""
        return f"spark://127.0.0.1:{self._port}"

    def state(self) -> dict[str, Any]:
        """Return what the master knows; empty if it does not answer."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{self._web_port}/json/", trust_env=False)
            # While it starts, the master answers every path with its page.
            is_state = answer.status_code == 200 and "json" in answer.headers.get("content-type", "")
            return answer.json() if is_state else {}
        return {}

    def end_application(self, application_id: str) -> None:
        """End an application, as an operator does with the link on the master's page, which has a token for that."""
        page = f"http://127.0.0.1:{self._web_port}/"
        shown = httpx.get(page, trust_env=False).raise_for_status().text
        token = re.search(r'<input[^>]*name="csrfToken"[^>]*>', shown)
        value = re.search(r'value="([^"]*)"', token[0]) if token else None
        assert value, shown
        form = {"id": application_id, "terminate": "true", "csrfToken": value[1]}
        httpx.post(f"{page}app/kill/", data=form, trust_env=False, follow_redirects=True).raise_for_status()

    def start_master(self) -> None:
        """Start the master, without the memory of an earlier one."""
        ports = ("--port", str(self._port), "--webui-port", str(self._web_port))
        self._master = self._start("master", "master.Master", "--host", "127.0.0.1", *ports)

    def kill_master(self) -> None:
        """SIGKILL it."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()

    def start_worker(self, *, cores: int, hidden: Path | None = None) -> None:
        """Start another worker; one on whose machine the directory `hidden` is another one, and empty."""
        name = f"worker-{len(self._workers)}"
        size = ("--cores", str(cores), "--memory", "2g", "--webui-port", "0", "--work-dir", str(self._home / name))
        prefix: tuple[str, ...] = ()
        if hidden is not None:
            (self._home / f"{name}-disk").mkdir()
            script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
            prefix = (*own_mounts(), "sh", "-c", script, "sh", str(self._home / f"{name}-disk"), str(hidden))
        arguments = ("--host", "127.0.0.1", *size, self.url)
        self._workers.append(self._start(name, "worker.Worker", *arguments, prefix=prefix))

    def executors(self) -> set[int]:
        """Return the processes of executors, which work in directories of their workers."""
        found: set[int] = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_executor = "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
                if is_executor and process.cwd().startswith(f"{self._home}/"):
                    found.add(process.pid)
        return found

    def kill_worker(self, number: int) -> None:
        """SIGKILL a worker."""
        self._workers[number].kill()
        self._workers.pop(number).wait()

    def await_workers(self) -> None:
        """Wait until the master knows all workers."""
        try:
            until("workers", lambda: self.state().get("aliveworkers") == len(self._workers), 120.0)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{(self._home / 'master.log').read_text()[-3000:]}") from None

    def stop(self) -> None:
        """End all processes."""
        for process in (*self._workers, self._master):
            if process is not None:
                process.kill()
                process.wait()

    def _start(self, name: str, main: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        java, home = find_java(os.environ), spark_home()
        flags = (*java_flags(java.major, has_vector_module=java.has_vector_module), "-Xmx256m", "-XX:+UseSerialGC")
        command = (
            java.executable,
            *flags,
            "-cp",
            str(home / "jars" / "*"),
            f"org.apache.spark.deploy.{main}",
            *arguments,
        )
        with (self._home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ending_with_this_process((*prefix, *command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "JAVA_HOME": java.home,
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_SCALA_VERSION": "2.13",  # which Spark's own scripts set; workers start executors with it
                },
            )


@contextmanager
def running_standalone(
    home: Path, *, workers: int = 2, cores: int = 2, hidden: Path | None = None
) -> Generator[SparkStandalone]:
    """Start a master and workers; yield when they know each other. The last worker does not see `hidden`."""
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cluster = SparkStandalone(home)
        stack.callback(cluster.stop)
        cluster.start_master()
        for number in range(workers):
            cluster.start_worker(cores=cores, hidden=hidden if number == workers - 1 else None)
        cluster.await_workers()
        yield cluster


def settings_of(master: str, lease_s: float) -> tuple[str, ...]:
    """Return the settings of a cluster whose engines have an executor on each of two workers."""
    return (
        f"spark.master={master}",
        "spark.executor.memory=512m",
        "spark.executor.cores=1",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        f"heartbeat.timeout={lease_s:g} s",
        "heartbeat.interval=1 s",
        "high-availability.recovery-time=5 s",
    )


def held(place: Path) -> fl.Job:
    """Return a job with two tasks on executors, which write the time into files there until there is one named `go`."""
    place.mkdir(exist_ok=True)
    directory = str(place)
    job = fl.Job("held")
    two = job.sql("two", "SELECT id FROM range(0, 2, 1, 2)")

    @job.step(inputs=[two])
    def waited(two: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        def wait(value: int) -> int:
            import threading
            import time
            from pathlib import Path

            pause = threading.Event()
            while not Path(directory, "go").exists():
                Path(directory, str(value)).write_text(f"{time.time()}")
                pause.wait(0.1)
            return value

        return two.select(udf(wait, "long")("id").alias("id"))

    job.result("rows", waited)
    return job


def numbers(path: Path, **own: Any) -> fl.Job:
    """Return a job that writes files from several tasks; `own`: its settings."""
    job = fl.Job("numbers", **own)
    rows = job.sql("rows", "SELECT id FROM range(0, 100, 1, 4)")
    job.sink("files", rows, format="parquet", path=str(path), mode="overwrite")
    return job


def own_mounts() -> tuple[str, ...]:
    """Return the beginning of a command that runs with mounts of its own; nothing if that is not possible here."""
    unshare = shutil.which("unshare")
    user = () if os.getuid() == 0 else ("--map-root-user",)
    command = (unshare or "", "--mount", "--propagation", "private", *user)
    works = unshare is not None and subprocess.run((*command, "true"), capture_output=True, check=False).returncode == 0
    return command if works else ()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def orders(path: Path) -> fl.Job:
    """A job with a Python function, a blocking exchange and two sinks."""
    job = fl.Job("orders")
    numbers = job.sql("numbers", "SELECT id, id % 3 AS k FROM range(0, 3000, 1, 4)", exchange="blocking")

    @job.step(inputs=[numbers])
    def doubled(numbers: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        def twice(value: int) -> int:
            return value * 2

        return numbers.select("k", udf(twice, "long")("id").alias("twice"))

    job.sink("rows", numbers, format="parquet", path=str(path / "rows"))
    job.sink("sums", job.sql("sums_of", "SELECT k, sum(twice) AS s FROM doubled GROUP BY k", inputs=[doubled]),
             format="parquet", path=str(path / "sums"), partition_by=["k"])  # fmt: skip
    return job
