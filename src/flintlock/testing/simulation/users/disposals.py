"""A user who disposes of savepoints during faults, and then has other ones in their places.

Promised is: a disposal that was acknowledged gets one outcome, which never changes, however often it was triggered; one
without an error has removed its savepoint; and no other savepoint is ever removed, though it has the same path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import TriggerId
from flintlock.model.streaming.savepoints import DisposalQuery, DisposeSavepoint, SavepointDisposal
from flintlock.testing.simulation.users.savepoints import SimulatedSavepoints

#: In how many runs a user disposes of savepoints.
DISPOSING_RUNS: Final = 0.15
_MOST: Final = 3


class DisposingUser:
    """Disposes of some savepoints, one after another, each until it is answered."""

    def __init__(
        self,
        random: Random,
        savepoints: SimulatedSavepoints,
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        self.violations: Final[list[str]] = []
        self._random: Final = random
        self._savepoints: Final = savepoints
        self._gateway: Final = gateway
        self._try_another: Final = try_another
        self._record: Final = record
        self._outcomes: Final[list[SavepointDisposal]] = []  # as they were seen first
        self._kept: Final[dict[str, str]] = {}  # what identifies savepoints that nobody disposes of, by path

    async def run(self) -> None:
        """Dispose of the savepoints; as soon as one is gone, another one has its place in some cases, and is kept."""
        for number in range(self._random.randint(1, _MOST)):
            path = f"/savepoints/old-{number}"
            identity = self._savepoints.add(path)
            await asyncio.sleep(self._random.uniform(0.0, 15.0))
            message = DisposeSavepoint(trigger_id=TriggerId(f"{self._random.getrandbits(128):032x}"), path=path)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._random.choice([1, 1, 2])):  # two processes of one user, with one trigger id
                    tasks.create_task(self._dispose(message), name=f"dispose-{number}")
            outcome = await self._outcome(message, replaces=self._random.random() < 0.7)
            if outcome is None:
                continue
            self._outcomes.append(outcome)
            self._record(f"disposal of {path} has completed: {outcome.message or 'it is removed'}")
            if self._savepoints.identity(path) == identity and not outcome.error:
                self.violations.append(f"{path} was disposed of, and is there")

    async def check(self) -> None:
        """Check that each disposal has the outcome that was seen first, and that what is kept is there."""
        for outcome in self._outcomes:
            answer = await self._outcome(DisposeSavepoint(trigger_id=outcome.trigger_id, path=outcome.path))
            if answer not in (None, outcome):
                self.violations.append(f"disposal {outcome.trigger_id} was {outcome}, and now is {answer}")
        for path, identity in self._kept.items():
            if self._savepoints.identity(path) != identity:
                self.violations.append(f"the savepoint at {path} was removed, though only its predecessor was to be")

    async def _dispose(self, message: DisposeSavepoint) -> None:
        """Trigger a disposal until it is acknowledged."""
        while True:
            try:
                answer = await self._gateway().dispose_savepoint(message)
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            self._record(f"disposal of {message.path} acknowledged")
            if answer.path != message.path:
                self.violations.append(f"disposal {message.trigger_id} is of {answer.path}, not of {message.path}")
            return

    async def _outcome(self, message: DisposeSavepoint, *, replaces: bool = False) -> SavepointDisposal | None:
        """Poll a disposal that was acknowledged until it has its outcome. None if it is not known any more.

        `replaces`: another savepoint gets the place as soon as that is free.
        """
        while True:
            if replaces and not self._savepoints.identity(message.path):
                self._kept[message.path] = self._savepoints.add(message.path)
            try:
                answer = await self._gateway().disposal(DisposalQuery(trigger_id=message.trigger_id))
            except NotFound:
                self.violations.append(f"disposal {message.trigger_id} of {message.path}: acknowledged, not known")
                return None
            except FlintlockError:
                self._try_another()
            else:
                if answer.completed:
                    return answer
            await asyncio.sleep(0.5)
