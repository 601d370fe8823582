"""The bridge: objects of the JVM are released without waiting for it, and what its records say of containers."""

from __future__ import annotations

import threading

from py4j.java_gateway import GatewayParameters

from flintlock.yarn.bridge import ReleasingClient
from flintlock.yarn.master_bridge import container_of
from flintlock.yarn.messages import Container


class PausedClient(ReleasingClient):
    """A client of a JVM that answers when it is resumed."""

    def __init__(self) -> None:
        self.resumed = threading.Event()
        self.sent: list[tuple[str, str]] = []
        self.done = threading.Event()
        super().__init__(GatewayParameters(port=1))

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> str:
        """Wait for the JVM."""
        assert self.resumed.wait(30)
        self.sent.append((command.split("\n")[2], threading.current_thread().name))
        self.done.set()
        return ""


def test_an_object_is_released_in_another_thread_than_the_one_that_has_dropped_it() -> None:
    client = PausedClient()
    client.garbage_collect_object("o7")  # returns, although the JVM does not answer
    assert client.sent == []
    client.resumed.set()
    assert client.done.wait(30)
    client.end_releasing()
    assert client.sent == [("o7", "yarn-bridge-objects")]


class ContainerRecord:
    """YARN's record of a container."""

    def getId(self) -> str:  # noqa: N802 - YARN's name
        return "container_1_0001_01_000002"

    def getNodeId(self) -> str:  # noqa: N802
        return "host-1:45454"


def test_a_node_has_the_name_by_which_the_scheduler_of_yarn_excludes_it() -> None:
    """The name is its host, or host and port where YARN is configured to tell the nodes of one host apart."""
    by_host = container_of(ContainerRecord(), names_have_ports=False)

    assert by_host == Container(id="container_1_0001_01_000002", node="host-1:45454", node_name="host-1")
    assert container_of(ContainerRecord(), names_have_ports=True).node_name == "host-1:45454"
