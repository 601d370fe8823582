"""What goes wrong in a simulated cluster, and when: crashes, freezes, partitions, leaders declared dead.

Times, victims and durations are drawn from the cluster's one `Random`. Every fault begins before the end of the faults,
and may last beyond it.
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

_MONTH_S: Final = 30 * 86400.0


class Faults(Struct, frozen=True, kw_only=True):
    """What goes wrong, and how often; all of it until `until_s`."""

    crash_at_step: float = 0.0  # probability that a JobManager dies at a step of the stores
    freeze_at_step: float = 0.0  # probability that it freezes there, in some cases past its session or the leases
    job_manager_crashes: int = 0  # at random times
    job_manager_freezes: int = 0
    false_deaths: int = 0  # leaders that are declared dead while they may be alive
    deaths_noticed: bool = True  # else a dead leader is succeeded only after its session has expired
    task_manager_crashes: int = 0
    engine_crashes: int = 0
    spark_failures: float = 0.0
    work_s: float = 2.0  # what an output of a task takes at most
    late_messages: float = 0.0
    lost_messages: float = 0.0
    duplicates: float = 0.0
    partitions: int = 0  # between a JobManager and a TaskManager, both ways or one
    store_partitions: int = 0  # between the ensemble and any process, both ways or one
    freezes: int = 0  # of TaskManagers, in some cases past their lease
    lost_results: int = 0  # times at which blocking results are lost: one or several, each completely or in part
    clock_jumps: int = 0  # of a JobManager's wall clock, forward or back, by up to a month
    slow_reads_s: float = 0.0  # what reading one job takes at most when a term begins
    lost_answers: float = 0.0  # probability that a step of the stores is Unavailable: before it took effect, or after
    heartbeat_timeout_s: float = 60.0
    session_timeout_s: float = 4.0
    until_s: float = 60.0

    @property
    def only_job_managers(self) -> bool:
        """Whether only JobManagers can fail, and no message is lost."""
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
    """The cluster as the fault injector needs it."""

    random: Random
    faults: Faults
    network: SimulatedNetwork
    spark: FakeSpark
    job_managers: list[str]
    task_managers: list[str]
    launchers: dict[str, FakeEngineLauncher]
    clock_errors_ms: dict[str, int]

    def record(self, what: str) -> None:
        """Add an event to the trace."""
        ...

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        ...

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        ...

    def declare_leader_dead(self) -> None:
        """Have some JobManager declare the leader dead, whether or not it is."""
        ...


class FaultInjector:
    """Injects the faults of one cluster."""

    def __init__(self, cluster: Victims) -> None:
        self._cluster: Final = cluster
        self._random: Final = cluster.random
        self._faults: Final = cluster.faults

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Draw the time of every fault, and start a task that waits for it."""
        faults = self._faults
        for count, fault in (
            (faults.job_manager_crashes, self._crash_a_job_manager),
            (faults.job_manager_freezes, self._freeze_a_job_manager),
            (faults.false_deaths, self._declare_leader_dead),
            (faults.task_manager_crashes, self._crash_a_task_manager),
            (faults.engine_crashes, self._crash_an_engine),
            (faults.partitions, self._cut_off_a_task_manager),
            (faults.store_partitions, self._cut_off_from_the_store),
            (faults.freezes, self._freeze_a_task_manager),
            (faults.lost_results, self._lose_results),
            (faults.clock_jumps, self._set_a_clock),
        ):
            for _ in range(count):
                delay_s = self._random.uniform(1.0, faults.until_s)
                tasks.create_task(self._inject_after(delay_s, fault), name=fault.__name__)

    def freeze(self, name: str, length_s: float) -> None:
        """Freeze a process for `length_s`. Does nothing if it is dead or frozen."""
        process = self._cluster.network.at(name)
        if process is None or not process.alive or process.frozen:
            return
        self._cluster.record(f"{name} freezes for {length_s:.1f} s")
        process.freeze(length_s)

    def draw_freeze_s(self) -> float:
        """Draw for how long a JobManager is frozen: briefly, past its session, or past all leases."""
        session_s, lease_s = self._faults.session_timeout_s, self._faults.heartbeat_timeout_s
        longest_s = self._random.choice([session_s, 4 * session_s, min(2 * lease_s, 120.0)])
        return self._random.uniform(0.2, longest_s)

    async def _inject_after(self, delay_s: float, fault: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(delay_s)
        await fault()

    async def _crash_a_job_manager(self) -> None:
        self._cluster.crash(self._draw_job_manager(), "at a random time")

    async def _freeze_a_job_manager(self) -> None:
        self.freeze(self._draw_job_manager(), self.draw_freeze_s())

    async def _declare_leader_dead(self) -> None:
        self._cluster.declare_leader_dead()

    async def _crash_a_task_manager(self) -> None:
        self._cluster.crash(self._random.choice(self._cluster.task_managers), "at a random time")

    async def _crash_an_engine(self) -> None:
        name, launchers = self._random.choice(self._cluster.task_managers), self._cluster.launchers
        if name in launchers and launchers[name].engines:
            self._cluster.record(f"the engine of {name} dies")
            launchers[name].engines[-1].crash("java.lang.OutOfMemoryError: simulated")

    async def _cut_off_a_task_manager(self) -> None:
        length_s = self._random.uniform(1.0, 2.0 * self._faults.heartbeat_timeout_s)
        some = self._cluster.job_managers if self._random.random() < 0.5 else [self._draw_job_manager()]
        await self._cut(some, [self._random.choice(self._cluster.task_managers)], length_s)

    async def _cut_off_from_the_store(self) -> None:
        processes = [*self._cluster.job_managers, *self._cluster.task_managers]
        name = self._cluster.leader() if self._random.random() < 0.6 else self._random.choice(processes)
        await self._cut([name], [ENSEMBLE], self._random.uniform(0.2, 4.0 * self._faults.session_timeout_s))

    async def _cut(self, some: list[str], others: list[str], length_s: float) -> None:
        sides = [some, others]
        self._random.shuffle(sides)
        one_way = self._random.random() < 0.5
        what = " to ".join(", ".join(side) for side in sides)
        self._cluster.record(f"cut from {what}{'' if one_way else ' and back'} for {length_s:.1f} s")
        self._cluster.network.cut(sides[0], sides[1], one_way=one_way)
        await asyncio.sleep(length_s)
        self._cluster.record(f"healed from {what}")
        self._cluster.network.heal(sides[0], sides[1])

    async def _freeze_a_task_manager(self) -> None:
        length_s = self._random.uniform(0.5, 1.5 * self._faults.heartbeat_timeout_s)
        self.freeze(self._random.choice(self._cluster.task_managers), length_s)

    async def _lose_results(self) -> None:
        """Lose up to three blocking results: all files of each, some of them, or the end of some."""
        files = self._cluster.spark.files
        results = sorted({path.rpartition("/")[0] for path in files.content if path.startswith("work/")})
        for lost in self._random.sample(results, min(len(results), self._random.randint(1, 3))):
            paths = files.below(lost)
            how = self._random.choice(["lost", "lost in part", "truncated"])
            some = paths if how == "lost" else self._random.sample(paths, self._random.randint(1, len(paths)))
            self._cluster.record(f"{lost} is {how}")
            for path in some:
                if how == "truncated":
                    files.content[path] = files.content[path][:-1]
                else:
                    del files.content[path]

    async def _set_a_clock(self) -> None:
        """Set the wall clock of a JobManager's machine wrong for a while; it may start or begin to lead meanwhile."""
        name, error_s = self._draw_job_manager(), self._random.choice([-1, 1]) * self._random.uniform(1.0, _MONTH_S)
        self._cluster.record(f"the clock of {name} jumps by {error_s:.0f} s")
        self._cluster.clock_errors_ms[name] = round(error_s * 1000)
        await asyncio.sleep(self._random.uniform(0.1, 30.0))
        self._cluster.record(f"the clock of {name} is right again")
        self._cluster.clock_errors_ms.pop(name, None)

    def _draw_job_manager(self) -> str:
        """Draw a JobManager: the leader more often than the others."""
        if self._random.random() < 0.6:
            return self._cluster.leader()
        return self._random.choice(self._cluster.job_managers)
