"""Framing: the same messages for any division of the bytes."""

from __future__ import annotations

import asyncio
import socket

from hypothesis import given
from hypothesis import strategies as st

from flintlock.spark.framing import FrameDecoder, frame, messages, read_message
from flintlock.spark.runner_messages import FROM_TEMPLATE, TO_TEMPLATE, Exited, Fork, Kill, TemplateReady

MESSAGES = (Fork(runner=1), Kill(runner=2), Fork(runner=1 << 40))


@given(st.lists(st.integers(1, 20), max_size=40))
def test_any_cut_gives_the_same_messages(cuts: list[int]) -> None:
    data = b"".join(map(frame, MESSAGES))
    frames = FrameDecoder(TO_TEMPLATE)
    received: list[object] = []
    for cut in [*cuts, len(data)]:
        piece, data = data[:cut], data[cut:]
        received += frames.feed(piece)
    assert tuple(received) == MESSAGES


def test_a_blocking_reader_ends_with_the_stream() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"".join(map(frame, MESSAGES)))
        here.shutdown(socket.SHUT_WR)
        assert tuple(messages(there, TO_TEMPLATE)) == MESSAGES


def test_an_asyncio_reader_gives_none_at_the_end_and_within_a_frame() -> None:
    async def scenario() -> list[object]:
        reader = asyncio.StreamReader()
        reader.feed_data(frame(TemplateReady()) + frame(Exited(runner=3, code=-9)) + b"\0\0")
        reader.feed_eof()
        return [await read_message(reader, FROM_TEMPLATE) for _ in range(3)]

    assert asyncio.run(scenario()) == [TemplateReady(), Exited(runner=3, code=-9), None]
