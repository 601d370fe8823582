"""Credentials of those who can read the cluster's secret: the user who runs the cluster, and its own processes.

    flc_<name>.<expiry>.<authentication code>

The secret itself is never sent: a credential is signed with a key that is derived from it, and ends after minutes. A
process that listens at an address that was once the cluster's learns nothing that it could use for long.
"""

from __future__ import annotations

import getpass
import os
from typing import Final

from flintlock.model.access.principals import Principal, Role
from flintlock.model.errors import Unauthenticated
from flintlock.security.cluster_secret import ClusterSecret, Purpose
from flintlock.security.signed_text import decoded, encoded, signed, verified_head

PREFIX: Final = "flc_"
LIFETIME_MS: Final = 300_000
_FOREIGN: Final = (
    "the credential was made with the secret of another cluster, or with one that was replaced: all JobManagers and"
    " clients of a cluster need the same one (security.secret-file)"
)


def local_credential(secret: ClusterSecret, name: str, now_ms: int) -> str:
    """Return a credential that names its bearer; it ends after `LIFETIME_MS`."""
    return signed(secret.key(Purpose.REST), f"{PREFIX}{encoded(name.encode())}.{now_ms + LIFETIME_MS}")


def local_user() -> str:
    """Return the name of the user of this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"user {os.getuid()}"


class LocalAuthenticator:
    """Verifies credentials that were made with the cluster's secret."""

    def __init__(self, secret: ClusterSecret) -> None:
        self._key: Final = secret.key(Purpose.REST)

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        """Return an administrator. Raises Unauthenticated."""
        if not credential.startswith(PREFIX):
            return None
        head = verified_head(self._key, credential)
        if head is None:
            raise Unauthenticated(_FOREIGN)
        name, _, expiry = head.removeprefix(PREFIX).partition(".")
        if not expiry.isdigit() or int(expiry) <= now_ms:
            raise Unauthenticated("the credential has expired: do the clocks of client and JobManager differ?")
        return Principal(name=_name(name), role=Role.ADMIN, kind="local", expires_ms=int(expiry))


def _name(text: str) -> str:
    try:
        return decoded(text).decode()
    except UnicodeDecodeError:
        raise Unauthenticated("the credential is damaged") from None
