"""Where the leader listens."""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.ids import FencingToken


class LeaderInfo(Struct, frozen=True, kw_only=True):
    """What a leader tells the others about itself.

    It tells twice: when its term begins, so that its death is noticed from then on, and when it is ready to serve
    (`confirmed`), which is when clients and TaskManagers may turn to it.
    """

    token: FencingToken
    rpc: str  # host:port for TaskManagers and other JobManagers
    rest: str  # the URL for clients
    confirmed: bool = True
    host: str = ""  # the machine's own name: a loopback address means something there only


class LeaderAddresses(Struct, frozen=True, kw_only=True):
    """Where one JobManager is reached, whether it leads or not."""

    rpc: str
    rest: str
    host: str = ""

    def leads(self, token: FencingToken, *, confirmed: bool) -> LeaderInfo:
        """Return what it tells when it leads."""
        return LeaderInfo(token=token, rpc=self.rpc, rest=self.rest, confirmed=confirmed, host=self.host)
