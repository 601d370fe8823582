"""Removes savepoints that users no longer need. What came of it is remembered by the leader that did it, as in Flink.

A removal that a leader did not complete can be triggered again: from its first step on there is no savepoint under that
path, and what is left of it is removed.
"""

from __future__ import annotations

from typing import Final

from flintlock.dispatcher.services import Savepoints
from flintlock.dispatcher.writes import is_fatal_to_term
from flintlock.model.errors import Conflict, FlintlockError, NotFound
from flintlock.model.ids import TriggerId
from flintlock.model.streaming.savepoints import DisposedSavepoint, DisposeSavepoint

#: How many outcomes are remembered.
MAX_DISPOSALS: Final = 100


class Disposals:
    """Disposes of savepoints under one term."""

    def __init__(self, savepoints: Savepoints) -> None:
        self._savepoints: Final = savepoints
        self._known: Final[dict[TriggerId, tuple[DisposeSavepoint, DisposedSavepoint]]] = {}  # latest last

    async def dispose(self, message: DisposeSavepoint) -> DisposedSavepoint:
        """Remove a savepoint, once for each trigger id. Raises Conflict if the id stands for another one."""
        known = self._known.get(message.trigger_id)
        if known is not None:
            if known[0] != message:
                raise Conflict(f"the trigger id {message.trigger_id!r} stands for the disposal of {known[0].path}")
            return known[1]
        outcome = DisposedSavepoint(trigger_id=message.trigger_id)
        try:
            await self._savepoints.dispose(message.path)
        except FlintlockError as error:
            if is_fatal_to_term(error):
                raise
            outcome = DisposedSavepoint(trigger_id=message.trigger_id, error=type(error).__name__, message=error.public)
        self._known[message.trigger_id] = (message, outcome)
        if len(self._known) > MAX_DISPOSALS:
            del self._known[next(iter(self._known))]
        return outcome

    def outcome(self, trigger_id: TriggerId) -> DisposedSavepoint:
        """Return what came of a disposal. Raises NotFound."""
        known = self._known.get(trigger_id)
        if known is None:
            raise NotFound(f"there is no disposal {trigger_id!r}")
        return known[1]
