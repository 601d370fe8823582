"""Answers calls, whatever transport carried them: find the gateway, check the fence, decode, run the handler, encode.

Both transports (gRPC and the simulated network) pass their calls to an `Exports`, so the order of these steps, and what
becomes of an error, is decided in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from flintlock.model import log_events
from flintlock.model.causes import CauseId, caused_by
from flintlock.model.errors import FlintlockError, InvariantBroken, Refused, TooLarge, Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc.description import Message, MethodShape, describe
from flintlock.rpc.failures import RpcFailure, failure_of, internal_failure
from flintlock.rpc.transport import MAX_MESSAGE_BYTES, Fence, Withdraw

G = TypeVar("G")

_log: Final = structlog.get_logger(__name__)


class _Method(NamedTuple):
    shape: MethodShape
    handler: Callable[..., Coroutine[Any, Any, Message]]


class _Export(NamedTuple):
    methods: Mapping[str, _Method]
    fence: Fence | None


class Exports:
    """The gateways that one address serves, by name."""

    def __init__(self, address: Callable[[], str], max_message_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._address = address  # for error texts only; a server knows its port only once it has started
        self._max_message_bytes = max_message_bytes
        self._exports: dict[str, _Export] = {}  # written by add and by what it returns

    def add(self, gateway: type[G], implementation: G, fence: Fence | None = None) -> Withdraw:
        """Serve `gateway`; the contract is that of `transport.Host.serve`."""
        name = gateway.__name__
        if name in self._exports:
            raise ValueError(f"{name} is served at {self._address()} already")
        methods: dict[str, _Method] = {}
        for shape in describe(gateway).values():
            handler = getattr(implementation, shape.name, None)
            if handler is None:
                raise TypeError(f"{type(implementation).__name__} has no method {shape.name!r} of {name}")
            # A handler without argument is wrapped once here, so that every call is made in the same way.
            methods[shape.name] = _Method(shape, handler if shape.request is not None else _ignoring_message(handler))
        export = self._exports[name] = _Export(methods, fence)

        def withdraw() -> None:
            if self._exports.get(name) is export:
                del self._exports[name]

        return withdraw

    async def answer(
        self, gateway: str, method: str, token: FencingToken | None, request: bytes, cause: CauseId | None = None
    ) -> bytes | RpcFailure:
        """Carry out one call, under its cause. Never raises, except when cancelled or when the process is being ended.

        Everything up to the handler's first `await` happens in one step: no other task runs between the fence's
        check and the handler.
        """
        with caused_by(cause):
            return await self._answer(gateway, method, token, request)

    async def _answer(
        self, gateway: str, method: str, token: FencingToken | None, request: bytes
    ) -> bytes | RpcFailure:
        where: object = f"{gateway}.{method}"
        try:
            export = self._exports.get(gateway)
            if export is None:
                # Not a refusal: a process that starts, or gains or loses leadership, serves its gateways in turn.
                raise Unavailable(f"{gateway} is not served at {self._address()}")
            if export.fence is not None:
                export.fence(token)
            found = export.methods.get(method)
            if found is None:
                raise Refused(f"{gateway} at {self._address()} has no method {method!r}")
            where = found.shape
            message = found.shape.decode_request(request)
            answer = found.shape.encode_response(await found.handler(message))
            if len(answer) > self._max_message_bytes:
                raise TooLarge(too_large("answer", where, len(answer), self._max_message_bytes))
        except InvariantBroken as error:
            _log.exception(log_events.RPC_HANDLER_FAILED, method=str(where))
            return failure_of(error)
        except FlintlockError as error:
            return failure_of(error)
        except Exception:  # noqa: BLE001 - a bug of this process: its details belong into this log and nowhere else
            _log.exception(log_events.RPC_HANDLER_FAILED, method=str(where))
            return internal_failure(where)
        return answer


def too_large(what: str, where: object, size: int, limit: int) -> str:
    """Return the text of a TooLarge error."""
    return f"the {what} of {where} has {size} bytes; at most {limit} are carried"


def _ignoring_message(
    handler: Callable[[], Coroutine[Any, Any, Message]],
) -> Callable[[Message], Coroutine[Any, Any, Message]]:
    return lambda _: handler()
