"""Real ZooKeeper servers for tests, from the jars that come with PySpark: one server, or an ensemble, on loopback.

A server ends with the process that started it, even when that one is killed (parent-death signal). Servers do not flush
to the disk: tests kill processes, not machines.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from tests.chaos.machines import Machine, Machines, SharedMachine
from tests.cluster.processes import ending_with_this_process, until

from flintlock.spark.engine.java import find_java

#: What a server needs of Spark's jars.
_JARS: Final = (
    "zookeeper-", "slf4j-api-", "log4j-api-", "log4j-core-", "log4j-slf4j2-impl-", "netty-", "metrics-core-",
    "snappy-java-", "commons-io-", "commons-cli-",
)  # fmt: skip
_LOGGING: Final = """<Configuration status="error"><Appenders><Console name="out" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""

#: Milliseconds; the shortest session timeout is two of them.
TICK_MS: Final = 200


class Server:
    """One server process, which can be killed, stopped, continued and started again on the same port and data."""

    def __init__(self, machine: Machine, port: int, settings: str) -> None:
        self.machine: Final = machine
        self.home: Final = machine.directory
        self.port: Final = port
        self._process: subprocess.Popen[bytes] | None = None
        home = self.home
        (home / "data").mkdir()
        (home / "log4j2.xml").write_text(_LOGGING)
        (home / "zoo.cfg").write_text(
            f"tickTime={TICK_MS}\ninitLimit=50\nsyncLimit=15\ndataDir={home / 'data'}\nclientPort={port}\n"
            f"clientPortAddress={machine.address}\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            f"minSessionTimeout={2 * TICK_MS}\nmaxSessionTimeout=20000\nmaxClientCnxns=0\n{settings}"
        )

    @property
    def address(self) -> str:
        """Where clients connect."""
        return f"{self.machine.address}:{self.port}"

    @property
    def alive(self) -> bool:
        """Whether the process is there; a stopped one is."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process. In the main thread: with the thread that started it, a process of ours ends."""
        assert threading.current_thread() is threading.main_thread()
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        flags = (
            "-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no",
            "-Dzookeeper.preAllocSize=64", "-Djava.net.preferIPv4Stack=true",
            f"-Dlog4j2.configurationFile={self.home / 'log4j2.xml'}",
        )  # fmt: skip
        command = (str(find_java(os.environ).executable), *flags, "-cp", _classpath(), main, str(self.home / "zoo.cfg"))
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.machine.command(ending_with_this_process(command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_serving(self) -> None:
        """Wait until it serves clients, in an ensemble: until there is a quorum."""
        try:
            until(f"ZooKeeper at {self.address}", lambda: "Mode:" in self.query(b"srvr"), 60)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{(self.home / 'log').read_text()[-2000:]}") from None

    def query(self, command: bytes) -> str:
        """Return the answer to a four-letter command; an empty string if there is none."""
        with suppress(OSError), socket.create_connection((self.machine.address, self.port), timeout=2) as connection:
            connection.sendall(command)
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return answer.decode()
        return ""

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal: SIGSTOP freezes it, SIGCONT wakes it up."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL it. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Ensemble:
    """Servers that belong together."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers: Final = servers

    @property
    def quorum(self) -> str:
        """As `high-availability.zookeeper.quorum` takes it."""
        return ",".join(server.address for server in self.servers)


@contextmanager
def running_ensemble(home: Path, size: int = 1, machines: Machines | None = None) -> Generator[Ensemble]:
    """Run an ensemble while the context lasts, on one machine or on some of their own; yields it when it serves."""
    provided = machines or SharedMachine()
    places = [provided.machine(home / f"zk{n + 1}") for n in range(size)]
    ports = free_ports(3 * size)
    members = "".join(
        f"server.{n + 1}={place.address}:{ports[size + n]}:{ports[2 * size + n]}\n"
        for n, place in enumerate(places if size > 1 else [])
    )
    servers = [Server(place, ports[n], members) for n, place in enumerate(places)]
    try:
        for n, server in enumerate(servers):
            (server.home / "data" / "myid").write_text(str(n + 1))
            server.start()
        for server in servers:
            server.await_serving()
        yield Ensemble(servers)
    finally:
        for server in servers:
            server.kill()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One server for all tests that only use one; each keeps to a cluster id of its own and leaves the server alone."""
    with running_ensemble(tmp_path_factory.mktemp("zookeeper")) as ensemble:
        yield ensemble


def _classpath() -> str:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.submodule_search_locations
    jars = Path(spark.submodule_search_locations[0]) / "jars"
    return os.pathsep.join(str(jar) for jar in sorted(jars.iterdir()) if jar.name.startswith(_JARS))


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
