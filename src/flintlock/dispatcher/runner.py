"""The DispatcherRunner: contends for leadership for as long as the JobManager lives.

Terms are led one after another, each within the one before having wholly ended: JobMasters suspended, tasks gone. A
term that the stores refuse (Fenced) is given up and contended for again; anything else that ends a leader process by
itself is fatal and leaves `run`, so that the JobManager process ends and is started anew.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher import log_events as events
from flintlock.dispatcher.door import LeaderDoor
from flintlock.dispatcher.leader_process import DispatcherLeaderProcess
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.ha.protocols import HaServices
from flintlock.model.errors import Fenced
from flintlock.model.ids import FencingToken

__all__ = ["DispatcherRunner", "LeaderDoor"]

log: FilteringBoundLogger = structlog.get_logger()


class DispatcherRunner:
    """Leads whenever it is granted leadership."""

    def __init__(self, ha: HaServices, services: DispatcherServices, open_term: TermOpener, door: LeaderDoor) -> None:
        self._ha: Final = ha
        self._services: Final = services
        self._open_term: Final = open_term
        self._door: Final = door

    async def run(self) -> None:
        """Contend and lead until cancelled. Raises what is fatal to the process."""
        async for term in self._ha.election.terms():
            try:
                async with term as token:
                    await self._lead(token)
            except* Fenced as fenced:
                log.warning(events.LEADER_FENCED, errors=[str(error) for error in fenced.exceptions])

    async def _lead(self, token: FencingToken) -> None:
        process = DispatcherLeaderProcess(token, self._ha.stores(token), self._services, self._open_term)
        await process.run(partial(self._door.confirm, token), partial(self._door.withdraw, token))
