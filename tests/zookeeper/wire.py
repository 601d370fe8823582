"""A wire between a client and a ZooKeeper server that a test can cut, hold and restore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final


class Wire:
    """Forwards connections to one server. Whole by default."""

    def __init__(self, server_port: int) -> None:
        self._server_port: Final = server_port
        self._writers: Final[set[asyncio.StreamWriter]] = set()
        self._listening: asyncio.Server | None = None
        self._whole = True
        self._answers: Final = asyncio.Event()  # clear: what the server says is held back
        self._answers.set()
        self.port = 0

    @property
    def address(self) -> str:
        """Where the client connects."""
        return f"127.0.0.1:{self.port}"

    async def open(self) -> None:
        """Listen."""
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listening.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Drop every connection, and each new one at once."""
        self._whole = False
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        """Let connections through again."""
        self._whole = True
        self._answers.set()

    def hold_answers(self) -> None:
        """Let requests through, but no answers."""
        self._answers.clear()

    async def close(self) -> None:
        """End it."""
        self.cut()
        self._answers.set()
        if self._listening is not None:
            self._listening.close()
            await self._listening.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.transport.abort()
            return
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            ends = {writer, far_writer}
            self._writers.update(ends)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pump(reader, far_writer), name="requests")
                    tasks.create_task(self._pump(far_reader, writer, self._answers), name="answers")
            finally:
                self._writers.difference_update(ends)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event | None = None
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(1 << 16):
                if gate is not None:
                    await gate.wait()
                sink.write(chunk)
                await sink.drain()
        sink.transport.abort()


@asynccontextmanager
async def wired(server_port: int) -> AsyncGenerator[Wire]:
    """Put a wire in front of a server while the context lasts."""
    wire = Wire(server_port)
    await wire.open()
    try:
        yield wire
    finally:
        await wire.close()
