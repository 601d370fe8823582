"""The DispatcherRunner: contends for leadership for as long as the JobManager lives.

Terms are led one after another, each within the one before having wholly ended: JobMasters suspended, tasks gone. A
term that the stores refuse (Fenced) is given up and contended for again; anything else that ends a leader process by
itself is fatal and leaves `run`, so that the JobManager process ends and is started anew.

Beside each term the others are told where its leader listens: at once, so that they can watch it, and again when it
serves. A store that is out of reach is told later; the term does not wait for that.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.leader_process import DispatcherLeaderProcess
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.gateways.leader import LeaderLivenessProbe
from flintlock.ha.leader_info import LeaderAddresses, LeaderInfo
from flintlock.ha.protocols import HaServices
from flintlock.model import log_events
from flintlock.model.errors import Fenced, Unavailable
from flintlock.model.ids import FencingToken

__all__ = ["CurrentDispatcher", "DispatcherRunner"]

log: FilteringBoundLogger = structlog.get_logger()

_TELL_AGAIN_S: Final = 0.1


class DispatcherRunner:
    """Leads whenever it is granted leadership. Implements LeaderGateway."""

    def __init__(
        self,
        ha: HaServices,
        services: DispatcherServices,
        open_term: TermOpener,
        dispatcher: CurrentDispatcher,
        listening: LeaderAddresses,
    ) -> None:
        self._ha: Final = ha
        self._services: Final = services
        self._open_term: Final = open_term
        self._current: Final = dispatcher
        self._listening: Final = listening
        self._terms: Final[dict[FencingToken, asyncio.Event]] = {}  # the term it is in; set when that is over

    async def run(self) -> None:
        """Contend and lead until cancelled. Raises what is fatal to the process."""
        async for term in self._ha.election.terms():
            try:
                async with term as token:
                    await self._lead(token)
            except* Fenced as fenced:
                log.warning(log_events.LEADER_FENCED, errors=[str(error) for error in fenced.exceptions])

    def is_in(self, token: FencingToken) -> bool:
        """Tell whether this process is in that term, confirmed or not."""
        return token in self._terms

    async def watch_liveness(self, message: LeaderLivenessProbe) -> None:
        """Answer when that term is over here."""
        over = self._terms.get(message.token)
        if over is not None:
            await over.wait()

    async def _lead(self, token: FencingToken) -> None:
        over, confirmed = self._terms.setdefault(token, asyncio.Event()), asyncio.Event()
        process = DispatcherLeaderProcess(token, self._ha.stores(token), self._services, self._open_term)

        def confirm(dispatcher: Dispatcher) -> None:
            self._current.confirm(token, dispatcher)
            confirmed.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                telling = tasks.create_task(self._tell(token, confirmed), name=f"telling-{token.epoch}")
                try:
                    await process.run(confirm, lambda: self._current.withdraw(token))
                finally:
                    telling.cancel()
        finally:
            del self._terms[token]
            over.set()

    async def _tell(self, token: FencingToken, confirmed: asyncio.Event) -> None:
        """Tell where this leader listens, and again when it serves. Raises Fenced if somebody newer leads."""
        await self._publish(self._listening.leads(token, confirmed=False))
        await confirmed.wait()
        await self._publish(self._listening.leads(token, confirmed=True))

    async def _publish(self, info: LeaderInfo) -> None:
        while True:
            try:
                await self._ha.leader.publish(info)
            except Unavailable as error:
                log.info(log_events.LEADER_ADDRESS_NOT_PUBLISHED, epoch=info.token.epoch, reason=error.public)
                await asyncio.sleep(_TELL_AGAIN_S)
            else:
                return
