"""Delegation tokens: what the containers of an application use a YARN and file systems with Kerberos with."""

from __future__ import annotations

from typing import Final, Protocol

from flintlock.model.errors import Refused
from flintlock.yarn.gateways import YarnGateway


class DelegationTokens(Protocol):
    """Where the delegation tokens of an application come from."""

    def obtain(self) -> bytes:
        """Return them as YARN takes them with a submission; nothing where YARN requires none. Raises Refused."""
        ...


class WithoutKerberos:
    """The DelegationTokens of a YARN that requires none. Any other is refused, until an implementation can be tried."""

    def __init__(self, yarn: YarnGateway) -> None:
        self._yarn: Final = yarn

    def obtain(self) -> bytes:
        """See `DelegationTokens`."""
        if self._yarn.is_secure():
            raise Refused(
                "YARN requires Kerberos (hadoop.security.authentication), which Flintlock does not support yet:"
                " it fetches and renews no delegation tokens"
            )
        return b""
