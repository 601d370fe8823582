"""Requests and responses about access tokens."""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.access.principals import Role


class CreateTokenRequest(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """Who the token is for, and what it may be used for."""

    name: str
    role: Role
    expires_in: str | None = None  # a duration, such as '30 d'; without one, it is valid until it is revoked


class TokenEntry(Struct, frozen=True, kw_only=True, rename="kebab"):
    """What is known of a token."""

    id: str
    name: str
    role: Role
    created: int
    created_by: str
    expires: int | None = None  # the time at which it ends


class CreatedToken(TokenEntry, frozen=True, kw_only=True, rename="kebab"):
    """A new token. `token` is returned this once."""

    token: str


class TokenListing(Struct, frozen=True, kw_only=True):
    """All tokens that are valid, the earliest first."""

    tokens: tuple[TokenEntry, ...]


class LoginCode(Struct, frozen=True, kw_only=True, rename="kebab"):
    """A link that logs a browser in, relative to the cluster's address."""

    path: str
    expires_in: int  # seconds


class LoginRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of a link."""

    code: str


class CallerInfo(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Who sends a request, as the cluster sees it."""

    name: str
    role: Role
    kind: str  # of the credential: local, token, session, oidc, or none
    expires: int | None = None
    token: str = ""  # the id of the token that the credential is, or was made with
