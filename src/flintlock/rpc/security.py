"""What protects the calls of one process: there is no server and no channel without it."""

from __future__ import annotations

from dataclasses import dataclass

from flintlock.rpc.authentication import CallSigner
from flintlock.security.tls_files import TlsFiles


@dataclass(frozen=True, kw_only=True)
class RpcSecurity:
    """How calls are authenticated, and what a caller that is refused can do about it."""

    signer: CallSigner
    tls: TlsFiles | None = None  # None: connections are neither encrypted nor proved; for loopback addresses only
    hint: str = "both processes must use one cluster secret (the same state directory, or security.secret-file)"
