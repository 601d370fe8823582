"""Access tokens: credentials that an administrator makes for people and programs."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from flintlock.model.access.principals import Role
from flintlock.model.ids import AccessTokenId

#: How many tokens a cluster has at most: all of them are one record in the store.
MAX_TOKENS: Final = 1000
MAX_TOKEN_NAME: Final = 100


class AccessToken(Struct, frozen=True, kw_only=True):
    """What is stored of a token: not the token, but its SHA-256. A token is random: that does not reveal it."""

    id: AccessTokenId
    name: str  # of the bearer: recorded with the jobs that the bearer submits; several tokens may have one name
    role: Role
    digest: str
    created_ms: int
    created_by: str = ""
    expires_ms: int | None = None  # None: it is valid until it is revoked

    def is_expired(self, now_ms: int) -> bool:
        """Return whether it is no longer valid."""
        return self.expires_ms is not None and self.expires_ms <= now_ms


class AccessTokens(Struct, frozen=True, kw_only=True):
    """All tokens of a cluster, the earliest first."""

    tokens: tuple[AccessToken, ...] = ()

    def get(self, token_id: AccessTokenId) -> AccessToken | None:
        """Return the token with this id."""
        return next((token for token in self.tokens if token.id == token_id), None)


class AccessTokenQuery(Struct, frozen=True, kw_only=True):
    """Names a token."""

    id: AccessTokenId


class FoundAccessToken(Struct, frozen=True, kw_only=True):
    """The token with an id; None if there is none."""

    token: AccessToken | None = None
