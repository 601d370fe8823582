"""Access tokens over REST: made, listed, revoked; and who the caller is."""

from __future__ import annotations

from flintlock.api import jobs as shapes
from flintlock.api.tokens import CallerInfo, CreatedToken, CreateTokenRequest, TokenEntry, TokenListing
from flintlock.model.access.tokens import MAX_TOKEN_NAME, AccessToken, AccessTokenQuery
from flintlock.model.errors import Invalid
from flintlock.model.ids import AccessTokenId
from flintlock.model.quantities import positive_duration_s
from flintlock.rest.server.http import HttpResponse, RestCall, json_response
from flintlock.rest.server.request_body import read_as
from flintlock.security.tokens import make_token

_MOST_BYTES = 4096


async def create(call: RestCall) -> HttpResponse:
    """Make a token; the response has it, this once."""
    wanted = await read_as(call.request, CreateTokenRequest, _MOST_BYTES)
    name = wanted.name.strip()
    if not name or len(name) > MAX_TOKEN_NAME or not name.isprintable():
        raise Invalid(f"'name': give one of up to {MAX_TOKEN_NAME} printable characters")
    now_ms = call.services.clock_ms()
    text, token = make_token(
        name=name,
        role=wanted.role,
        created_by=call.principal.name,
        now_ms=now_ms,
        expires_ms=_expires_ms(wanted.expires_in, now_ms),
    )
    await call.services.dispatcher.add_token(token)
    entry = _entry(token)
    made = CreatedToken(token=text, **{name: getattr(entry, name) for name in entry.__struct_fields__})
    return json_response(made, 201, {"Cache-Control": "no-store"})


async def list_tokens(call: RestCall) -> HttpResponse:
    """The tokens that are valid, without the tokens themselves."""
    found = await call.services.dispatcher.tokens()
    return json_response(TokenListing(tokens=tuple(_entry(token) for token in found.tokens)))


async def revoke(call: RestCall) -> HttpResponse:
    """Revoke a token; responds once that is durable, and the token is no longer accepted."""
    await call.services.dispatcher.revoke_token(AccessTokenQuery(id=AccessTokenId(call.path("tokenid"))))
    call.services.forget_credentials()
    return json_response(shapes.Empty())


async def whoami(call: RestCall) -> HttpResponse:
    """Who the caller is, and which role that caller has."""
    who = call.principal
    return json_response(
        CallerInfo(name=who.name, role=who.role, kind=who.kind, expires=who.expires_ms, token=who.token),
        headers={"Cache-Control": "no-store"},
    )


def _expires_ms(text: str | None, now_ms: int) -> int | None:
    if text is None:
        return None
    try:
        return now_ms + round(positive_duration_s(text) * 1000)
    except (ValueError, OverflowError) as error:
        raise Invalid(f"'expires-in': {error}") from None


def _entry(token: AccessToken) -> TokenEntry:
    return TokenEntry(
        id=token.id,
        name=token.name,
        role=token.role,
        created=token.created_ms,
        created_by=token.created_by,
        expires=token.expires_ms,
    )
