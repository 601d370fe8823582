"""A uvicorn that does nothing but send ready bytes: what the machine can do at most."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import uvicorn
import uvloop


def main(size: int) -> None:
    """Serve `size` bytes on a free port, which is printed."""
    body = b"x" * size
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]}
    rest = {"type": "http.response.body", "body": body}

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001 (ASGI's signature)
        await send(start)
        await send(rest)

    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, lifespan="off", access_log=False, log_config=None)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the JobManager has it
        runner.run(uvicorn.Server(config).serve(sockets=[listening]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
