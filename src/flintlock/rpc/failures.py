"""Errors on the wire: the names of their classes, their public text and their public facts.

The vocabulary is `flintlock.model.errors`. A subclass that only the server knows arrives as its nearest ancestor from
that module, so an older client still sees a `Conflict` where a newer server raises some new kind of it. Causes and
stacks stay where they happened, in that process's log.

`Unavailable.unreachable` is not sent: it means that *this* caller could not reach *its* peer. A peer that reports such
an error about a third process is itself reachable.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from flintlock.model import errors
from flintlock.model.errors import FlintlockError, InvariantBroken

MAX_TEXT: Final = 100_000
"""Characters of public text that are sent; the rest is cut. gRPC carries errors in headers, which are bounded."""

MAX_BYTES: Final = 512 * 1024
"""A failure larger than this is sent without its facts."""

_NOT_SENT: Final = frozenset({"public", "unreachable"})
_VOCABULARY: Final[dict[str, type[FlintlockError]]] = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, FlintlockError)
}


class RpcFailure(Struct, frozen=True, kw_only=True):
    """Server to client: the call ended in this error."""

    kinds: tuple[str, ...]  # class names, most specific first
    public: str
    facts: dict[str, str | int | float | bool | tuple[str, ...] | None] = {}


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(RpcFailure).decode


def failure_of(error: FlintlockError) -> RpcFailure:
    """Describe `error` for the wire."""
    kinds = tuple(kind.__name__ for kind in type(error).__mro__ if issubclass(kind, FlintlockError))
    facts: dict[str, Any] = {
        name: value
        for name, value in vars(error).items()
        if name not in _NOT_SENT and not name.startswith("_") and _is_plain(value)
    }
    return RpcFailure(kinds=kinds, public=error.public[:MAX_TEXT], facts=facts)


def internal_failure(where: object) -> RpcFailure:
    """Describe a bug without its details: the stack is in the server's log."""
    return failure_of(InvariantBroken(f"internal error in {where}; the log of its process has the cause"))


def error_of(failure: RpcFailure) -> FlintlockError:
    """Rebuild the error: the same class if the model has it, else the nearest ancestor that it has."""
    kind = next((_VOCABULARY[name] for name in failure.kinds if name in _VOCABULARY), InvariantBroken)
    error = kind(failure.public)
    for name, value in failure.facts.items():
        setattr(error, name, value)
    return error


def encode_failure(failure: RpcFailure) -> bytes:
    """Return the bytes of a failure, at most about `MAX_BYTES`."""
    payload = _encode(failure)
    return payload if len(payload) <= MAX_BYTES else _encode(msgspec.structs.replace(failure, facts={}))


def decode_failure(payload: bytes) -> RpcFailure:
    """Read what `encode_failure` wrote. Raises `msgspec.DecodeError` for anything else."""
    return _decode(payload)


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(item, str) for item in value)  # pyright: ignore[reportUnknownVariableType]
    return value is None or isinstance(value, str | int | float | bool)
