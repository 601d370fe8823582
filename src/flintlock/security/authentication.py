"""Authentication: from the credential of a request to a principal.

A credential is a text that is sent as `Authorization: Bearer …`. Each kind has an `Authenticator`, and its form says
which one that is. What was verified or refused once is remembered for a short time, by the hash of the credential, so
that a client that sends many requests costs one verification: a standby asks the leader for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from flintlock.model.access.principals import Principal
from flintlock.model.errors import Unauthenticated

_MOST_REMEMBERED: Final = 1024
_REMEMBERED_MS: Final = 5_000
MAX_CREDENTIAL_BYTES: Final = 8 << 10
_Verdict = TypeVar("_Verdict")


class Authenticator(Protocol):
    """Verifies one kind of credential."""

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return who the credential belongs to; None for a credential of another kind.

        Raises Unauthenticated, with the reason, for one of this kind that is wrong, expired or revoked; Unavailable if
        that cannot be found out now.
        """
        ...


class Authentication:
    """All kinds of credentials of one JobManager. `clock_ms` is the wall clock."""

    def __init__(self, authenticators: Sequence[Authenticator], clock_ms: Callable[[], int]) -> None:
        self._authenticators: Final = tuple(authenticators)
        self._clock_ms: Final = clock_ms
        self._known: Final[dict[bytes, tuple[Principal, int]]] = {}  # by hash of the credential, and until when
        self._refused: Final[dict[bytes, tuple[str, int]]] = {}  # why, and until when; they evict none of the known
        self._generation = 0  # counts `forget`: what was being verified then is not remembered

    def forget(self) -> None:
        """Verify every credential again: one of them was revoked."""
        self._generation += 1
        self._known.clear()
        self._refused.clear()

    def remembered(self, credential: bytes) -> Principal | None:
        """Return the principal of a credential that was verified a short time ago."""
        found = self._known.get(hashlib.sha256(credential).digest())
        return found[0] if found is not None and self._clock_ms() < found[1] else None

    async def authenticate(self, credential: bytes) -> Principal:
        """Return who sends the credential. Raises Unauthenticated with the reason, Unavailable."""
        if len(credential) > MAX_CREDENTIAL_BYTES:
            raise Unauthenticated("the credential is too long to be one of this cluster")
        digest, now_ms, generation = hashlib.sha256(credential).digest(), self._clock_ms(), self._generation
        principal, until_ms = self._known.get(digest, (None, 0))
        if principal is not None and now_ms < until_ms:
            return principal
        reason, until_ms = self._refused.get(digest, ("", 0))
        if now_ms < until_ms:
            raise Unauthenticated(reason)
        try:
            principal = await self._verify(credential, now_ms)
        except Unauthenticated as refusal:
            if generation == self._generation:
                _remember(self._refused, digest, (refusal.public, now_ms + _REMEMBERED_MS))
            raise
        if generation == self._generation:
            until_ms = now_ms + _REMEMBERED_MS
            if principal.expires_ms is not None:
                until_ms = min(until_ms, principal.expires_ms)
            _remember(self._known, digest, (principal, until_ms))
        return principal

    async def _verify(self, credential: bytes, now_ms: int) -> Principal:
        try:
            text = credential.decode("ascii")
        except UnicodeDecodeError:
            raise Unauthenticated("the credential has characters that no credential has") from None
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(text, now_ms)
            if principal is not None:
                return principal
        raise Unauthenticated("the credential does not belong to this cluster: nothing that it accepts has this form")


def _remember(known: dict[bytes, _Verdict], digest: bytes, verdict: _Verdict) -> None:
    if len(known) >= _MOST_REMEMBERED:
        known.clear()  # rarely: verifying is cheap, and which one is the oldest is not worth knowing
    known[digest] = verdict
