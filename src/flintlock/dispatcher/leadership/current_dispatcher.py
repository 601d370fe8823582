"""Which Dispatcher leads in this process now: REST keeps one gateway through every change of leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import Unavailable
from flintlock.model.ids import FencingToken
from flintlock.rpc.description import Message
from flintlock.rpc.routing import routed


class CurrentDispatcher:
    """The leading Dispatcher of this process, if there is one.

    Calls of its `gateway` go to that Dispatcher. Without one, and while the leader must not act (`paused` returns the
    reason, see `LeaderElection.paused`), every call raises Unavailable.
    """

    def __init__(self, paused: Callable[[FencingToken], str | None] = lambda _: None) -> None:
        self.gateway: Final[DispatcherGateway] = routed(DispatcherGateway, self._resolve)
        self._paused: Final = paused
        self._leader: DispatcherGateway | None = None  # set by `confirm`, emptied by `withdraw`
        self._token: FencingToken | None = None  # of the newest leader that was ever confirmed
        self._present: Final = asyncio.Event()  # set while there is a leader
        self._absent: Final = asyncio.Event()  # set while there is none
        self._absent.set()

    @property
    def leading(self) -> FencingToken | None:
        """The token of the current leader, if there is one."""
        return None if self._leader is None else self._token

    def acting(self) -> FencingToken | None:
        """Return the token of the current leader, if there is one. Raises Unavailable while that one must not act."""
        token = self.leading
        reason = None if token is None else self._paused(token)
        if reason is not None:
            raise Unavailable(f"this JobManager does not know whether it still leads: {reason}; ask again")
        return token

    async def wait_for_leader(self) -> FencingToken:
        """Wait until there is a leader; return its token."""
        while (token := self.leading) is None:
            await self._present.wait()
        return token

    async def wait_until_over(self, token: FencingToken) -> None:
        """Wait until the leader with this token no longer leads."""
        while self.leading == token:
            await self._absent.wait()

    def confirm(self, token: FencingToken, leader: DispatcherGateway) -> None:
        """Forward calls to this leader. A token older than one confirmed before is ignored."""
        if self._token is None or token >= self._token:
            self._token, self._leader = token, leader
            self._present.set()
            self._absent.clear()

    def withdraw(self, token: FencingToken) -> None:
        """Stop forwarding calls to this leader. Ignored if another one has been confirmed since."""
        if token == self._token:
            self._leader = None
            self._present.clear()
            self._absent.set()

    def _resolve(self, _message: Message) -> DispatcherGateway:
        self.acting()
        if self._leader is None:
            raise Unavailable("no JobManager leads at the moment; ask again")
        return self._leader
