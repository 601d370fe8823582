"""The gRPC server: receives calls and passes them to `Exports`.

Each call runs in a task of the server's own, not in the one that gRPC cancels when its caller disconnects (`transport`
says why). Their parent is a TaskGroup that is open from `start` to `stop`, which one task calls. On `stop` running
calls have `grace_s` to answer; then they are cancelled, and nothing remains.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
import structlog
from grpc import aio

from flintlock.model import log_events
from flintlock.model.causes import CauseId
from flintlock.model.errors import InvariantBroken, Refused, Unauthenticated
from flintlock.model.ids import FencingToken
from flintlock.rpc import wire
from flintlock.rpc.authentication import AuthenticatingInterceptor, credential_of
from flintlock.rpc.exports import Exports
from flintlock.rpc.failures import RpcFailure, encode_failure, error_of, failure_of
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.transport import MAX_CONCURRENT_CALLS, MAX_MESSAGE_BYTES, Fence, Withdraw

G = TypeVar("G")

_log: Final = structlog.get_logger(__name__)


class RpcServer:
    """Serves gateways on one port, from `start` to `stop`; an async context manager that does both.

    Gateways may be served and withdrawn before and while it runs. One server object runs once. `bind` is where it
    listens, where that is another address than `host`, the one that is advertised.
    """

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        security: RpcSecurity,
        bind: str = "",
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_calls: int = MAX_CONCURRENT_CALLS,
        grace_s: float = 0.5,
    ) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._bind = f"[{bind}]" if ":" in bind else bind or self._host
        self._port = port
        self._max_message_bytes = max_message_bytes
        self._max_calls = max_calls
        self._grace_s = grace_s
        self._signer: Final = security.signer
        self._tls: Final = security.tls
        self._authentication: Final = AuthenticatingInterceptor(security.signer, lambda: self._port)
        self._exports = Exports(lambda: self.address, max_message_bytes)
        self._server: aio.Server | None = None  # from start on
        self._scope: Final = AsyncExitStack()  # closed by stop
        self._tasks: asyncio.TaskGroup | None = None  # from start on: the parent of all calls
        self._calls: Final[set[asyncio.Task[bytes | RpcFailure]]] = set()  # those that run

    @property
    def port(self) -> int:
        """The configured port; after `start` the one that is in use."""
        return self._port

    @property
    def unauthenticated_calls(self) -> int:
        """How many calls were refused because they had no credential of the cluster."""
        return self._authentication.refused

    @property
    def address(self) -> str:
        """`host:port`, as `connect` takes it."""
        return f"{self._host}:{self._port}"

    def serve(self, gateway: type[G], implementation: G, fence: Fence | None = None) -> Withdraw:
        """See `transport.Host.serve`."""
        return self._exports.add(gateway, implementation, fence)

    async def start(self) -> None:
        """Bind the port and answer calls. Raises `OSError` if the port is taken."""
        if self._server is not None:
            raise RuntimeError(f"the server at {self.address} was started already")
        server = aio.server(
            interceptors=(self._authentication,),
            options=wire.server_options(self._max_message_bytes),
            maximum_concurrent_rpcs=self._max_calls,
        )
        server.add_generic_rpc_handlers((_EveryMethod(self),))
        self._port = wire.listen(server, f"{self._bind}:{self._port}", self._tls)
        self._tasks = await self._scope.enter_async_context(asyncio.TaskGroup())
        self._server = server
        await server.start()

    async def stop(self) -> None:
        """Accept no more calls, let the running ones answer for `grace_s`, cancel the rest. Idempotent."""
        if self._server is None:
            return
        try:
            await self._server.stop(self._grace_s)
        finally:
            for task in self._calls:
                task.cancel("the server stops")
            await self._scope.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def take(
        self, gateway: str, method: str, request: bytes, context: aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        """Carry out one call that arrived over gRPC; answer it, or end it with its failure's status."""
        try:
            metadata = context.invocation_metadata() or ()
            self._signer.check_request(credential_of(metadata), request)
            token = wire.read_headers(metadata)
        except Unauthenticated as error:
            await self._authentication.refuse(error, f"{gateway}/{method}", context)
        except Refused as refusal:
            _log.warning(
                log_events.RPC_REFUSED, peer=context.peer(), method=f"{gateway}.{method}", reason=refusal.public
            )
            outcome = failure_of(refusal)
        else:
            outcome = await asyncio.shield(self._begin(gateway, method, token, request, wire.read_cause(metadata)))
        if not isinstance(outcome, RpcFailure):
            return outcome
        await context.abort(
            wire.status_of(type(error_of(outcome))),
            outcome.public[:200],
            trailing_metadata=((wire.FAILURE_TRAILER, encode_failure(outcome)),),
        )
        raise AssertionError("abort never returns")

    def _begin(
        self, gateway: str, method: str, token: FencingToken | None, request: bytes, cause: CauseId | None
    ) -> asyncio.Task[bytes | RpcFailure]:
        if self._tasks is None:
            raise InvariantBroken("a call arrived before the server was started")
        task = self._tasks.create_task(
            self._exports.answer(gateway, method, token, request, cause), name=f"rpc {gateway}.{method}"
        )
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return task


class _EveryMethod(grpc.GenericRpcHandler):
    """Passes every path to the server: `Exports` knows which ones exist, and reports the others with our own errors."""

    def __init__(self, server: RpcServer) -> None:
        self._server = server

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        gateway, _, method = str(handler_call_details.method).lstrip("/").partition("/")
        return grpc.unary_unary_rpc_method_handler(partial(self._server.take, gateway, method))
