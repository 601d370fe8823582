"""The door to whoever leads: REST holds it through every change of leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import Unavailable
from flintlock.model.ids import FencingToken
from flintlock.model.jobs import (
    AwaitJob,
    ClientHeartbeat,
    JobQuery,
    JobRequirements,
    JobSnapshot,
    JobsOverview,
    JobSubmission,
    ResultQuery,
    Submitted,
)
from flintlock.model.tasks import ResultRows


class CurrentDispatcher:
    """Implements DispatcherGateway by passing on to the present leader; without one every call raises Unavailable.

    So does every call while the leader must not act: `paused` tells why (`LeaderElection.paused`).
    """

    def __init__(self, paused: Callable[[FencingToken], str | None] = lambda _: None) -> None:
        self._paused: Final = paused
        self._leader: DispatcherGateway | None = None  # set by `confirm`, emptied by `withdraw`
        self._token: FencingToken | None = None  # of the newest leader that was ever confirmed
        self._opened = asyncio.Event()  # set while there is a leader
        self._closed = asyncio.Event()  # set while there is none
        self._closed.set()

    @property
    def leading(self) -> FencingToken | None:
        """The token of the present leader, if there is one."""
        return None if self._leader is None else self._token

    def acting(self) -> FencingToken | None:
        """Return the token of the present leader, if there is one. Raises Unavailable while that one must not act."""
        token = self.leading
        reason = None if token is None else self._paused(token)
        if reason is not None:
            raise Unavailable(f"this JobManager does not know whether it still leads: {reason}; ask again")
        return token

    async def opened(self) -> FencingToken:
        """Wait until somebody leads; return whose term it is."""
        while (token := self.leading) is None:
            await self._opened.wait()
        return token

    async def closed(self, token: FencingToken) -> None:
        """Wait until the leader of this term leads no more."""
        while self.leading == token:
            await self._closed.wait()

    def confirm(self, token: FencingToken, leader: DispatcherGateway) -> None:
        """Open the door to this leader. A token older than one confirmed before is ignored."""
        if self._token is None or token >= self._token:
            self._token, self._leader = token, leader
            self._opened.set()
            self._closed.clear()

    def withdraw(self, token: FencingToken) -> None:
        """Close the door, if it leads to this leader; the word of a superseded one is ignored."""
        if token == self._token:
            self._leader = None
            self._opened.clear()
            self._closed.set()

    async def submit_job(self, message: JobSubmission) -> Submitted:
        """Pass on."""
        return await self._present().submit_job(message)

    async def list_jobs(self) -> JobsOverview:
        """Pass on."""
        return await self._present().list_jobs()

    async def job(self, message: JobQuery) -> JobSnapshot:
        """Pass on."""
        return await self._present().job(message)

    async def await_job(self, message: AwaitJob) -> JobSnapshot:
        """Pass on."""
        return await self._present().await_job(message)

    async def cancel_job(self, message: JobQuery) -> None:
        """Pass on."""
        await self._present().cancel_job(message)

    async def client_heartbeat(self, message: ClientHeartbeat) -> None:
        """Pass on."""
        await self._present().client_heartbeat(message)

    async def requirements(self, message: JobQuery) -> JobRequirements:
        """Pass on."""
        return await self._present().requirements(message)

    async def update_requirements(self, message: JobRequirements) -> None:
        """Pass on."""
        await self._present().update_requirements(message)

    async def result(self, message: ResultQuery) -> ResultRows:
        """Pass on."""
        return await self._present().result(message)

    def _present(self) -> DispatcherGateway:
        self.acting()
        if self._leader is None:
            raise Unavailable("no JobManager leads at the moment; ask again")
        return self._leader
