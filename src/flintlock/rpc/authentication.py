"""How a member of a cluster proves to another one that a call is its own: a signature, made with the cluster's key.

The signature covers the method, the port that is called, the time and a digest of the request. The key itself is never
sent: a process of another user that listens at the port of a member that has died learns nothing that it could use
elsewhere, and can at most repeat a call as it was, to that port, for some minutes; every call may be repeated.

A server checks the signature before it reads the request, and the digest before it decodes it. A call that is refused
costs it two hashes of some bytes. Refusals are counted, and logged at intervals.

Rejected: the key as a bearer token, for the reason above. Rejected: a handshake for each connection, whose state would
have to be found again for each call; where connections have to be proved, there is TLS.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NoReturn

import grpc
import structlog
from grpc import aio

from flintlock.model import log_events
from flintlock.model.errors import Unauthenticated
from flintlock.rpc import wire

#: How far the clocks of caller and server may be apart, and how long a call may take to arrive.
MAX_AGE_S: Final = 600.0

#: Between two log lines about refusals: who floods a port must not fill the disk.
_LOG_INTERVAL_S: Final = 10.0

_log: Final = structlog.get_logger(__name__)


class CallSigner:
    """Signs calls, and checks signatures, with a key that all members of the cluster have."""

    def __init__(self, key: bytes, clock_s: Callable[[], float] = time.time) -> None:
        self._key: Final = key
        self._clock_s: Final = clock_s

    def sign(self, path: str, port: str, request: bytes) -> str:
        """Return the credential of one call of the method at `path` (`gateway/method`), to a port."""
        time_ms, digest = str(int(self._clock_s() * 1000)), _digest(request)
        return f"{time_ms}.{digest}.{self._signature(path, port, time_ms, digest)}"

    def check(self, credential: str | None, path: str, port: str) -> None:
        """Check the credential of a call whose request is not known yet. Raises Unauthenticated."""
        if credential is None:
            raise Unauthenticated("the call has no credential")
        time_ms, digest, signature = _parts(credential)
        expected = self._signature(path, port, time_ms, digest)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise Unauthenticated("the credential of the call is not one of this cluster")
        if abs(self._clock_s() - int(time_ms) / 1000) > MAX_AGE_S:
            raise Unauthenticated(f"the call was signed more than {MAX_AGE_S:g} s ago, or by a clock that differs")

    def check_request(self, credential: str | None, request: bytes) -> None:
        """Check that a request is the one that was signed, after `check`. Raises Unauthenticated."""
        if credential is None or not hmac.compare_digest(_parts(credential)[1].encode(), _digest(request).encode()):
            raise Unauthenticated("the request is not the one that its credential was made for")

    def _signature(self, path: str, port: str, time_ms: str, digest: str) -> str:
        return hmac.digest(self._key, f"{path}\n{port}\n{time_ms}\n{digest}".encode(), "sha256").hex()


class AuthenticatingInterceptor(aio.ServerInterceptor):
    """Refuses every call without the cluster's credential, whatever it calls, before its request is read."""

    def __init__(self, signer: CallSigner, port: Callable[[], int]) -> None:
        self._signer: Final = signer
        self._port: Final = port
        self.refused = 0  # calls so far
        self._logged_s = -_LOG_INTERVAL_S  # when a refusal was logged last

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Pass the call on, or return a handler that refuses it."""
        path = str(handler_call_details.method).lstrip("/")
        try:
            self._signer.check(credential_of(handler_call_details.invocation_metadata), path, str(self._port()))
        except Unauthenticated as error:
            problem = error
        else:
            return await continuation(handler_call_details)

        async def refuse(_requests: object, context: aio.ServicerContext[bytes, bytes]) -> NoReturn:
            await self.refuse(problem, path, context)

        return grpc.stream_unary_rpc_method_handler(refuse)  # a stream: the request is never read

    async def refuse(self, error: Unauthenticated, path: str, context: aio.ServicerContext[bytes, bytes]) -> NoReturn:
        """Count and log the refusal, and end the call with it."""
        self.refused += 1
        if time.monotonic() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = time.monotonic()
            _log.warning(
                log_events.RPC_UNAUTHENTICATED,
                peer=context.peer(),
                method=path,
                reason=error.public,
                refused=self.refused,
            )
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.public)
        raise AssertionError("abort never returns")


def credential_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """Return the credential that a call carries."""
    value = next((value for key, value in metadata or () if key == wire.CREDENTIAL_HEADER), None)
    return value if isinstance(value, str) else None


def _parts(credential: str) -> tuple[str, str, str]:
    parts = credential.split(".")
    if len(parts) != 3 or not parts[0].isdecimal() or len(parts[0]) > 15:
        raise Unauthenticated("the credential of the call is malformed")
    return parts[0], parts[1], parts[2]


def _digest(request: bytes) -> str:
    return hashlib.sha256(request).hexdigest()
