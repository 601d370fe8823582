"""The contract of every transport, so that components and entrypoints need not know which one carries their calls.

A call is delivered at most once, and is answered, refused, or given up at its deadline. A call that has begun at its
server is carried out to its end, or to the end of that server: a caller that gives up, or dies, only stops waiting for
the answer. So no handler is ever interrupted between two steps because of its caller.

Rejected: gRPC's default of cancelling the handler together with the call. A submission would then be cut off between
"persisted" and "started" by a client's Ctrl-C. Calls that wait for something carry a bound on that wait with them.

A call carries the cause of its caller (`model.causes`): the handler, and the tasks that it starts, run under it. A
caller without a cause leaves the handler without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, TypeVar

from flintlock.model.ids import FencingToken

G = TypeVar("G")

DEFAULT_TIMEOUT_S: Final = 10.0
"""Deadline of a call whose `connect` names none."""

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Largest request or answer, unless configured otherwise."""

MAX_CONCURRENT_CALLS: Final = 4096
"""Calls that a server has open at once, those included that wait for something; more are refused as Unavailable."""

Fence: TypeAlias = Callable[[FencingToken | None], None]
"""Called with the token of each call before anything else happens; raises `Fenced` to refuse the call."""

TokenSource: TypeAlias = Callable[[], FencingToken | None]
"""Called for the token of each call."""

Withdraw: TypeAlias = Callable[[], None]
"""Stops serving one gateway. Idempotent. Calls that have begun run on."""


class Connector(Protocol):
    """Reaches gateways at addresses."""

    def connect(
        self,
        gateway: type[G],
        address: str,
        token: TokenSource | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> G:
        """Return a proxy of the `gateway` at `address`. Opens no connection yet, and does not fail without a peer.

        Each method of the proxy raises what the handler raised (the same class, the same `public`), or:
        `Unavailable` with `unreachable=True` if nothing listens there (the call was not begun);
        `Unavailable` if the peer has too many calls open (the call was not begun), if no answer came before the
        deadline or the connection broke (the call may have been carried out); `TooLarge` if the peer takes no request
        of this size, or the answer is larger than this caller takes; `InvariantBroken` if the handler failed with
        anything but a `FlintlockError`. Callers may end a call sooner through `asyncio.timeout`.
        """
        ...


class Host(Protocol):
    """Serves gateways at one address."""

    @property
    def address(self) -> str:
        """The address that `connect` takes for what is served here."""
        ...

    def serve(self, gateway: type[G], implementation: G, fence: Fence | None = None) -> Withdraw:
        """Answer calls of `gateway` through `implementation`, from now until withdrawn.

        `fence` is called before the request is even decoded, and nothing runs between its return and the handler's
        first step. Raises `TypeError` if the Protocol breaks the rules of `rpc.description`, `ValueError` if a gateway
        of that name is served here already.
        """
        ...
