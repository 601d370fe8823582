"""What goes wrong in a simulated cluster, and when: crashes, freezes, partitions, burials of the living.

Moments, victims and lengths are drawn from the cluster's one `Random`. All of it begins before the faults are over, and
ends some time after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final, Protocol

from msgspec import Struct

from flintlock.testing.fake_spark import FakeEngineLauncher, FakeSpark
from flintlock.testing.fake_zookeeper import ENSEMBLE
from flintlock.testing.simulation.network import SimulatedNetwork


class Faults(Struct, frozen=True, kw_only=True):
    """What goes wrong, and how often; all of it until `until_s`."""

    crash_at_step: float = 0.0  # probability that a JobManager dies at a step of the stores
    freeze_at_step: float = 0.0  # probability that it stops there, some past their session or their leases
    job_manager_crashes: int = 0  # at moments of their own
    job_manager_freezes: int = 0
    burials: int = 0  # of leaders that are only believed to be dead
    deaths_noticed: bool = True  # else a dead leader is succeeded only after its session has expired
    task_manager_crashes: int = 0
    engine_crashes: int = 0
    spark_failures: float = 0.0
    work_s: float = 2.0  # what an output of a task takes at most
    late_messages: float = 0.0
    lost_messages: float = 0.0
    duplicates: float = 0.0
    partitions: int = 0  # between a JobManager and a TaskManager, both ways or one
    store_partitions: int = 0  # between the ensemble and anybody, both ways or one
    freezes: int = 0  # of TaskManagers, some past their lease
    lost_results: int = 0  # blocking results that vanish
    slow_reads_s: float = 0.0  # what reading one job takes at most when a term begins
    lost_answers: float = 0.0  # probability that a step of the stores is Unavailable: before it took effect, or after
    heartbeat_timeout_s: float = 60.0
    session_timeout_s: float = 4.0
    until_s: float = 60.0

    @property
    def only_job_managers(self) -> bool:
        """Whether nobody but JobManagers can fail, and no message is lost."""
        return not (
            self.task_manager_crashes
            or self.engine_crashes
            or self.spark_failures
            or self.lost_messages
            or self.partitions
            or self.freezes
            or self.lost_results
        )


class Victims(Protocol):
    """The cluster as its mishaps see it."""

    random: Random
    faults: Faults
    network: SimulatedNetwork
    spark: FakeSpark
    job_managers: list[str]
    task_managers: list[str]
    houses: dict[str, FakeEngineLauncher]

    def tell(self, what: str) -> None:
        """Add to the story."""
        ...

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        ...

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        ...

    def bury_leader(self) -> None:
        """Have somebody say that the leader is dead."""
        ...


class FaultInjector:
    """Those of one cluster."""

    def __init__(self, cluster: Victims) -> None:
        self._cluster: Final = cluster
        self._random: Final = cluster.random
        self._faults: Final = cluster.faults

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Draw all moments, and let each mishap wait for its own."""
        faults = self._faults
        for count, mishap in (
            (faults.job_manager_crashes, self._crash_a_job_manager),
            (faults.job_manager_freezes, self._freeze_a_job_manager),
            (faults.burials, self._bury),
            (faults.task_manager_crashes, self._crash_a_task_manager),
            (faults.engine_crashes, self._crash_an_engine),
            (faults.partitions, self._cut_off_a_task_manager),
            (faults.store_partitions, self._cut_off_from_the_store),
            (faults.freezes, self._freeze_a_task_manager),
            (faults.lost_results, self._lose_a_result),
        ):
            for _ in range(count):
                moment_s = self._random.uniform(1.0, faults.until_s)
                tasks.create_task(self._later(moment_s, mishap), name=mishap.__name__)

    def freeze(self, name: str, length_s: float) -> None:
        """Stop a process for so long. Harmless for one that is dead or stopped already."""
        process = self._cluster.network.at(name)
        if process is None or not process.alive or process.frozen:
            return
        self._cluster.tell(f"{name} freezes for {length_s:.1f} s")
        process.freeze(length_s)

    def stillness_s(self) -> float:
        """Draw for how long a JobManager stops: a moment, past its session, or past all leases."""
        session_s, lease_s = self._faults.session_timeout_s, self._faults.heartbeat_timeout_s
        longest_s = self._random.choice([session_s, 4 * session_s, min(2 * lease_s, 120.0)])
        return self._random.uniform(0.2, longest_s)

    async def _later(self, moment_s: float, mishap: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(moment_s)
        await mishap()

    async def _crash_a_job_manager(self) -> None:
        self._cluster.crash(self._a_job_manager(), "at a moment of its own")

    async def _freeze_a_job_manager(self) -> None:
        self.freeze(self._a_job_manager(), self.stillness_s())

    async def _bury(self) -> None:
        self._cluster.bury_leader()

    async def _crash_a_task_manager(self) -> None:
        self._cluster.crash(self._random.choice(self._cluster.task_managers), "at a moment of its own")

    async def _crash_an_engine(self) -> None:
        name, houses = self._random.choice(self._cluster.task_managers), self._cluster.houses
        if name in houses and houses[name].engines:
            self._cluster.tell(f"the engine of {name} dies")
            houses[name].engines[-1].crash("java.lang.OutOfMemoryError: simulated")

    async def _cut_off_a_task_manager(self) -> None:
        length_s = self._random.uniform(1.0, 2.0 * self._faults.heartbeat_timeout_s)
        some = self._cluster.job_managers if self._random.random() < 0.5 else [self._a_job_manager()]
        await self._cut(some, [self._random.choice(self._cluster.task_managers)], length_s)

    async def _cut_off_from_the_store(self) -> None:
        everybody = [*self._cluster.job_managers, *self._cluster.task_managers]
        name = self._cluster.leader() if self._random.random() < 0.6 else self._random.choice(everybody)
        await self._cut([name], [ENSEMBLE], self._random.uniform(0.2, 4.0 * self._faults.session_timeout_s))

    async def _cut(self, some: list[str], others: list[str], length_s: float) -> None:
        sides = [some, others]
        self._random.shuffle(sides)
        one_way = self._random.random() < 0.5
        what = " to ".join(", ".join(side) for side in sides)
        self._cluster.tell(f"cut from {what}{'' if one_way else ' and back'} for {length_s:.1f} s")
        self._cluster.network.cut(sides[0], sides[1], one_way=one_way)
        await asyncio.sleep(length_s)
        self._cluster.tell(f"healed from {what}")
        self._cluster.network.heal(sides[0], sides[1])

    async def _freeze_a_task_manager(self) -> None:
        length_s = self._random.uniform(0.5, 1.5 * self._faults.heartbeat_timeout_s)
        self.freeze(self._random.choice(self._cluster.task_managers), length_s)

    async def _lose_a_result(self) -> None:
        files = self._cluster.spark.files
        results = sorted({path.rpartition("/")[0] for path in files.content if path.startswith("work/")})
        if results:
            gone = self._random.choice(results)
            self._cluster.tell(f"{gone} vanishes")
            for path in files.below(gone):
                del files.content[path]

    def _a_job_manager(self) -> str:
        """Draw one; the leader more often than the others."""
        if self._random.random() < 0.6:
            return self._cluster.leader()
        return self._random.choice(self._cluster.job_managers)
