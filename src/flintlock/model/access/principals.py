"""Who a caller is, and which role that caller has."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class Role(StrEnum):
    """What a caller may do. Each role includes the ones before it."""

    VIEWER = "viewer"  # read
    SUBMITTER = "submitter"  # submit jobs, and change the own ones
    OPERATOR = "operator"  # change all jobs, and read what processes log
    ADMIN = "admin"  # end the cluster, make and revoke tokens

    def includes(self, other: Role) -> bool:
        """Return whether this role may do what the other one may."""
        return _RANK[self] >= _RANK[other]


_RANK: Final = {role: rank for rank, role in enumerate(Role)}


class Principal(Struct, frozen=True, kw_only=True):
    """A caller whose credential was verified. `name` is recorded with the jobs that the caller submits or changes."""

    name: str
    role: Role
    kind: str  # of the credential: local, token, session, oidc, or none
    expires_ms: int | None = None  # when the credential ends; None: it does not
    token: str = ""  # the id of the token that the credential is, or was made with


UNKNOWN_CALLER: Final = Principal(name="-", role=Role.VIEWER, kind="none")
"""A caller who is not known: of a route that is open, or of a request that is refused."""

ANONYMOUS: Final = Principal(name="anonymous", role=Role.ADMIN, kind="none")
"""Every caller of a cluster without authentication."""
