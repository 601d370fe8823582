"""Harness of the ZooKeeper tests: the processes of one cluster, and a contender that records its terms."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from flintlock.ha.protocols import Stores
from flintlock.ha.zookeeper.services import ZooKeeperHaServices, zookeeper_ha
from flintlock.ha.zookeeper.storage.payload_files import PROBE_OWNER
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.ids import FencingToken

#: The longest that anything in these tests may take.
LIMIT_S: Final = 60.0


class ClusterHarness:
    """One cluster in ZooKeeper, and the HA services of its processes."""

    def __init__(self, quorum: str, storage_dir: Path, stack: AsyncExitStack, tasks: asyncio.TaskGroup) -> None:
        self.cluster_id: Final = uuid.uuid4().hex
        self.storage_dir: Final = storage_dir
        self.quorum: Final = quorum
        self._stack: Final = stack
        self._tasks: Final = tasks
        self._sessions: Final = (f"session-{n}" for n in itertools.count())

    async def process(self, *, timeout_s: float, quorum: str | None = None) -> ZooKeeperHaServices:
        """Return the services of a process that starts now."""
        services = zookeeper_ha(
            quorum or self.quorum,
            root="/flintlock",
            cluster_id=self.cluster_id,
            storage_dir=str(self.storage_dir),
            session_timeout_s=timeout_s,
            connection_timeout_s=20,
            new_session=lambda: next(self._sessions),
            clock_s=boot_time_s,
        )
        return await self._stack.enter_async_context(services)

    def contend(self, ha: ZooKeeperHaServices) -> Leader:
        """Let a process contend, term after term, until the test ends."""
        leader = Leader(ha)
        task = self._tasks.create_task(leader.run(), name="contender")
        self._stack.callback(task.cancel)
        return leader

    def files(self, kind: str) -> list[str]:
        """Return the names of the payloads of one kind, without the file of a check that is under way."""
        names = sorted(path.name for path in (self.storage_dir / self.cluster_id / kind).iterdir())
        return [name for name in names if not name.startswith(f"{PROBE_OWNER}-0-")]


class Leader:
    """A process that contends. Tests wait for what happened to it."""

    def __init__(self, ha: ZooKeeperHaServices) -> None:
        self.ha: Final = ha
        self.tokens: Final[list[FencingToken]] = []  # of all its terms
        self.ends_s: Final[list[float]] = []  # when those that are over ended
        self._happened: Final = asyncio.Condition()

    @property
    def leads(self) -> bool:
        """Whether it is in a term."""
        return len(self.tokens) > len(self.ends_s)

    @property
    def stores(self) -> Stores:
        """The stores of its latest term."""
        return self.ha.stores(self.tokens[-1])

    async def run(self) -> None:
        """Contend and lead."""
        async for term in self.ha.election.terms():
            async with term as token:
                try:
                    self.tokens.append(token)
                    await self._notify()
                    await asyncio.Event().wait()
                finally:
                    self.ends_s.append(boot_time_s())
            await self._notify()

    async def until(self, condition: Callable[[Leader], bool]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(LIMIT_S), self._happened:
            await self._happened.wait_for(lambda: condition(self))

    async def _notify(self) -> None:
        async with self._happened:
            self._happened.notify_all()


@asynccontextmanager
async def running_cluster(quorum: str, storage_dir: Path) -> AsyncGenerator[ClusterHarness]:
    """Set up a cluster; its processes end with the context."""
    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as stack:
        yield ClusterHarness(quorum, storage_dir, stack, tasks)


async def until(what: str, condition: Callable[[], bool]) -> None:
    """Poll until a condition holds that no event announces."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110  # no event: it is about states of kazoo's threads and of files
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise TimeoutError(f"{what}: not within {LIMIT_S} s") from None
