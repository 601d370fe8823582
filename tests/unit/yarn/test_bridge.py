"""The bridge's client: objects of the JVM are released without waiting for it."""

from __future__ import annotations

import threading

from py4j.java_gateway import GatewayParameters

from flintlock.yarn.bridge import ReleasingClient


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
