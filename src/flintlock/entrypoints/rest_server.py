"""A JobManager's REST endpoint, listening: the application, the forwarding to the leader, and the HTTP server."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import uvicorn

from flintlock.config.options import REST_ADDRESS, REST_BIND_ADDRESS, REST_PORT
from flintlock.ha.leader_info import KnownLeader
from flintlock.host.addresses import in_url, reached_at
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch
from flintlock.rest.server.app import rest_app
from flintlock.rest.server.forwarding import Forwarding
from flintlock.rest.server.http import RestServices
from flintlock.rest.server.request_ids import RequestIds, request_ids
from flintlock.rest.server.upstream import Upstream

_BACKLOG: Final = 1024


@asynccontextmanager
async def serving_rest(
    services: RestServices, leading: Callable[[], Epoch | None], leaders: KnownLeader
) -> AsyncGenerator[str]:
    """Serve REST while the context lasts; yield its URL. Raises Unavailable if it cannot listen at its address."""
    configuration = services.configuration
    address = configuration.get(REST_ADDRESS)
    listening = _listen(configuration.get(REST_BIND_ADDRESS) or address, configuration.get(REST_PORT))
    own_url = f"http://{in_url(reached_at(address))}:{listening.getsockname()[1]}"
    async with Upstream() as upstream, asyncio.TaskGroup() as tasks:
        app = Forwarding(
            rest_app(services),
            leading=leading,
            leaders=leaders,
            upstream=upstream,
            clock_s=time.monotonic,
            own_url=own_url,
        )
        server = _Uvicorn(
            uvicorn.Config(
                RequestIds(app, request_ids()),
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=_BACKLOG,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
            )
        )
        watching = tasks.create_task(app.run(), name="rest-forwarding")
        tasks.create_task(server.serve(sockets=[listening]), name="rest")
        try:
            yield own_url
        finally:
            server.should_exit = True
            watching.cancel()


class _Uvicorn(uvicorn.Server):
    """A server without signal handlers: `entrypoints.process` handles signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no handlers."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            f"cannot listen on {host}:{port} (rest.address or rest.bind-address, rest.port): {error.strerror}"
        ) from error
    return listening
