"""A real YARN for tests: a ResourceManager and a NodeManager on loopback, one for the whole run.

They end with the process that started them. What they run are ordinary processes of this machine, in the directory of
the fixture; the file system of the cluster is the local one.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from tests.cluster.hadoop_artifacts import install_hadoop
from tests.cluster.processes import ending_with_this_process, until

from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import spark_home

_JARS: Final = (
    "hadoop-client-", "slf4j-api", "log4j-", "jcl-over-", "leveldbjni-", "zookeeper-", "curator-", "jackson-",
)  # fmt: skip
_FLAGS: Final = (
    "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util", "net", "io")),
)  # fmt: skip
_LOGGING: Final = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n%ex
"""
_PORTS: Final[tuple[str, ...]] = (
    "address",
    "scheduler.address",
    "resource-tracker.address",
    "admin.address",
    "webapp.address",
)


class RunningYarn:
    """A ResourceManager and a NodeManager. `running_yarn` makes it."""

    def __init__(self, home: Path) -> None:
        self.home: Final = home
        self.conf_dir: Final = home / "conf"
        self.staging: Final = home / "staging"
        self.aggregated_logs: Final = home / "applogs"
        self._jars: Final = install_hadoop()
        self._servers: Final[dict[str, subprocess.Popen[bytes]]] = {}
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self._web: Final = f"http://127.0.0.1:{ports['webapp.address']}/ws/v1/cluster"
        self._ports: Final = ports
        (home / "tmp").mkdir(parents=True)
        self._configure(self.conf_dir)

    def start(self) -> None:
        """Start both; return when the node is registered."""
        self._start("resourcemanager", "resourcemanager.ResourceManager", self.conf_dir)
        self._start("nodemanager", "nodemanager.NodeManager", self.conf_dir)
        self._await_nodes("activeNodes", 1)

    def nodes(self, kind: str) -> int:
        """Return a count of nodes, as YARN's metrics name it."""
        return int(self._get("metrics").get("clusterMetrics", {}).get(kind, -1))

    def _await_nodes(self, kind: str, count: int) -> None:
        try:
            until(f"{kind}: {count}", lambda: self.nodes(kind) == count, 300)
        except TimeoutError as error:
            logs = "\n".join(path.read_text()[-2000:] for path in self.home.glob("*.log"))
            raise TimeoutError(f"{error}\n{logs}") from None

    def stop(self) -> None:
        """End all applications, then the servers."""
        for application in self.applications():
            if application["state"] not in ("FINISHED", "FAILED", "KILLED"):
                httpx.put(f"{self._web}/apps/{application['id']}/state", json={"state": "KILLED"}, trust_env=False)
        with suppress(TimeoutError):
            until("the end of the containers", lambda: not self.containers(), 30)
        for server in self._servers.values():
            server.kill()
            server.wait()

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications, as YARN's REST API has them."""
        found: dict[str, list[dict[str, Any]]] = self._get("apps").get("apps") or {}
        return found.get("app", [])

    def application(self, application_id: str) -> dict[str, Any]:
        """Return one of them."""
        return dict(self._get(f"apps/{application_id}").get("app", {}))

    def containers(self, module: str = "", application_id: str = "") -> list[psutil.Process]:
        """Return the processes of Flintlock in containers; `module`: those that run this one."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                inside = f"{self.home}/" in command and "--state-dir" in command and f"/{application_id}" in command
                if inside and "/bin/bash" not in command and f"-m flintlock.entrypoints.{module}" in command:
                    found.append(process)
        return found

    def logs(self, tail: int = 3000) -> str:
        """Return the end of what the containers have logged."""
        found = self.home.glob("**/application_*/container_*/stderr")
        return "\n".join(f"--- {path}\n{path.read_text()[-tail:]}" for path in found)

    def _get(self, path: str) -> dict[str, Any]:
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self._web}/{path}", trust_env=False)
            return answer.json() if answer.status_code == 200 else {}
        return {}

    def _start(self, name: str, main: str, conf_dir: Path) -> None:
        jars = [str(path) for path in sorted(self._jars.glob("*.jar"))]
        jars += [str(path) for jar in _JARS for path in sorted((spark_home() / "jars").glob(f"{jar}*.jar"))]
        command = [find_java(os.environ).executable, *_FLAGS, f"-Dyarn.log.dir={self.home}",
                   f"-Djava.io.tmpdir={self.home / 'tmp'}", "-cp", os.pathsep.join((str(conf_dir), *jars)),
                   f"org.apache.hadoop.yarn.server.{main}"]  # fmt: skip
        with (self.home / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                ending_with_this_process(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _configure(self, conf_dir: Path) -> None:
        conf_dir.mkdir(parents=True)
        manager = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in self._ports.items()}
        nodes = {
            f"yarn.nodemanager.{name}": "127.0.0.1:0" for name in ("address", "localizer.address", "webapp.address")
        }
        sites: dict[str, dict[str, object]] = {
            "core-site": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.home / "tmp"},
            "yarn-site": {
                **manager,
                **nodes,
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.resource.memory-mb": 8192,
                "yarn.nodemanager.resource.cpu-vcores": 8,
                "yarn.scheduler.minimum-allocation-mb": 128,
                "yarn.resourcemanager.am.max-attempts": 4,
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
                "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
                "yarn.am.liveness-monitor.expiry-interval-ms": 300_000,
                "yarn.nm.liveness-monitor.expiry-interval-ms": 30_000,
                "yarn.resourcemanager.recovery.enabled": "true",
                "yarn.resourcemanager.store.class": (
                    "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
                ),
                "yarn.resourcemanager.fs.state-store.uri": f"file://{self.home}/rmstate",
                "yarn.log-aggregation-enable": "true",
                "yarn.nodemanager.remote-app-log-dir": f"file://{self.aggregated_logs}",
            },
            "capacity-scheduler": {
                "yarn.scheduler.capacity.root.queues": "default",
                "yarn.scheduler.capacity.root.default.capacity": 100,
                "yarn.scheduler.capacity.maximum-am-resource-percent": 1.0,
            },
        }
        for name, values in sites.items():
            rows = "".join(f"<property><name>{key}</name><value>{value}</value></property>\n"
                           for key, value in values.items())  # fmt: skip
            (conf_dir / f"{name}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")
        (conf_dir / "log4j2.properties").write_text(_LOGGING)


@contextmanager
def running_yarn(home: Path) -> Generator[RunningYarn]:
    """Run YARN while the context lasts. Raises NotInstallable if its jars cannot be had."""
    with ExitStack() as stack:
        yarn = RunningYarn(home)
        stack.callback(yarn.stop)
        yarn.start()
        yield yarn


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in found]
