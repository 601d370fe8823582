"""Errors are described for the wire and rebuilt on the other side."""

from __future__ import annotations

import msgspec
import pytest

from flintlock.model.errors import Conflict, FlintlockError, Invalid, InvariantBroken, Refused, Unavailable
from flintlock.rpc.failures import (
    MAX_BYTES,
    MAX_TEXT,
    RpcFailure,
    decode_failure,
    encode_failure,
    error_of,
    failure_of,
    internal_failure,
)


def travelled(error: FlintlockError) -> FlintlockError:
    return error_of(decode_failure(encode_failure(failure_of(error))))


def test_causes_notes_and_private_attributes_stay_behind() -> None:
    error = Conflict("job runs")
    error.__cause__ = KeyError("secret")
    error.add_note("secret")
    error._secret = "secret"  # pyright: ignore[reportAttributeAccessIssue]
    error.connection = object()  # pyright: ignore[reportAttributeAccessIssue]

    assert b"secret" not in encode_failure(failure_of(error))
    assert vars(travelled(error)) == {"public": "job runs"}


def test_unreachable_is_the_callers_own_finding() -> None:
    error = Unavailable("store is gone")
    error.unreachable = True

    rebuilt = travelled(error)

    assert isinstance(rebuilt, Unavailable)
    assert not rebuilt.unreachable


def test_facts_keep_their_types() -> None:
    rebuilt = travelled(Invalid("2 problems", ("a", "b")))

    assert isinstance(rebuilt, Invalid)
    assert rebuilt.problems == ("a", "b")


def test_unknown_kind_is_a_broken_invariant() -> None:
    assert type(error_of(RpcFailure(kinds=("FromTheFuture",), public="?"))) is InvariantBroken
    assert type(error_of(RpcFailure(kinds=("FromTheFuture", "Refused", "FlintlockError"), public="?"))) is Refused


def test_size_is_bounded() -> None:
    long = Invalid("x" * (MAX_TEXT + 1), tuple("y" * 1000 for _ in range(MAX_BYTES // 1000)))

    assert len(encode_failure(failure_of(long))) <= MAX_BYTES
    assert len(travelled(long).public) == MAX_TEXT


def test_internal_failure_names_only_the_place() -> None:
    failure = internal_failure("DispatcherGateway.submit")

    assert failure.kinds[0] == "InvariantBroken"
    assert "DispatcherGateway.submit" in failure.public


def test_other_bytes_are_not_a_failure() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_failure(b"\xc0")
