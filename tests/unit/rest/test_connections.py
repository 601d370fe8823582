"""What is written to a client's connection: the parts of a response leave together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flintlock.rest.server.connections import JoinedWrites
from flintlock.testing.virtual_time import run_virtual


class RecordingTransport(asyncio.Transport):
    """Keeps what is written to it, and when it is closed."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.written.append(b"closed")


def written_by(step: Callable[[JoinedWrites], None]) -> tuple[list[bytes], list[bytes]]:
    """Return what has reached the transport at the end of a step, and afterwards."""

    async def main() -> tuple[list[bytes], list[bytes]]:
        transport = RecordingTransport()
        step(JoinedWrites(transport, asyncio.get_running_loop()))
        at_once = list(transport.written)
        await asyncio.sleep(0)
        return at_once, transport.written

    return run_virtual(main())


def test_the_head_and_the_body_of_a_response_are_one_write() -> None:
    def step(joined: JoinedWrites) -> None:
        joined.write(b"head ")
        joined.write(b"body")

    assert written_by(step) == ([], [b"head body"])


def test_a_head_whose_body_comes_later_is_not_held_back() -> None:
    assert written_by(lambda joined: joined.write(b"head")) == ([], [b"head"])


def test_much_is_written_at_once_so_that_the_transport_can_pause() -> None:
    large = b"x" * (1 << 20)

    def step(joined: JoinedWrites) -> None:
        joined.write(b"head ")
        joined.write(large)
        joined.write(b"end")

    assert written_by(step) == ([b"head " + large], [b"head " + large, b"end"])


def test_a_connection_is_closed_after_what_was_written_to_it() -> None:
    def step(joined: JoinedWrites) -> None:
        joined.write(b"response")
        joined.close()

    assert written_by(step) == ([b"response", b"closed"], [b"response", b"closed"])


def test_everything_else_is_done_by_the_transport_itself() -> None:
    addresses: list[object] = []
    written_by(lambda joined: addresses.append(joined.get_extra_info("peername")))

    assert addresses == [("127.0.0.1", 1)]
