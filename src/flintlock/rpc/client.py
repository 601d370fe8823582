"""The gRPC client: proxies of gateways over channels that are shared by address.

A channel connects, and reconnects, by itself; a proxy therefore stays valid for as long as its `RpcChannels` is open,
however often its peer restarts. Nothing is retried here: only the caller knows what is safe.

Addresses come and go (each worker of active mode has a port of its own), so channels without a call are closed, the one
that was unused longest first, when there are more than `MAX_IDLE_CHANNELS`. The next call opens another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self, TypeVar

import grpc
import msgspec
from grpc import aio

from flintlock.model.causes import current_cause
from flintlock.model.errors import FlintlockError, Refused, TooLarge, Unauthenticated, Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc import wire
from flintlock.rpc.description import Message, MethodShape, proxy
from flintlock.rpc.exports import too_large
from flintlock.rpc.failures import decode_failure, error_of
from flintlock.rpc.security import RpcSecurity
from flintlock.rpc.transport import DEFAULT_TIMEOUT_S, MAX_MESSAGE_BYTES, TokenSource
from flintlock.security.tls_files import TlsMaterial

G = TypeVar("G")

#: What gRPC reports for ECONNREFUSED; there is no status code for it. The contract suite notices another wording.
_REFUSED_TEXT: Final = "Connection refused"


#: gRPC has one status for what is too large, which no retry helps, and for too many calls at once. The tests notice
#: another wording.
_TOO_LARGE_TEXTS: Final = ("larger than max", "metadata size exceeds")

#: What to do about a handshake that failed. gRPC has no status code for that either.
_TLS_HINT: Final = (
    "both machines need a certificate of one authority (security.tls.ca-file) that names the address at which they"
    " are reached: `flintlock certs issue`"
)


#: How many channels without a call stay open.
MAX_IDLE_CHANNELS: Final = 64


class RpcChannels:
    """One channel for each address, opened when first needed, closed together. An async context manager."""

    def __init__(
        self,
        *,
        security: RpcSecurity,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_idle_channels: int = MAX_IDLE_CHANNELS,
    ) -> None:
        self.security: Final = security
        self._max_message_bytes = max_message_bytes
        self._max_idle_channels = max_idle_channels
        self._channels: dict[str, _Channel] = {}  # the last used last; filled by using(), emptied by close()
        self._retired: set[_Channel] = set()  # with calls, and a certificate that is no longer current
        self._closing: set[asyncio.Task[None]] = set()  # of channels that were unused; each removed when it is done
        self._closed = False

    @property
    def open_channels(self) -> int:
        """How many channels are open."""
        return len(self._channels)

    def connect(
        self,
        gateway: type[G],
        address: str,
        token: TokenSource | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> G:
        """See `transport.Connector.connect`."""
        return proxy(gateway, address, _Connection(self, address, token, timeout_s, self._max_message_bytes).call)

    @contextmanager
    def using(self, address: str) -> Generator[_Channel]:
        """Provide the channel to `address` for one call. Raises `Unavailable` once closed."""
        if self._closed:
            raise Unavailable(f"the connection to {address} was closed by this process")
        material = None if self.security.tls is None else self.security.tls.material
        channel = self._channels.pop(address, None)
        if channel is not None and channel.material is not material:  # the certificate was renewed
            self._retire(channel, address)
            channel = None
        if channel is None:
            self._close_unused()
            options = wire.channel_options(self._max_message_bytes)
            channel = _Channel(wire.open_channel(address, options, material), material)
        self._channels[address] = channel
        channel.calls += 1
        try:
            yield channel
        finally:
            channel.calls -= 1
            if channel in self._retired and not channel.calls:
                self._retire(channel, address)

    async def close(self) -> None:
        """Close all channels. Calls under way end with `Unavailable`, and so does every later one. Idempotent."""
        self._closed = True
        for channel in (*self._channels.values(), *self._retired):
            await channel.grpc_channel.close()
        self._channels.clear()
        self._retired.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _close_unused(self) -> None:
        """Close the channels without a call that were unused longest, so that there is room for another one."""
        idle = [address for address, channel in self._channels.items() if not channel.calls]
        for address in idle[: max(0, len(idle) - self._max_idle_channels + 1)]:
            self._retire(self._channels.pop(address), address)

    def _retire(self, channel: _Channel, address: str) -> None:
        """Close a channel that no new call uses, once the calls that it has are over."""
        if channel.calls:
            self._retired.add(channel)
            return
        self._retired.discard(channel)
        task = asyncio.get_running_loop().create_task(channel.grpc_channel.close(), name=f"close-{address}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Channel:
    """A gRPC channel and the callables made from it, one for each method."""

    def __init__(self, grpc_channel: aio.Channel, material: TlsMaterial | None) -> None:
        self.grpc_channel = grpc_channel
        self.material = material  # that it was opened with
        self.calls = 0  # under way
        self._methods: dict[MethodShape, aio.UnaryUnaryMultiCallable[bytes, bytes]] = {}

    def method(self, shape: MethodShape) -> aio.UnaryUnaryMultiCallable[bytes, bytes]:
        found = self._methods.get(shape)
        if found is None:
            found = self._methods[shape] = self.grpc_channel.unary_unary(f"/{shape.path}")
        return found


class _Connection:
    """Carries the calls of one proxy."""

    def __init__(
        self,
        channels: RpcChannels,
        address: str,
        token: TokenSource | None,
        timeout_s: float,
        max_message_bytes: int,
    ) -> None:
        self._channels = channels
        self._address = address
        self._port = address.rpartition(":")[2]
        self._token = token
        self._timeout_s = timeout_s
        self._max_message_bytes = max_message_bytes
        self._sent: tuple[FencingToken | None, wire.Metadata] = (None, wire.headers(None))  # the last token's headers

    async def call(self, shape: MethodShape, message: Message) -> Message:
        """Carry `message` to the peer and return its answer; raises as `transport.Connector` describes."""
        request = shape.encode_request(message)
        if len(request) > self._max_message_bytes:
            raise TooLarge(too_large("request", shape, len(request), self._max_message_bytes))
        token = self._token() if self._token is not None else None
        if token is not self._sent[0]:
            self._sent = (token, wire.headers(token))
        credential = self._channels.security.signer.sign(shape.path, self._port, request)
        metadata = (*wire.with_cause(self._sent[1], current_cause()), (wire.CREDENTIAL_HEADER, credential))
        try:
            with self._channels.using(self._address) as channel:
                answer = await channel.method(shape)(request, timeout=self._timeout_s, metadata=metadata)
        except aio.AioRpcError as error:
            raise self._translate(error, shape) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The caller was not cancelled: gRPC reports in this way that its channel was closed during the call.
            raise Unavailable(f"the connection to {self._address} was closed during {shape}") from None
        return shape.decode_response(answer)

    def _translate(self, error: aio.AioRpcError, shape: MethodShape) -> FlintlockError:
        for key, value in error.trailing_metadata() or ():
            if key == wire.FAILURE_TRAILER and isinstance(value, bytes):
                try:
                    return error_of(decode_failure(value))
                except msgspec.DecodeError:
                    break
        code, details = error.code(), error.details() or ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(f"{self._address} did not answer {shape} within {self._timeout_s:g} s")
        if code is grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(f"{self._address} refuses {shape}: {details}; {self._channels.security.hint}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Refused(f"what listens at {self._address} is not a Flintlock process: {details}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and any(text in details for text in _TOO_LARGE_TEXTS):
            return TooLarge(f"{shape} at {self._address}: {details}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Unavailable(f"{self._address} has too many calls open to begin {shape}: {details}")
        if code is grpc.StatusCode.UNAVAILABLE and _REFUSED_TEXT in details:
            unavailable = Unavailable(f"nothing listens at {self._address}")
            unavailable.unreachable = True
            return unavailable
        hint = f"; {_TLS_HINT}" if "handshake" in details.lower() or "certificate" in details.lower() else ""
        return Unavailable(f"{shape} at {self._address} got no answer ({code.name}): {details}{hint}")
