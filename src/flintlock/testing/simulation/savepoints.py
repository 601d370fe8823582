"""The savepoints of a simulated run: they outlast every JobManager, as files do, and say what they were made of."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from random import Random
from typing import Final

from flintlock.model.errors import Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.jobgraph import JobGraph
from flintlock.testing.fakes.fake_streams import checkpoint_of, latest, sink_of

CHECKPOINTS: Final = "checkpoints"


class SimulatedSavepoints:
    """Savepoints that take some time, and fail at times."""

    def __init__(self, content: MutableMapping[str, str]) -> None:
        self.violations: Final[list[str]] = []
        self._content: Final = content  # the files, with the checkpoints of all queries
        self._tries = 0
        self._made: Final[dict[str, dict[str, int]]] = {}  # the batch that each query was saved after, by uid

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:
        """Make a savepoint, unless it is there."""
        location = f"{directory or '/savepoints'}/{job.job_id}-{trigger_id}"
        if location not in self._made:
            self._tries += 1
            random = Random(f"{trigger_id}-{self._tries}")
            await asyncio.sleep(random.uniform(0.0, 2.0))
            if random.random() < 0.1:
                raise Unavailable("the disk is full")
            self._made.setdefault(location, self._saved_batches(job))
        return location

    def _saved_batches(self, job: JobGraph) -> dict[str, int]:
        saved: dict[str, int] = {}
        for vertex in job.vertices:
            if vertex.query is None:
                continue
            checkpoint = checkpoint_of(f"{CHECKPOINTS}/{job.job_id}", vertex.uid)
            saved[vertex.uid] = latest(self._content, f"{checkpoint}/commits")
            # The sink may have a batch that is not committed yet; it never has two.
            if latest(self._content, sink_of(job.job_id, vertex.uid)) > saved[vertex.uid] + 1:
                self.violations.append(f"{vertex.uid} of job {job.job_id} was saved when its checkpoint was gone")
        return saved

    async def dispose(self, path: str) -> None:
        """Remove a savepoint."""
        self._made.pop(path, None)

    async def prepare(self, directory: str) -> None:
        """Refuse some directories, at some times."""
        self._tries += 1
        if Random(f"{directory}-{self._tries}").random() < 0.1:
            raise Unavailable("no savepoint can be made: the disk is full")

    async def check_restore(self, job: JobGraph) -> None:
        """Accept every job: none of the simulation's begins from a savepoint."""

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:
        """Return where `save` makes the savepoint."""
        return f"/savepoints/{job.job_id}-{trigger_id}"

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:
        """Accept every job: none of the simulation's takes the place of another one."""

    async def may_go_back(self, job: JobGraph) -> bool:
        """Return that there is no way back."""
        return False

    def is_restored(self, job: JobGraph) -> bool:
        """Return that nothing is to be restored."""
        return True

    async def restore(self, job: JobGraph) -> None:
        """Restore nothing."""

    def has(self, location: str) -> bool:
        """Return whether a savepoint is there."""
        return location in self._made

    def batches(self, location: str) -> dict[str, int]:
        """Return the batch that each query was saved after, by uid."""
        return self._made[location]
