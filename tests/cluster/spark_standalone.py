"""A real Spark standalone cluster for tests: a master and workers, from the jars that PySpark brings."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
from tests.cluster.processes import ending_with_this_process, until

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
            return answer.json() if answer.status_code == 200 else {}
        return {}

    def start_master(self) -> None:
        """Start the master, without the memory of an earlier one."""
        ports = ("--port", str(self._port), "--webui-port", str(self._web_port))
        self._master = self._start("master", "master.Master", "--host", "127.0.0.1", *ports)

    def kill_master(self) -> None:
        """SIGKILL it."""
        assert self._master is not None
        self._master.kill()
        self._master.wait()

    def start_worker(self, *, cores: int) -> None:
        """Start another worker."""
        name = f"worker-{len(self._workers)}"
        size = ("--cores", str(cores), "--memory", "2g", "--webui-port", "0", "--work-dir", str(self._home / name))
        self._workers.append(self._start(name, "worker.Worker", "--host", "127.0.0.1", *size, self.url))

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

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
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
                ending_with_this_process(command),
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
def running_standalone(home: Path, *, workers: int = 2, cores: int = 2) -> Generator[SparkStandalone]:
    """Start a master and workers; yield when they know each other."""
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        cluster = SparkStandalone(home)
        stack.callback(cluster.stop)
        cluster.start_master()
        for _ in range(workers):
            cluster.start_worker(cores=cores)
        cluster.await_workers()
        yield cluster


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
