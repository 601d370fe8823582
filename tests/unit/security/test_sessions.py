"""Sessions of browsers end with the credential that they were begun with."""

from __future__ import annotations

import asyncio

import pytest

from flintlock.model.access.principals import Principal, Role
from flintlock.model.errors import Unauthenticated
from flintlock.model.ids import AccessTokenId
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.sessions import LIFETIME_MS, Sessions

NOW_MS = 1_000_000


async def _accept(credential: str, token: AccessTokenId, now_ms: int) -> None: ...


def _sessions() -> Sessions:
    return Sessions(ClusterSecret(b"s" * 32), _accept)


@pytest.mark.parametrize("kind", ["token", "oidc", "session"])
def test_session_ends_with_the_credential_that_it_was_begun_with(kind: str) -> None:
    """Not even a session that is begun with a session lasts longer."""
    principal = Principal(name="ada", role=Role.VIEWER, kind=kind, expires_ms=NOW_MS + 60_000)
    session, lasts_s = _sessions().begin(principal, NOW_MS)

    assert lasts_s == 60
    assert asyncio.run(_sessions().authenticate(session, NOW_MS + 59_999)) is not None
    with pytest.raises(Unauthenticated, match="expired"):
        asyncio.run(_sessions().authenticate(session, NOW_MS + 60_000))


def test_session_of_the_clusters_own_user_outlasts_the_credential_of_minutes() -> None:
    """That user can make the next credential at any time."""
    principal = Principal(name="ada", role=Role.ADMIN, kind="local", expires_ms=NOW_MS + 60_000)

    assert _sessions().begin(principal, NOW_MS)[1] == LIFETIME_MS // 1000


def test_session_of_another_cluster_is_refused() -> None:
    """The signature is that of the cluster's own secret."""
    principal = Principal(name="ada", role=Role.ADMIN, kind="local")
    session, _ = Sessions(ClusterSecret(b"o" * 32), _accept).begin(principal, NOW_MS)

    with pytest.raises(Unauthenticated, match="does not belong to this cluster"):
        asyncio.run(_sessions().authenticate(session, NOW_MS))
