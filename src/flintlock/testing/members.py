"""Credentials of cluster members in tests: the only place where a test gets one from."""

from __future__ import annotations

from flintlock.rpc.authentication import CallSigner
from flintlock.rpc.security import RpcSecurity


def member_of(cluster: str = "cluster") -> RpcSecurity:
    """Return what a member of this cluster has: equal names are one cluster."""
    return RpcSecurity(signer=CallSigner(cluster.encode().ljust(32, b".")))
