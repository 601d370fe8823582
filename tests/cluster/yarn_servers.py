"""A real YARN for tests, with HDFS where it is wanted: servers on loopback.

They end with the process that started them. What they run are ordinary processes of this machine, in the directory of
the fixture. The default file system is the local one; `hdfs_conf_dir` is a configuration with HDFS in its place.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Generator, Mapping
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
_YARN: Final = "org.apache.hadoop.yarn.server."
_NAME_NODE: Final = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATA_NODE: Final = "org.apache.hadoop.hdfs.server.datanode.DataNode"
#: What `urgent` needs of its half, containers of `default` have to give up within seconds. `narrow` has room for one
#: ApplicationMaster at a time, which YARN starts however small the share for them is.
_QUEUES: Final[Mapping[str, object]] = {
    "root.queues": "default,urgent,narrow",
    "root.default.capacity": 49,
    "root.default.maximum-capacity": 100,
    "root.default.user-limit-factor": 3,
    "root.narrow.capacity": 1,
    "root.narrow.maximum-capacity": 100,
    "root.narrow.user-limit-factor": 100,
    "root.narrow.maximum-am-resource-percent": 0.01,
    "root.urgent.capacity": 50,
    "root.urgent.maximum-capacity": 100,
    "root.urgent.user-limit-factor": 2,
    "maximum-am-resource-percent": 1.0,
}
_PREEMPTION: Final[Mapping[str, object]] = {
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    "yarn.resourcemanager.monitor.capacity.preemption.monitoring_interval": 500,
    "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill": 1000,
    "yarn.resourcemanager.monitor.capacity.preemption.total_preemption_per_round": 1.0,
    "yarn.resourcemanager.monitor.capacity.preemption.natural_termination_factor": 1.0,
}
_PORTS: Final[tuple[str, ...]] = (
    "address",
    "scheduler.address",
    "resource-tracker.address",
    "admin.address",
    "webapp.address",
)


class RunningYarn:
    """A ResourceManager and a NodeManager. `running_yarn` makes it."""

    def __init__(self, home: Path, memory_mb: int = 8192) -> None:
        self.home: Final = home
        self._memory_mb: Final = memory_mb  # of each node
        self.conf_dir: Final = home / "conf"
        self.staging: Final = home / "staging"
        self.aggregated_logs: Final = home / "applogs"
        self._jars: Final = install_hadoop()
        self._servers: Final[dict[str, subprocess.Popen[bytes]]] = {}
        ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
        self._web: Final = f"http://127.0.0.1:{ports['webapp.address']}/ws/v1/cluster"
        self._ports: Final = ports
        self.hdfs_conf_dir: Final = home / "hdfs-conf"
        files, web = _free_ports(2)
        self.hdfs: Final = f"hdfs://127.0.0.1:{files}"
        self._web_hdfs: Final = f"http://127.0.0.1:{web}"
        (home / "tmp").mkdir(parents=True)
        self._configure(self.conf_dir)
        self._configure(self.hdfs_conf_dir, {}, {"fs.defaultFS": self.hdfs})

    def start(self, *, hdfs: bool = False) -> None:
        """Start both, and HDFS beside them; return when the node is registered, and HDFS has its node."""
        self._start("resourcemanager", f"{_YARN}resourcemanager.ResourceManager", self.conf_dir)
        self._start("nodemanager", f"{_YARN}nodemanager.NodeManager", self.conf_dir)
        if hdfs:
            self._start_hdfs()
        self._await_nodes("activeNodes", 1)

    def start_node(self, name: str) -> None:
        """Start one more NodeManager; return when it is registered."""
        local = {f"yarn.nodemanager.{kind}-dirs": self.home / name / kind for kind in ("local", "log")}
        self._configure(self.home / name, local)
        active = self.nodes("activeNodes")
        self._start(name, f"{_YARN}nodemanager.NodeManager", self.home / name)
        self._await_nodes("activeNodes", active + 1)

    def lose_node(self, name: str) -> None:
        """Kill a NodeManager; its containers run on. Return when YARN counts the node as lost."""
        lost = self.nodes("lostNodes")
        self._kill(name)
        self._await_nodes("lostNodes", lost + 1)

    def restart_resource_manager(self) -> None:
        """Kill the ResourceManager, and start it again; return when the nodes have registered with the new one."""
        active = self.nodes("activeNodes")
        self._kill("resourcemanager")
        self._start("resourcemanager", f"{_YARN}resourcemanager.ResourceManager", self.conf_dir)
        self._await_nodes("activeNodes", active)

    def node_of(self, container: psutil.Process) -> str:
        """Return the name of the NodeManager that has started a process."""
        names = [name for name in self._servers if container.cwd().startswith(f"{self.home / name}/")]
        return names[0] if names else "nodemanager"

    def files(self, path: str) -> list[str]:
        """Return the names in a directory of HDFS."""
        answer = httpx.get(f"{self._web_hdfs}/webhdfs/v1{path}", params={"op": "LISTSTATUS"}, trust_env=False)
        listed: list[dict[str, Any]] = answer.json().get("FileStatuses", {}).get("FileStatus", [])
        return sorted(str(each["pathSuffix"]) for each in listed)

    def put(self, path: str, content: bytes) -> None:
        """Write a file into HDFS."""
        parameters = {"op": "CREATE", "overwrite": "true"}
        answer = httpx.put(
            f"{self._web_hdfs}/webhdfs/v1{path}", params=parameters, content=content, trust_env=False,
            follow_redirects=True, timeout=60,
        )  # fmt: skip
        answer.raise_for_status()

    def _start_hdfs(self) -> None:
        done = subprocess.run(
            [*self._command(_NAME_NODE, self.hdfs_conf_dir), "-format", "-nonInteractive"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-2000:])
        self._start("namenode", _NAME_NODE, self.hdfs_conf_dir)
        self._start("datanode", _DATA_NODE, self.hdfs_conf_dir)
        until("a DataNode", lambda: self._data_nodes() == 1, 300)

    def _data_nodes(self) -> int:
        query = "Hadoop:service=NameNode,name=FSNamesystemState"
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{self._web_hdfs}/jmx", params={"qry": query}, trust_env=False)
            beans: list[dict[str, Any]] = answer.json().get("beans", []) if answer.status_code == 200 else []
            return int(beans[0].get("NumLiveDataNodes", 0)) if beans else 0
        return 0

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
                self.kill(application["id"])
        with suppress(TimeoutError):
            until("the end of the containers", lambda: not self.containers(), 30)
        for server in self._servers.values():
            server.kill()
            server.wait()

    def _kill(self, name: str) -> None:
        server = self._servers.pop(name)
        server.kill()
        server.wait()

    def rest_of(self, application_id: str) -> str:
        """Return where the JobManager of an application listens, as it has registered; empty until then."""
        address = self.application(application_id).get("amRPCAddress") or ""
        return f"http://{address}" if address.rpartition(":")[2].isdecimal() else ""

    def executors(self, application_id: str) -> list[psutil.Process]:
        """Return the processes of Spark in the containers of an application, its Python workers among them."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if f"/{application_id}/container_" in process.cwd():
                    found.append(process)
        return found

    def applications(self) -> list[dict[str, Any]]:
        """Return all applications, as YARN's REST API has them."""
        found: dict[str, list[dict[str, Any]]] = self._get("apps").get("apps") or {}
        return found.get("app", [])

    def application(self, application_id: str) -> dict[str, Any]:
        """Return one of them."""
        return dict(self._get(f"apps/{application_id}").get("app", {}))

    def submit(self, command: str, *, memory_mb: int = 768, attempts: int = 4, queue: str = "default") -> str:
        """Submit an application whose ApplicationMaster is a command of a shell; return its id."""
        answer = httpx.post(f"{self._web}/apps/new-application", trust_env=False)
        application_id = str(answer.raise_for_status().json()["application-id"])
        submission: dict[str, Any] = {
            "application-id": application_id,
            "application-name": "a command",
            "queue": queue,
            "am-container-spec": {"commands": {"command": command}},
            "resource": {"memory": memory_mb, "vCores": 1},
            "max-app-attempts": attempts,
        }
        httpx.post(f"{self._web}/apps", json=submission, trust_env=False).raise_for_status()
        return application_id

    def kill(self, application_id: str) -> None:
        """Have an application end."""
        httpx.put(f"{self._web}/apps/{application_id}/state", json={"state": "KILLED"}, trust_env=False)

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
        with (self.home / f"{name}.log").open("ab") as log:
            self._servers[name] = subprocess.Popen(
                ending_with_this_process(self._command(main, conf_dir)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _command(self, main: str, conf_dir: Path) -> list[str]:
        jars = [str(path) for path in sorted(self._jars.glob("*.jar"))]
        jars += [str(path) for jar in _JARS for path in sorted((spark_home() / "jars").glob(f"{jar}*.jar"))]
        return [find_java(os.environ).executable, *_FLAGS, f"-Dyarn.log.dir={self.home}",
                f"-Djava.io.tmpdir={self.home / 'tmp'}", "-cp", os.pathsep.join((str(conf_dir), *jars)),
                main]  # fmt: skip

    def _configure(
        self, conf_dir: Path, yarn: Mapping[str, object] | None = None, core: Mapping[str, object] | None = None
    ) -> None:
        conf_dir.mkdir(parents=True)
        manager = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}" for name, port in self._ports.items()}
        nodes = {
            f"yarn.nodemanager.{name}": "127.0.0.1:0" for name in ("address", "localizer.address", "webapp.address")
        }
        sites: dict[str, dict[str, object]] = {
            "core-site": {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.home / "tmp", **(core or {})},
            "hdfs-site": {
                "dfs.replication": 1,
                "dfs.permissions.enabled": "false",
                "dfs.namenode.http-address": self._web_hdfs.removeprefix("http://"),
                "dfs.datanode.hostname": "127.0.0.1",
                **{f"dfs.datanode.{name}": "127.0.0.1:0" for name in ("address", "http.address", "ipc.address")},
            },
            "yarn-site": {
                **manager,
                **nodes,
                "yarn.resourcemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.hostname": "127.0.0.1",
                "yarn.nodemanager.resource.memory-mb": self._memory_mb,
                "yarn.nodemanager.resource.cpu-vcores": 8,
                "yarn.scheduler.minimum-allocation-mb": 128,
                "yarn.resourcemanager.am.max-attempts": 4,
                "yarn.cluster.max-application-priority": 10,
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
                "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": 200,
                "yarn.am.liveness-monitor.expiry-interval-ms": 300_000,
                "yarn.nm.liveness-monitor.expiry-interval-ms": 15_000,
                **_PREEMPTION,
                "yarn.resourcemanager.recovery.enabled": "true",
                "yarn.resourcemanager.store.class": (
                    "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
                ),
                "yarn.resourcemanager.fs.state-store.uri": f"file://{self.home}/rmstate",
                "yarn.log-aggregation-enable": "true",
                "yarn.nodemanager.remote-app-log-dir": f"file://{self.aggregated_logs}",
                **(yarn or {}),
            },
            "capacity-scheduler": {f"yarn.scheduler.capacity.{key}": value for key, value in _QUEUES.items()},
        }
        for name, values in sites.items():
            rows = "".join(f"<property><name>{key}</name><value>{value}</value></property>\n"
                           for key, value in values.items())  # fmt: skip
            (conf_dir / f"{name}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")
        (conf_dir / "log4j2.properties").write_text(_LOGGING)


@contextmanager
def running_yarn(home: Path, *, hdfs: bool = False, memory_mb: int = 8192) -> Generator[RunningYarn]:
    """Run YARN, with HDFS or without, while the context lasts. Raises NotInstallable if its jars cannot be had."""
    with ExitStack() as stack:
        yarn = RunningYarn(home, memory_mb)
        stack.callback(yarn.stop)
        yarn.start(hdfs=hdfs)
        yield yarn


def _free_ports(count: int) -> list[int]:
    with ExitStack() as sockets:
        found = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in found]
