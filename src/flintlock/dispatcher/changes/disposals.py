"""Removes savepoints that users no longer need: operations of the cluster, because a savepoint outlives its job.

    (nothing) -> in progress is durable, the client is acknowledged -> removed -> the outcome is durable

A leader that dies before the first record has triggered nothing; the client triggers again with the same id. One that
dies later leaves a disposal in progress, and the next leader removes what is still there: a savepoint that is gone then
was removed by the former leader, because there was one when the disposal was recorded. What identifies it is recorded,
too: another one that has got its place since is left alone.

The latest disposals are one record in the store, so its writes follow one another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
from msgspec import structs

from flintlock.dispatcher.services import Savepoints
from flintlock.dispatcher.writes import continue_without_damaged, outcome_of
from flintlock.ha.leader_gate import PATIENCE_S, LeaderGate
from flintlock.ha.protocols import ClusterRecordStore
from flintlock.model import log_events
from flintlock.model.errors import Conflict, Invalid, NotFound, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.streaming.savepoints import (
    MAX_PATH_BYTES,
    DisposeSavepoint,
    SavepointDisposal,
    SavepointDisposals,
)

log = structlog.get_logger()


class Disposals:
    """Disposes of savepoints under one term."""

    def __init__(
        self,
        savepoints: Savepoints,
        store: ClusterRecordStore[SavepointDisposals],
        gate: LeaderGate,
        begin_child: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._savepoints: Final = savepoints
        self._store: Final = store
        self._gate: Final = gate
        self._begin_child: Final = begin_child
        self._recorded: SavepointDisposals | None = None  # as it is durable; None: not read yet
        self._begun: Final[set[TriggerId]] = set()  # that this leader carries out
        self._writing: Final = asyncio.Lock()  # locked from reading `_recorded` until its successor is durable

    async def resume(self) -> None:
        """Carry out what former leaders have begun."""
        for disposal in (await self._gate.retry_until_acknowledged(self._read)).in_progress:
            self._begin_child(self._carry_out(disposal), f"disposal-{disposal.trigger_id}")

    async def dispose(self, message: DisposeSavepoint, accepted: asyncio.Future[SavepointDisposal]) -> None:
        """Make the removal of a savepoint durable, acknowledge it, and carry it out, once for each trigger id.

        A store that does not answer is reported as Unavailable, and retried until it does: the disposal then counts, as
        one whose acknowledgement was lost. Where the file system does not answer, nothing is recorded.
        """
        try:
            disposal = await self._known(message) or await self._checked(message)
            async with self._writing:
                known = await self._known(message)
                if known is None:
                    await self._write((await self._read()).with_new(disposal), accepted)
        except Exception as error:  # noqa: BLE001 - the client is told, whatever it is
            failure = outcome_of(error, path=message.path)
            if not accepted.done():
                accepted.set_exception(failure)
            return
        if not accepted.done():
            accepted.set_result(known or disposal)
        if known is None and not disposal.completed:
            await self._carry_out(disposal)

    async def get(self, trigger_id: TriggerId) -> SavepointDisposal:
        """Return a disposal. Raises NotFound, Unavailable."""
        found = (await self._read()).get(trigger_id)
        if found is None:
            raise NotFound(f"there is no disposal {trigger_id!r}")
        return found

    async def _known(self, message: DisposeSavepoint) -> SavepointDisposal | None:
        """Return the disposal that a trigger id stands for. Raises Conflict if it is that of another savepoint."""
        known = (await self._read()).get(message.trigger_id)
        if known is not None and known.path != message.path:
            raise Conflict(f"the trigger id {message.trigger_id!r} stands for the disposal of {known.path}")
        return known

    async def _checked(self, message: DisposeSavepoint) -> SavepointDisposal:
        """Return a new disposal: one that has failed, if there is nothing to remove."""
        if len(message.path.encode(errors="surrogatepass")) > MAX_PATH_BYTES:
            raise Invalid(f"savepoint-path: is longer than {MAX_PATH_BYTES:,} bytes")
        disposal = SavepointDisposal(trigger_id=message.trigger_id, path=message.path)
        try:
            identity = await self._savepoints.check_disposal(message.path)
        except Unavailable:  # it passes: no outcome of this trigger id
            raise
        except Exception as error:  # noqa: BLE001 - it is the outcome, whatever it is
            return disposal.failed(outcome_of(error, path=message.path))
        return structs.replace(disposal, identity=identity)

    async def _carry_out(self, disposal: SavepointDisposal) -> None:
        """Remove the savepoint, once in a term, and make the outcome durable, however long it takes."""
        if disposal.trigger_id in self._begun:  # it was triggered before `resume` had read what is in progress
            return
        self._begun.add(disposal.trigger_id)
        outcome = disposal.succeeded()
        try:
            await self._savepoints.dispose(disposal.path, disposal.identity)
        except Exception as error:  # noqa: BLE001 - it is the outcome, whatever it is
            outcome = disposal.failed(outcome_of(error, path=disposal.path))
        async with self._writing:
            await self._write((await self._read()).with_outcome(outcome))
        self._begun.discard(disposal.trigger_id)
        log.info(log_events.SAVEPOINT_DISPOSED, path=disposal.path, failure=outcome.message or None)

    async def _read(self) -> SavepointDisposals:
        if self._recorded is None:
            found = None
            with continue_without_damaged(log_events.SAVEPOINT_DISPOSALS_UNREADABLE):
                found = await self._gate.retry_until_acknowledged(self._store.read, patience_s=PATIENCE_S)
            if self._recorded is None:  # another call may have read it meanwhile, and written
                self._recorded = found or SavepointDisposals()
        return self._recorded

    async def _write(
        self, recorded: SavepointDisposals, accepted: asyncio.Future[SavepointDisposal] | None = None
    ) -> None:
        async def record() -> None:
            try:
                await self._store.record(recorded)
            except Unavailable as error:
                if accepted is not None and not accepted.done():
                    text = f"it is not known whether the disposal was stored: {error.public}; trigger again"
                    accepted.set_exception(Unavailable(text))
                raise

        await self._gate.retry_until_acknowledged(record)
        self._recorded = recorded
