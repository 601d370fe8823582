"""The savepoints of a simulated run: they outlast every JobManager, as files do, and say what they were made of."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from random import Random
from typing import Final

from flintlock.config.options import RESTORE_PATH
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.jobgraph import JobGraph
from flintlock.testing.fakes.fake_streams import checkpoint_of, latest, partitions_of, sink_of

CHECKPOINTS: Final = "checkpoints"
_RESTORED: Final = "_restored"
_FAILURES: Final = 0.1  # how often a disk is full
_OUTAGES: Final = 0.15  # in how many runs the storage is out of reach for a while
_LONGEST_OUTAGE_S: Final = 300.0
_MISFITS: Final = 0.1  # how often the graph of an upgrade does not fit the state


def draw_outage(random: Random) -> tuple[float, float]:
    """Return from when to when the storage of checkpoints cannot be reached: in most runs it always can."""
    if random.random() >= _OUTAGES:
        return 0.0, 0.0
    begins_s = random.uniform(0.0, 40.0)
    return begins_s, begins_s + random.uniform(10.0, _LONGEST_OUTAGE_S)


class SimulatedSavepoints:
    """Savepoints that take some time, and fail at times."""

    def __init__(self, content: MutableMapping[str, str]) -> None:
        self.violations: Final[list[str]] = []
        self.outage_s = (0.0, 0.0)  # from when to when nothing can be read or written
        self._content: Final = content  # the files, with the checkpoints of all queries
        self._tries = 0
        self._made: Final[dict[str, dict[str, int]]] = {}  # the batch that each query was saved after, by uid
        self._added = 0
        self._identities: Final[dict[str, str]] = {}  # of savepoints that are only disposed of, by path
        self._partitions: Final[dict[str, dict[str, int]]] = {}  # of the state of each query, likewise

    async def save(self, job: JobGraph, trigger_id: TriggerId, directory: str) -> str:
        """Make a savepoint, unless it is there."""
        location = f"{directory or '/savepoints'}/{job.job_id}-{trigger_id}"
        if location not in self._made:
            self._tries += 1
            random = Random(f"{trigger_id}-{self._tries}")
            await asyncio.sleep(random.uniform(0.0, 2.0))
            self._fail_at_times(random)
            self._made.setdefault(location, self._saved_batches(job))
            self._partitions.setdefault(location, self._saved_partitions(job))
        return location

    def _saved_batches(self, job: JobGraph) -> dict[str, int]:
        saved: dict[str, int] = {}
        for vertex in job.vertices:
            if vertex.query is None:
                continue
            saved[vertex.uid] = latest(self._content, f"{self._checkpoint(job, vertex.uid)}/commits")
            # The sink may have a batch that is not committed yet; it never has two.
            if latest(self._content, sink_of(vertex)) > saved[vertex.uid] + 1:
                self.violations.append(f"{vertex.uid} of job {job.job_id} was saved when its checkpoint was gone")
        return saved

    def _saved_partitions(self, job: JobGraph) -> dict[str, int]:
        queries = [vertex for vertex in job.vertices if vertex.query is not None]
        return {each.uid: partitions_of(self._content, self._checkpoint(job, each.uid)) for each in queries}

    def add(self, path: str) -> str:
        """Have a savepoint of a job that is long gone at this path; return what identifies it."""
        self._added += 1
        self._identities[path] = f"savepoint {self._added}"
        return self._identities[path]

    def identity(self, path: str) -> str:
        """Return what identifies the savepoint at this path; "" if there is none that was added."""
        return self._identities.get(path, "")

    async def check_disposal(self, path: str) -> str:
        """Refuse what is not there."""
        await asyncio.sleep(0.1)
        self._check_reachable()
        if path not in self._identities:
            raise Invalid(f"{path} is not a savepoint")
        return self._identities[path]

    async def dispose(self, path: str, identity: str) -> None:
        """Remove a savepoint, unless another one has got its place; fail at times, also with an error of its own."""
        random = self._next_random(f"dispose-{path}")
        await asyncio.sleep(random.uniform(0.0, 4.0))
        self._fail_at_times(random)
        if random.random() < _FAILURES:
            raise RuntimeError("nobody expects this")
        if self._identities.get(path) == identity:
            del self._identities[path]

    async def prepare(self, directory: str) -> None:
        """Refuse some directories, at some times."""
        self._tries += 1
        self._fail_at_times(Random(f"{directory}-{self._tries}"))

    async def check_restore(self, job: JobGraph) -> None:
        """Refuse a job whose savepoint is not there."""
        location = job.config.get(RESTORE_PATH.key, "")
        if location and location not in self._made:
            raise Invalid(f"{location} is not a savepoint")

    def place(self, job: JobGraph, trigger_id: TriggerId) -> str:
        """Return where `save` makes the savepoint."""
        return f"/savepoints/{job.job_id}-{trigger_id}"

    async def check_upgrade(self, former: JobGraph, job: JobGraph) -> None:
        """Refuse some graphs, each time, and some at some times."""
        random = self._next_random(f"upgrade-{job.job_id}")
        await asyncio.sleep(random.uniform(0.0, 2.0))
        if Random(f"fits-{job.job_id}").random() < _MISFITS:
            raise Invalid("no query takes the state of another one")
        self._fail_at_times(random)

    async def way_back(self, job: JobGraph, former: JobGraph) -> str | None:
        """Return the savepoint, if it is there, and no batch was committed or written after it."""
        self._check_reachable()
        location = job.config.get(RESTORE_PATH.key, "")
        return None if location not in self._made or await self.has_gone_on(job) else location

    async def has_gone_on(self, job: JobGraph) -> bool:
        """Return whether a batch was committed or written after the savepoint."""
        self._check_reachable()
        saved = self._made.get(job.config.get(RESTORE_PATH.key, ""))
        return saved is not None and any(
            max(latest(self._content, f"{self._checkpoint(job, vertex.uid)}/commits"),
                latest(self._content, sink_of(vertex))) > saved[vertex.uid]
            for vertex in job.vertices if vertex.query is not None
        )  # fmt: skip

    async def is_restored(self, job: JobGraph) -> bool:
        """Return whether a job names no savepoint, or its checkpoints were made from it."""
        self._check_reachable()
        return not job.config.get(RESTORE_PATH.key) or f"{CHECKPOINTS}/{job.job_id}/{_RESTORED}" in self._content

    async def restore(self, job: JobGraph) -> None:
        """Make the checkpoints of a job, one query after another; a process that dies in between has started none."""
        location = job.config.get(RESTORE_PATH.key, "")
        await self.check_restore(job)
        random = self._next_random(f"restore-{job.job_id}")
        for vertex in job.vertices:
            await asyncio.sleep(random.uniform(0.0, 1.0))
            self._fail_at_times(random)
            if vertex.query is not None:
                checkpoint = self._checkpoint(job, vertex.uid)
                for batch in range(self._made[location][vertex.uid] + 1):
                    self._content[f"{checkpoint}/offsets/{batch}"] = location
                    self._content[f"{checkpoint}/commits/{batch}"] = location
                if self._partitions[location][vertex.uid]:
                    self._content[f"{checkpoint}/partitions"] = str(self._partitions[location][vertex.uid])
        self._content[f"{CHECKPOINTS}/{job.job_id}/{_RESTORED}"] = location

    async def abandon_restore(self, job: JobGraph) -> None:
        """Remove the checkpoints of a job."""
        if job.config.get(RESTORE_PATH.key):
            for path in [path for path in self._content if path.startswith(f"{CHECKPOINTS}/{job.job_id}/")]:
                del self._content[path]

    def _fail_at_times(self, random: Random) -> None:
        self._check_reachable()
        if random.random() < _FAILURES:
            raise Unavailable("the disk is full")

    def _check_reachable(self) -> None:
        begins_s, ends_s = self.outage_s
        if begins_s <= asyncio.get_running_loop().time() < ends_s:
            raise Unavailable("the storage cannot be reached")

    def _next_random(self, what: str) -> Random:
        self._tries += 1
        return Random(f"{what}-{self._tries}")

    def _checkpoint(self, job: JobGraph, uid: str) -> str:
        return checkpoint_of(f"{CHECKPOINTS}/{job.job_id}", uid)

    def has(self, location: str) -> bool:
        """Return whether a savepoint is there."""
        return location in self._made

    def batches(self, location: str) -> dict[str, int]:
        """Return the batch that each query was saved after, by uid."""
        return self._made[location]
