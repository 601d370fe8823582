"""Messages on a stream of bytes: four bytes of length, then one tagged msgpack struct.

Used between a TaskManager, its engine's process, the template and the runners. Independent of the message types.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Struct

HEADER: Final = 4
MAX_FRAME: Final = 1 << 30
Message = TypeVar("Message")

_encoder: Final = msgspec.msgpack.Encoder()


def frame(message: Struct) -> bytes:
    """Return the message as it is sent."""
    payload = _encoder.encode(message)
    if len(payload) > MAX_FRAME:
        raise ValueError(f"a message of {len(payload)} bytes is larger than a frame can be")
    return len(payload).to_bytes(HEADER, "big") + payload


class FrameDecoder(Generic[Message]):
    """Decodes a stream of bytes into messages, independently of where the bytes come from."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder: Final = decoder
        self._buffer = bytearray()  # bytes after the last complete frame

    def feed(self, data: bytes) -> Iterator[Message]:
        """Add bytes and yield the messages that are complete now, in order."""
        self._buffer += data
        while len(self._buffer) >= HEADER:
            end = HEADER + int.from_bytes(self._buffer[:HEADER], "big")
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[HEADER:end])
            del self._buffer[:end]
            yield self._decoder.decode(payload)


def messages(channel: socket.socket, decoder: msgspec.msgpack.Decoder[Message]) -> Iterator[Message]:
    """Yield the messages from a blocking socket until its other end is closed."""
    frames = FrameDecoder(decoder)
    while data := channel.recv(1 << 16):
        yield from frames.feed(data)


async def read_message(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[Message]) -> Message | None:
    """Return the next message, or None once the other end is closed (in the middle of a frame, too)."""
    try:
        header = await reader.readexactly(HEADER)
        return decoder.decode(await reader.readexactly(int.from_bytes(header, "big")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
