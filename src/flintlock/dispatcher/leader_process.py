"""What a JobManager does with one term: recover, then dispatch, until the term is over.

    CREATED -> RUNNING (dirty results, graphs, progress; then a Dispatcher; then leadership is confirmed) -> STOPPED

Losing leadership cancels `run`, wherever it is; there is no second way to stop it. A term that is lost before or
during recovery never has a Dispatcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.endpoint import Dispatcher, dispatching
from flintlock.dispatcher.recovery import recover
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.errors import InvariantBroken
from flintlock.model.ids import FencingToken

log: FilteringBoundLogger = structlog.get_logger()


class LeaderState(StrEnum):
    """Where a leader process is in its life."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class DispatcherLeaderProcess:
    """One term. It runs once."""

    def __init__(
        self,
        token: FencingToken,
        stores: Stores,
        services: DispatcherServices,
        open_term: TermOpener,
    ) -> None:
        self.token: Final = token
        self.state = LeaderState.CREATED  # written by `_move`
        self._stores: Final = stores
        self._services: Final = services
        self._open_term: Final = open_term

    async def run(self, confirm: Callable[[Dispatcher], None], withdraw: Callable[[], None]) -> None:
        """Lead until cancelled. `confirm` is called once there is a Dispatcher, `withdraw` before it is taken down.

        Raises (in a group) what ended the Dispatcher, or the error of a store that cannot be listed.
        """
        if self.state is not LeaderState.CREATED:
            raise InvariantBroken(f"the leader process of {self.token} is {self.state}: it runs only once")
        with bound_contextvars(epoch=self.token.epoch):
            self._move(LeaderState.RUNNING)
            try:
                async with self._open_term(self.token, self._stores) as term:
                    recovery = await recover(self._stores, self._services.blobs, self._services.clock_ms, term.gate)
                    await asyncio.sleep(0)  # a term that was lost meanwhile ends here, before there is a Dispatcher
                    async with dispatching(self._services, term, recovery) as dispatcher:
                        await asyncio.sleep(0)  # each recovered job takes its first step: its JobMaster is there
                        term.admit()
                        confirm(dispatcher)
                        try:
                            await asyncio.get_running_loop().create_future()  # until cancelled
                        finally:
                            withdraw()
            finally:
                self._move(LeaderState.STOPPED)

    def _move(self, state: LeaderState) -> None:
        self.state = state
        log.info(log_events.LEADER_PROCESS_STATE_CHANGED, epoch=self.token.epoch, state=state)
