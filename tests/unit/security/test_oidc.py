"""Bearer tokens of an OpenID Connect provider, against one that signs for real."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from flintlock.config.configuration import Configuration
from flintlock.model.access.principals import Principal, Role
from flintlock.model.errors import Invalid, Unauthenticated, Unavailable
from flintlock.security.oidc import OidcAuthenticator, OidcSettings

NOW_S = 1_800_000_000


class Provider(ThreadingHTTPServer):
    """Describes itself, has an RSA and an EC key, and signs tokens."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
        }
        self.published = set(self.keys)
        self.fetched = 0
        self.broken = False

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def sign(self, key: str = "rsa", kid: str | None = None, **claims: Any) -> str:
        body = {
            "iss": self.issuer,
            "aud": "flintlock",
            "sub": "maria",
            "exp": NOW_S + 60,
            "flintlock-role": "operator",
            **claims,
        }
        body = {name: value for name, value in body.items() if value is not None}
        algorithm = "ES256" if isinstance(self.keys[key], ec.EllipticCurvePrivateKey) else "RS256"
        return jwt.encode(body, self.keys[key], algorithm=algorithm, headers={"kid": kid or key})


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        provider = cast("Provider", self.server)
        provider.fetched += 1
        if provider.broken:
            self.send_error(500)
            return
        if self.path == "/.well-known/openid-configuration":
            answer: Any = {"issuer": provider.issuer, "jwks_uri": f"{provider.issuer}/keys"}
        else:
            made = {"rsa": RSAAlgorithm, "ec": ECAlgorithm}
            answer = {
                "keys": [
                    {
                        **json.loads(made[name.partition("-")[0]].to_jwk(provider.keys[name].public_key())),
                        "kid": name,
                        "use": "sig",
                    }
                    for name in sorted(provider.published)
                ]
            }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 http.server's name


@pytest.fixture
def provider() -> Generator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def authenticator(
    provider: Provider, clock: Clock | None = None, more: dict[str, str] | None = None
) -> OidcAuthenticator:
    settings = {"security.oidc.issuer": provider.issuer, "security.oidc.audience": "flintlock", **(more or {})}
    found = OidcSettings.of(Configuration(settings))
    assert found is not None
    return OidcAuthenticator(found, clock or Clock())


def verify(checked: OidcAuthenticator, *tokens: str, now_s: float = NOW_S) -> Principal | None:
    async def main() -> Principal | None:
        found = None
        for token in tokens:
            found = await checked.authenticate(token, int(now_s * 1000))
        return found

    return asyncio.run(main())


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_token_of_the_provider_names_its_subject_and_role(provider: Provider, key: str) -> None:
    who = verify(authenticator(provider), provider.sign(key))
    assert who is not None
    assert (who.name, who.role, who.kind) == ("oidc:maria", Role.OPERATOR, "oidc")


def test_the_role_may_be_one_of_a_list_in_another_claim(provider: Provider) -> None:
    claims = {"security.oidc.role-claim": "groups", "security.oidc.name-claim": "email"}
    checked = authenticator(provider, None, claims)
    who = verify(checked, provider.sign(groups=["staff", "viewer", "submitter"], email="maria@example.com"))
    assert who is not None
    assert (who.name, who.role) == ("oidc:maria@example.com", Role.SUBMITTER)


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"aud": "another"}, "not valid"),
        ({"aud": None}, "not valid"),
        ({"iss": "https://evil.example"}, "not valid"),
        ({"exp": None}, "not valid"),
        ({"exp": NOW_S - 31}, "expired"),
        ({"nbf": NOW_S + 100}, "not valid yet"),
        ({"flintlock-role": None}, "none of the roles"),
        ({"flintlock-role": "root"}, "none of the roles"),
        ({"flintlock-role": ["root"]}, "none of the roles"),
        ({"sub": None}, "no claim 'sub'"),
        ({"sub": "a\nb"}, "no claim 'sub'"),
    ],
    ids=str,
)
def test_a_token_that_is_not_for_this_cluster_now_is_refused(
    provider: Provider, claims: dict[str, Any], says: str
) -> None:
    with pytest.raises(Unauthenticated, match=says):
        verify(authenticator(provider), provider.sign(**claims))


def test_only_keys_of_the_provider_count(provider: Provider) -> None:
    provider.keys["rsa-other"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    with pytest.raises(Unauthenticated, match="does not have"):
        verify(authenticator(provider), provider.sign("rsa-other"))
    with pytest.raises(Unauthenticated, match="not valid"):
        verify(authenticator(provider), provider.sign("rsa-other", kid="rsa"))
    head, body, _ = provider.sign().split(".")
    with pytest.raises(Unauthenticated):
        verify(authenticator(provider), f"{head}.{body}.")


def test_no_algorithm_with_a_shared_secret_and_none_without_a_signature_is_accepted(provider: Provider) -> None:
    claims = {"iss": provider.issuer, "aud": "flintlock", "sub": "eve", "exp": NOW_S + 60, "flintlock-role": "admin"}
    secret = "a secret that is long enough for it"
    for forged in (
        jwt.encode(claims, secret, algorithm="HS256", headers={"kid": "rsa"}),
        jwt.encode(claims, cast("Any", None), algorithm="none", headers={"kid": "rsa"}),
    ):
        with pytest.raises(Unauthenticated):
            verify(authenticator(provider), forged)


def test_a_new_key_of_the_provider_is_found_and_a_removed_one_ends(provider: Provider) -> None:
    clock = Clock()
    checked = authenticator(provider, clock)
    assert verify(checked, provider.sign()) is not None
    provider.keys["rsa-new"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    provider.published = {"rsa-new"}
    clock.now_s += 11
    assert verify(checked, provider.sign("rsa-new")) is not None
    with pytest.raises(Unauthenticated):
        verify(checked, provider.sign("rsa"))


def test_unknown_keys_do_not_make_the_cluster_fetch_without_a_bound(provider: Provider) -> None:
    checked = authenticator(provider)
    assert verify(checked, provider.sign()) is not None
    fetched = provider.fetched
    for number in range(20):
        with pytest.raises(Unauthenticated):
            verify(checked, provider.sign(kid=f"unknown-{number}"))
    assert provider.fetched == fetched


def test_a_provider_that_does_not_answer_is_not_the_callers_fault(provider: Provider) -> None:
    provider.broken = True
    with pytest.raises(Unavailable, match="cannot be fetched"):
        verify(authenticator(provider), provider.sign())


def test_other_credentials_are_left_to_others(provider: Provider) -> None:
    assert verify(authenticator(provider), "flt_abc_def", "ey.x", "nonsense") is None
    assert provider.fetched == 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"security.oidc.issuer": "https://id.example"}, "security.oidc.audience"),
        ({"security.oidc.issuer": "http://id.example", "security.oidc.audience": "f"}, "https"),
    ],
)
def test_a_provider_that_could_be_impersonated_is_refused_at_the_start(settings: dict[str, str], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        OidcSettings.of(Configuration(settings))


def test_without_a_provider_nothing_is_imported() -> None:
    assert OidcSettings.of(Configuration({})) is None
