"""Bearer tokens of an OpenID Connect provider: signed by its keys, for this cluster, with a claim for the role.

The provider's keys are fetched when a token is signed by one that is not known, and again after some minutes; not more
often than every ten seconds, whatever tokens arrive. Only signatures with a private key are accepted: with an algorithm
that signs with a shared secret, a public key could be used as one.

Rejected: asking the provider about each token, which would make it a part of every request.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from msgspec import Struct

from flintlock.config.configuration import Configuration
from flintlock.config.extras import require_extra
from flintlock.config.options import OIDC_AUDIENCE, OIDC_ISSUER, OIDC_JWKS_URL, OIDC_NAME_CLAIM, OIDC_ROLE_CLAIM
from flintlock.host.addresses import is_loopback_host
from flintlock.model.access.principals import Principal, Role
from flintlock.model.errors import Invalid, Unauthenticated, Unavailable

if TYPE_CHECKING:
    from jwt import PyJWK

_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_LEEWAY_S: Final = 30
_KEYS_LAST_S: Final = 600.0
_LEAST_PAUSE_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 1 << 20


class OidcSettings(Struct, frozen=True, kw_only=True):
    """Which provider, and what its tokens mean here."""

    issuer: str
    audience: str
    role_claim: str
    name_claim: str
    jwks_url: str = ""  # "": the provider says where its keys are

    @staticmethod
    def of(configuration: Configuration) -> OidcSettings | None:
        """Return what is configured; None without a provider. Raises Invalid for half of a configuration, Refused."""
        issuer = configuration.get(OIDC_ISSUER)
        if not issuer:
            return None
        require_extra("oidc", f"{OIDC_ISSUER.key}: an OpenID Connect provider")
        audience, jwks_url = configuration.get(OIDC_AUDIENCE), configuration.get(OIDC_JWKS_URL)
        if not audience:
            raise Invalid(
                f"{OIDC_ISSUER.key} needs {OIDC_AUDIENCE.key}: tokens for other services must not be accepted"
            )
        for key, url in ((OIDC_ISSUER.key, issuer), (OIDC_JWKS_URL.key, jwks_url)):
            parts = urlsplit(url)
            if url and parts.scheme != "https" and not is_loopback_host(parts.hostname or ""):
                raise Invalid(f"{key}: {url!r} is not an https address: a machine in between could replace the keys")
        return OidcSettings(
            issuer=issuer,
            audience=audience,
            role_claim=configuration.get(OIDC_ROLE_CLAIM),
            name_claim=configuration.get(OIDC_NAME_CLAIM),
            jwks_url=jwks_url,
        )


class ProviderKeys:
    """The keys of a provider, by id."""

    def __init__(self, settings: OidcSettings, clock_s: Callable[[], float]) -> None:
        self._settings: Final = settings
        self._clock_s: Final = clock_s
        self._keys: dict[str, PyJWK] = {}
        self._fetched_s: float | None = None  # when they were fetched, or could not be
        self._fetching: Final = asyncio.Lock()
        self._problem = ""  # why they could not be fetched last

    async def get(self, key_id: str) -> PyJWK | None:
        """Return a key; None if the provider has none of this id. Raises Unavailable if no keys can be fetched."""
        async with self._fetching:
            age_s = None if self._fetched_s is None else self._clock_s() - self._fetched_s
            outdated = age_s is None or age_s > _KEYS_LAST_S or (key_id not in self._keys and age_s > _LEAST_PAUSE_S)
            if outdated:
                self._fetched_s = self._clock_s()
                try:
                    self._keys, self._problem = await asyncio.to_thread(_fetch_keys, self._settings), ""
                except (OSError, ValueError, KeyError, TypeError) as error:
                    self._problem = f"the keys of {self._settings.issuer} cannot be fetched: {error}"
        found = self._keys.get(key_id)
        if found is None and self._problem:
            raise Unavailable(self._problem)
        return found


class OidcAuthenticator:
    """Verifies tokens of one provider."""

    def __init__(self, settings: OidcSettings, clock_s: Callable[[], float]) -> None:
        self._settings: Final = settings
        self._keys: Final = ProviderKeys(settings, clock_s)

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return the token's subject. Raises Unauthenticated, Unavailable."""
        if not credential.startswith("ey") or credential.count(".") != 2:
            return None
        import jwt  # an extra: only clusters with a provider need it

        try:
            key_id = str(jwt.get_unverified_header(credential).get("kid", ""))
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the bearer token cannot be read: {error}") from None
        key = await self._keys.get(key_id)
        if key is None:
            raise Unauthenticated(f"the bearer token is signed with a key that {self._settings.issuer} does not have")
        try:
            claims: dict[str, Any] = jwt.decode(
                credential,
                key,
                algorithms=list(_ALGORITHMS),
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the bearer token is not valid: {error}") from None
        expires_ms = _check_times(claims, now_ms)
        return Principal(name=f"oidc:{self._name(claims)}", role=self._role(claims), kind="oidc", expires_ms=expires_ms)

    def _name(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self._settings.name_claim)
        if not isinstance(name, str) or not name or not name.isprintable():
            raise Unauthenticated(f"the bearer token has no claim {self._settings.name_claim!r} with a name")
        return name[:200]

    def _role(self, claims: Mapping[str, Any]) -> Role:
        """Return the highest of the roles in the claim, which may be a text or a list."""
        given = claims.get(self._settings.role_claim)
        texts = cast("list[object]", given) if isinstance(given, list) else [given]
        roles = [role for role in Role if role.value in texts]
        if not roles:
            raise Unauthenticated(
                f"the bearer token has none of the roles {', '.join(Role)} in its claim {self._settings.role_claim!r}"
            )
        return roles[-1]


def _check_times(claims: Mapping[str, Any], now_ms: int) -> int:
    """Return when the token ends. Raises Unauthenticated if that is past, or if it is not valid yet."""
    expires, begins = claims["exp"], claims.get("nbf", 0)
    if not isinstance(expires, int | float) or not isinstance(begins, int | float):
        raise Unauthenticated("the bearer token has times that are no numbers")
    if now_ms >= (expires + _LEEWAY_S) * 1000:
        raise Unauthenticated("the bearer token has expired: get a new one from the provider")
    if now_ms < (begins - _LEEWAY_S) * 1000:
        raise Unauthenticated("the bearer token is not valid yet: do the clocks of provider and JobManager differ?")
    return int((expires + _LEEWAY_S) * 1000)


def _fetch_keys(settings: OidcSettings) -> dict[str, PyJWK]:
    """Return the provider's keys for signatures. Raises OSError, ValueError, KeyError, TypeError."""
    import jwt

    url = settings.jwks_url
    if not url:
        described = _fetch_json(f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        if described["issuer"] != settings.issuer:
            raise ValueError(f"the provider calls itself {described['issuer']!r}")
        url = str(described["jwks_uri"])
        if urlsplit(url).scheme != "https" and not is_loopback_host(urlsplit(url).hostname or ""):
            raise ValueError(f"{url!r} is not an https address")
    found: dict[str, PyJWK] = {}
    for item in _fetch_json(url)["keys"]:
        if item.get("use", "sig") == "sig" and item.get("kty") in ("RSA", "EC", "OKP"):
            try:
                found[str(item.get("kid", ""))] = jwt.PyJWK(item)
            except jwt.PyJWTError:
                continue  # a key of a kind that is not supported: tokens that it signs are refused
    return found


def _fetch_json(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 (https, or loopback: checked)
        return json.loads(response.read(_MOST_BYTES))
