"""Access tokens as their bearers send them, and how they are verified.

    flt_<id>_<32 random bytes>

The id finds the stored record, which has the SHA-256 of the whole text. A slow hash, as for passwords, would protect
nothing: no dictionary has 32 random bytes.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from flintlock.model.access.principals import Principal, Role
from flintlock.model.access.tokens import AccessToken
from flintlock.model.errors import Unauthenticated
from flintlock.model.ids import AccessTokenId
from flintlock.security.cluster_secret import same

PREFIX: Final = "flt_"
_FORM: Final = re.compile(r"flt_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")
_UNKNOWN: Final = "the token is not known: it was revoked, has expired, or belongs to another cluster"


def make_token(
    *, name: str, role: Role, created_by: str, now_ms: int, expires_ms: int | None
) -> tuple[str, AccessToken]:
    """Return a new token, which is shown to its bearer once, and what is stored of it."""
    token_id = AccessTokenId(secrets.token_hex(8))
    text = f"{PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
    record = AccessToken(
        id=token_id,
        name=name,
        role=role,
        digest=_digest(text),
        created_ms=now_ms,
        created_by=created_by,
        expires_ms=expires_ms,
    )
    return text, record


def check_form(credential: str) -> None:
    """Raise Unauthenticated for what cannot be a token: no store and no leader need be asked for it."""
    if not _FORM.fullmatch(credential):
        raise Unauthenticated(_UNKNOWN)


class TokenAuthenticator:
    """Verifies tokens against the stored ones, which `find` returns."""

    def __init__(self, find: Callable[[AccessTokenId], Awaitable[AccessToken | None]]) -> None:
        self._find: Final = find

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return the token's bearer. Raises Unauthenticated, Unavailable."""
        if not credential.startswith(PREFIX):
            return None
        check_form(credential)
        token = await self._find(AccessTokenId(credential.removeprefix(PREFIX).partition("_")[0]))
        if token is None or not same(token.digest, _digest(credential)):
            raise Unauthenticated(_UNKNOWN)
        if token.is_expired(now_ms):
            raise Unauthenticated(f"the token {token.id} of {token.name} has expired")
        return Principal(name=token.name, role=token.role, kind="token", expires_ms=token.expires_ms, token=token.id)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
