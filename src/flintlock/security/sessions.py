"""Sessions of browsers: a code that is used once is exchanged for a cookie.

    fls_<principal>.<expiry>.<authentication code>

A session is signed with a key that is derived from the cluster's secret: every JobManager of the cluster accepts it,
also after a change of leader, and nothing is stored. A session ends with the credential that it was begun with; only
those that are made with the cluster's secret, which end after minutes, begin a session of full length.

A code lives in the memory of the leader that made it, so that it can be used once. After a change of leader it is not
known any more, and the refusal says so.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from flintlock.model.access.principals import Principal
from flintlock.model.errors import Unauthenticated
from flintlock.model.ids import AccessTokenId
from flintlock.security.cluster_secret import ClusterSecret, Purpose
from flintlock.security.signed_text import decoded, encoded, signed, verified_head

PREFIX: Final = "fls_"
LIFETIME_MS: Final = 12 * 3_600_000
CODE_LIFETIME_MS: Final = 600_000
_MOST_CODES: Final = 1000
_AGAIN: Final = "run `flintlock dashboard` for a new link"


class Sessions:
    """Makes and verifies sessions. `check_token` raises Unauthenticated if the token of a session is not valid."""

    def __init__(
        self, secret: ClusterSecret, check_token: Callable[[str, AccessTokenId, int], Awaitable[None]]
    ) -> None:
        self._key: Final = secret.key(Purpose.SESSIONS)
        self._check_token: Final = check_token
        #: The name of the cookie: browsers send cookies to all ports of a host, so each cluster has its own.
        self.cookie: Final = f"flintlock_session_{hashlib.sha256(b'cookie' + self._key).hexdigest()[:8]}"

    def begin(self, principal: Principal, now_ms: int) -> tuple[str, int]:
        """Return a session, and how many seconds it lasts: not longer than the credential that it was begun with."""
        expires_ms = now_ms + LIFETIME_MS
        # A local credential ends within minutes, but its user, who can read the cluster's secret, makes the next one.
        if principal.kind != "local" and principal.expires_ms is not None:
            expires_ms = min(expires_ms, principal.expires_ms)
        session = msgspec.structs.replace(principal, kind="session", expires_ms=expires_ms)
        head = f"{PREFIX}{encoded(msgspec.json.encode(session))}"
        return signed(self._key, head), max(1, (expires_ms - now_ms) // 1000)

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return who began the session. Raises Unauthenticated, Unavailable."""
        if not credential.startswith(PREFIX):
            return None
        head = verified_head(self._key, credential)
        if head is None:
            raise Unauthenticated(f"the session does not belong to this cluster: {_AGAIN}")
        principal = _principal(head.removeprefix(PREFIX))
        if principal.expires_ms is None or principal.expires_ms <= now_ms:
            raise Unauthenticated(f"the session has expired: {_AGAIN}")
        if principal.token:
            await self._check_token(credential, AccessTokenId(principal.token), now_ms)
        return principal


class LoginCodes:
    """The codes of one JobManager that have not been used. Only hashes are kept."""

    def __init__(self) -> None:
        self._codes: Final[dict[bytes, tuple[Principal, int]]] = {}  # with the time at which a code ends; oldest first

    def make(self, principal: Principal, now_ms: int) -> str:
        """Return a code for this principal."""
        code = secrets.token_urlsafe(32)
        while len(self._codes) >= _MOST_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[_hash(code)] = (principal, now_ms + CODE_LIFETIME_MS)
        return code

    def use(self, code: str, now_ms: int) -> Principal:
        """Return whose code it is; it cannot be used again. Raises Unauthenticated."""
        found = self._codes.pop(_hash(code), None)
        if found is None or found[1] <= now_ms:
            raise Unauthenticated(
                f"the link was used already, has expired, or was made before the leader changed: {_AGAIN}"
            )
        return found[0]


def _hash(code: str) -> bytes:
    return hashlib.sha256(code.encode(errors="replace")).digest()


def _principal(text: str) -> Principal:
    try:
        return msgspec.json.decode(decoded(text), type=Principal)
    except msgspec.MsgspecError:
        raise Unauthenticated("the session is damaged") from None
