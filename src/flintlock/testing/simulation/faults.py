"""What goes wrong in a simulated cluster, and when: crashes, freezes, partitions, leaders declared dead.

Times, victims and durations are drawn from the cluster's one `Random`. Every fault begins before the end of the faults,
and may last beyond it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from msgspec import Struct, structs

from flintlock.model.errors import Unavailable
from flintlock.model.slots import ResourceOverview
from flintlock.testing.fakes.fake_spark import FakeEngineLauncher, FakeSpark
from flintlock.testing.fakes.fake_zookeeper import ENSEMBLE, FakeEnsemble
from flintlock.testing.simulation.network import Link, SimulatedNetwork
from flintlock.testing.virtual_time import now_ms

_MONTH_S: Final = 30 * 86400.0
_TAKEOVER_POLL_S: Final = 0.02
_TAKEOVER_POLLS: Final = 1000
_FULL_S: Final = 45.0  # longer than anything that is retried for a limited time
_READ_ONLY_S: Final = 120.0  # longer than a leader that cannot write may take to give way
_BROKEN_S: Final = 90.0


class Faults(Struct, frozen=True, kw_only=True):
    """What goes wrong, and how often; all of it until `until_s`."""

    crash_at_step: float = 0.0  # probability that a JobManager dies at a step of the stores
    freeze_at_step: float = 0.0  # probability that it freezes there, in some cases past its session or the leases
    job_manager_crashes: int = 0  # at random times
    crash_after_change: float = 0.0  # probability that it dies once a change of a job is stored
    job_manager_freezes: int = 0
    blocked_loops: int = 0  # of JobManagers: their sessions live on, and many never go on
    blocking_times: int = 0  # leaders that one job blocks, as long as it is live
    brief_freezes: int = 0  # of the leader, for less than a session
    unheard_successors: float = 0.0  # probability that a TaskManager hears nothing of a new leader
    false_deaths: int = 0  # leaders that are declared dead while they may be alive
    deaths_noticed: bool = True  # else a dead leader is succeeded only after its session has expired
    task_manager_crashes: int = 0
    lost_for_good: bool = False  # of several TaskManagers the last one does not come back once it has died
    engine_crashes: int = 0
    spark_failures: float = 0.0
    work_s: float = 2.0  # what an output of a task takes at most
    late_messages: float = 0.0
    lost_messages: float = 0.0
    duplicates: float = 0.0
    partitions: int = 0  # between a JobManager and a TaskManager, both ways or one
    member_cuts: int = 0  # between any two of JobManagers, TaskManagers and the ensemble, both ways or one
    quiet_spells: int = 0  # TaskManagers that are frozen, or cut off, for at most half of the heartbeat timeout
    slow_answers: int = 0  # answers to a TaskManager that take a good part of its lease, before it is cut off
    refusals: int = 0  # TaskManagers that refuse connections of JobManagers, though they work and send heartbeats
    closed_ports: bool = False  # no JobManager accepts connections of another one, throughout
    store_partitions: int = 0  # between the ensemble and any process, both ways or one
    lone_servers: int = 0  # servers of the ensemble that are cut off from the others, with one of their clients
    freezes: int = 0  # of TaskManagers, in some cases past their lease
    lapses_leases: bool = False  # each freeze of a TaskManager, and each cut from it, lasts longer than its lease
    lost_results: int = 0  # times at which blocking results are lost: one or several, each completely or in part
    clock_jumps: int = 0  # of a JobManager's wall clock, forward or back, by up to a month
    equal_ids: bool = False  # all TaskManagers have one id: one of them works at a time
    slow_reads_s: float = 0.0  # what reading one job takes at most when a term begins
    slow_records_s: float = 0.0  # what recording an attempt takes at most, on the way to the store and back
    publication_failures: float = 0.0  # probability that a step of a publication fails
    publication_step_s: float = 0.2  # what a step of a publication takes at most
    unrecorded_attempts: int = 0  # attempts on TaskManagers that no JobMaster knows
    damaged_graphs: int = 0  # stored graphs that cannot be read any more
    full_disks: int = 0  # times at which no JobManager can write to the stores, for a while; all of them can read
    read_only_members: int = 0  # times at which one JobManager reads the stores and cannot write, for a while
    broken_ports: int = 0  # JobManagers that refuse all connections from some moment on, and send as before
    containers: bool = False  # workers are containers of YARN, and JobManagers attempts of one application
    lost_containers: int = 0  # that YARN writes off: some run on
    abandoned_attempts: int = 0  # of the application that YARN gives up while they run
    absences_of_yarn: int = 0  # times at which YARN answers no heartbeat, for a while
    lost_answers: float = 0.0  # probability that a step of the stores is Unavailable: before it took effect, or after
    heartbeat_timeout_s: float = 60.0
    other_timeouts: float = 0.0  # probability that a JobManager is started with a third of that
    session_timeout_s: float = 4.0
    until_s: float = 60.0
    job_managers: int | None = None  # how many there are; None: one to three
    task_managers: int | None = None  # how many there are; None: one or two
    joins: bool = False  # all jobs have steps that read several blocking results
    cancels: float = 0.35  # probability that a job is cancelled
    cancels_within_s: float = 0.0  # how long after its acknowledgement at most; 0: at once, while it starts, or later

    @property
    def leads_throughout(self) -> bool:
        """Whether the first leader leads until the end."""
        return not (
            self.crash_at_step
            or self.crash_after_change
            or self.freeze_at_step
            or self.job_manager_crashes
            or self.job_manager_freezes
            or self.blocked_loops
            or self.blocking_times
            or self.brief_freezes
            or self.false_deaths
            or self.member_cuts
            or self.store_partitions
            or self.lone_servers
            or self.read_only_members
            or self.broken_ports
            or self.abandoned_attempts
        )

    @property
    def leads_while_it_writes(self) -> bool:
        """Whether leaders change only because one cannot write to the stores."""
        return bool(self.read_only_members) and structs.replace(self, read_only_members=0).leads_throughout

    @property
    def freezes_leaders(self) -> bool:
        """Whether a leader may stand still for a while, or may be unable to act, and lead on."""
        return bool(
            self.freeze_at_step
            or self.job_manager_freezes
            or self.blocked_loops
            or self.blocking_times
            or self.brief_freezes
            or self.false_deaths
            or self.member_cuts
            or self.store_partitions
            or self.lone_servers
            or self.full_disks
            or self.read_only_members
            or self.broken_ports
        )

    @property
    def only_job_managers(self) -> bool:
        """Whether only JobManagers can fail, and no message is lost."""
        return not (
            self.task_manager_crashes
            or self.engine_crashes
            or self.spark_failures
            or self.lost_messages
            or self.partitions
            or self.member_cuts
            or self.slow_answers
            or self.freezes
            or self.lost_results
            or self.other_timeouts
            or self.unheard_successors
            or self.refusals
            or self.broken_ports
            or self.lost_containers
            or self.abandoned_attempts
            or self.equal_ids
            or self.unrecorded_attempts
        )


class Victims(Protocol):
    """The cluster as the fault injector needs it."""

    random: Random
    faults: Faults
    network: SimulatedNetwork
    spark: FakeSpark
    ensemble: FakeEnsemble
    job_managers: list[str]
    task_managers: list[str]
    launchers: dict[str, FakeEngineLauncher]
    clock_errors_ms: dict[str, int]
    full_disks: Counter[str]
    lost_results: list[tuple[int, frozenset[str]]]

    def record(self, what: str) -> None:
        """Add an event to the trace."""
        ...

    def crash(self, name: str, why: str) -> None:
        """End a process at this instant."""
        ...

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        ...

    async def block_loop(self, name: str, length_s: float) -> None:
        """Let the event loop of a JobManager stand still."""
        ...

    def declare_leader_dead(self) -> None:
        """Have some JobManager declare the leader dead, whether or not it is."""
        ...

    def damage_graph(self) -> None:
        """Damage a stored graph."""
        ...

    def deploy_unrecorded(self) -> None:
        """Deploy an attempt that no JobMaster knows."""
        ...


class FaultInjector:
    """Injects the faults of one cluster."""

    def __init__(self, cluster: Victims) -> None:
        self._cluster: Final = cluster
        self._random: Final = cluster.random
        self._faults: Final = cluster.faults
        self._silenced: Final[set[str]] = set()  # TaskManagers that were quiet for a while

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Draw the time of every fault, and start a task that waits for it."""
        faults = self._faults
        for count, fault in (
            (faults.job_manager_crashes, self._crash_a_job_manager),
            (faults.job_manager_freezes, self._freeze_a_job_manager),
            (faults.brief_freezes, self._freeze_the_leader_briefly),
            (faults.false_deaths, self._declare_leader_dead),
            (faults.task_manager_crashes, self._crash_a_task_manager),
            (faults.engine_crashes, self._crash_an_engine),
            (faults.partitions, self._cut_off_a_task_manager),
            (faults.member_cuts, self._cut_off_any_two),
            (faults.quiet_spells, self._silence_a_task_manager),
            (faults.slow_answers, self._answer_slowly),
            (faults.refusals, self._refuse_connections),
            (faults.store_partitions, self._cut_off_from_the_store),
            (faults.lone_servers, self._cut_off_with_a_server),
            (faults.freezes, self._freeze_a_task_manager),
            (faults.lost_results, self._lose_results),
            (faults.clock_jumps, self._set_a_clock),
            (faults.full_disks, self._fill_the_disk),
            (faults.read_only_members, self._hinder_writes_of_one),
            (faults.broken_ports, self._break_a_port),
            (faults.damaged_graphs, self._damage_a_graph),
            (faults.unrecorded_attempts, self._deploy_unrecorded),
            (faults.blocked_loops, self._block_a_loop),
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

    async def _fill_the_disk(self) -> None:
        length_s = self._random.uniform(1.0, _FULL_S)
        self._cluster.record(f"the disk is full for {length_s:.1f} s")
        await self._fill(self._cluster.job_managers, length_s)
        self._cluster.record("the disk has room")

    async def _hinder_writes_of_one(self) -> None:
        """Let one JobManager read the stores, but not write, in some cases for longer than it may lead so."""
        name, length_s = self._draw_job_manager(), self._random.uniform(1.0, _READ_ONLY_S)
        self._cluster.record(f"{name} cannot write for {length_s:.1f} s")
        await self._fill([name], length_s)
        self._cluster.record(f"{name} can write again")

    async def _fill(self, names: list[str], length_s: float) -> None:
        self._cluster.full_disks.update(names)
        await asyncio.sleep(length_s)
        self._cluster.full_disks.subtract(names)

    async def _break_a_port(self) -> None:
        """Let a JobManager refuse the connections of all others: what it sends itself arrives, and is answered."""
        name, length_s = self._draw_job_manager(), self._random.uniform(1.0, _BROKEN_S)
        others = [each for each in (*self._cluster.job_managers, *self._cluster.task_managers) if each != name]
        self._cluster.record(f"{name} refuses all connections for {length_s:.1f} s")
        self._cluster.network.refuse(others, name)
        await asyncio.sleep(length_s)
        self._cluster.network.accept(others, name)
        self._cluster.record(f"{name} accepts connections")

    async def _crash_a_job_manager(self) -> None:
        self._cluster.crash(self._draw_job_manager(), "at a random time")

    async def _freeze_the_leader_briefly(self) -> None:
        self.freeze(self._cluster.leader(), self._random.uniform(0.3, 0.5) * self._faults.session_timeout_s)

    async def _freeze_a_job_manager(self) -> None:
        self.freeze(self._draw_job_manager(), self.draw_freeze_s())

    async def _block_a_loop(self) -> None:
        """Block the loop of a JobManager: for less than its session timeout, or without an end."""
        shorter_s = self._random.uniform(0.2, 0.6) * self._faults.session_timeout_s
        await self._cluster.block_loop(self._draw_job_manager(), self._random.choice([shorter_s, math.inf, math.inf]))

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
        timeout_s = self._faults.heartbeat_timeout_s
        length_s = self._random.uniform(timeout_s if self._faults.lapses_leases else 1.0, 2.0 * timeout_s)
        some = self._cluster.job_managers if self._random.random() < 0.5 else [self._draw_job_manager()]
        await self._cut(some, [self._random.choice(self._cluster.task_managers)], length_s)

    async def _cut_off_any_two(self) -> None:
        members = [*self._cluster.job_managers, *self._cluster.task_managers, ENSEMBLE]
        one, other = self._random.sample(members, 2)
        await self._cut([one], [other], self._random.uniform(0.2, 1.5 * self._faults.heartbeat_timeout_s))

    async def _silence_a_task_manager(self) -> None:
        """Silence a TaskManager, each once: it keeps its work, as its lease is longer."""
        name = self._random.choice(self._cluster.task_managers)
        if name in self._silenced:
            return
        self._silenced.add(name)
        length_s = self._random.uniform(0.4, 0.5) * self._faults.heartbeat_timeout_s
        if self._random.random() < 0.5:
            self.freeze(name, length_s)
        else:
            await self._cut(self._cluster.job_managers, [name], length_s)

    async def _answer_slowly(self) -> None:
        """Let a TaskManager's lease be renewed by late answers, then let nothing of it arrive any more."""
        name, lease_s = self._random.choice(self._cluster.task_managers), self._faults.heartbeat_timeout_s
        network, leaders = self._cluster.network, self._cluster.job_managers
        self._cluster.record(f"answers to {name} are slow")
        for leader in leaders:
            network.set_link(leader, name, Link(min_delay_s=0.21 * lease_s, max_delay_s=0.24 * lease_s))
        await asyncio.sleep(self._random.uniform(0.5, 2.0) * lease_s)
        self._cluster.record(f"cut from {name} for {1.5 * lease_s:.1f} s")
        network.cut(name, leaders, one_way=True)
        await asyncio.sleep(1.5 * lease_s)
        network.heal(name, leaders)
        for leader in leaders:
            network.set_link(leader, name, None)
        self._cluster.record(f"healed from {name}")

    async def silence_successor(self, leader: str, overview: Callable[[], Awaitable[ResourceOverview]]) -> None:
        """Let the first TaskManager that registers with a new leader hear nothing of it after its first heartbeat."""
        network, leases_s = self._cluster.network, 1.2 * self._faults.heartbeat_timeout_s
        names = list(self._cluster.task_managers)
        for name in names:
            network.set_link(leader, name, Link(min_delay_s=0.2, max_delay_s=0.3))
        registered: list[str] = []
        for _ in range(_TAKEOVER_POLLS):
            with suppress(Unavailable):
                registered = [tm.address for tm in (await overview()).task_managers if tm.address in names]
            if registered:
                break
            await asyncio.sleep(_TAKEOVER_POLL_S)
        for name in registered[:1]:
            self._cluster.record(f"{name} hears nothing of {leader} for {leases_s:.1f} s")
            network.cut(leader, name, one_way=True)
            await asyncio.sleep(leases_s)
            network.heal(leader, name)
            self._cluster.record(f"{name} hears {leader} again")
        for name in names:
            network.set_link(leader, name, None)

    async def _refuse_connections(self) -> None:
        length_s = self._random.uniform(1.0, 30.0)
        callers = self._cluster.job_managers if self._random.random() < 0.7 else [self._draw_job_manager()]
        address = self._random.choice(self._cluster.task_managers)
        self._cluster.record(f"{address} refuses connections of {', '.join(callers)} for {length_s:.1f} s")
        self._cluster.network.refuse(callers, address)
        await asyncio.sleep(length_s)
        self._cluster.record(f"{address} accepts connections of {', '.join(callers)}")
        self._cluster.network.accept(callers, address)

    async def _cut_off_from_the_store(self) -> None:
        processes = [*self._cluster.job_managers, *self._cluster.task_managers]
        name = self._cluster.leader() if self._random.random() < 0.6 else self._random.choice(processes)
        await self._cut([name], [ENSEMBLE], self._random.uniform(0.2, 4.0 * self._faults.session_timeout_s))

    async def _cut_off_with_a_server(self) -> None:
        """Cut a process off from the ensemble together with its server, which answers reads until it notices."""
        processes = [*self._cluster.job_managers, *self._cluster.task_managers]
        name = self._cluster.leader() if self._random.random() < 0.7 else self._random.choice(processes)
        session_s, ensemble = self._faults.session_timeout_s, self._cluster.ensemble
        length_s = self._random.uniform(0.2, 5.0 * session_s)
        unnoticed_s = min(length_s, self._random.uniform(0.5, 4.0) * session_s)
        self._cluster.record(f"{name} is cut off with its server for {length_s:.1f} s, unnoticed for {unnoticed_s:.1f}")
        ensemble.cut_off_server(name)
        await asyncio.sleep(unnoticed_s)
        if unnoticed_s < length_s:
            ensemble.stop_server(name)
            self._cluster.network.cut(name, ENSEMBLE)
            await asyncio.sleep(length_s - unnoticed_s)
            self._cluster.network.heal(name, ENSEMBLE)
        else:
            ensemble.rejoin_server(name)
        self._cluster.record(f"{name} reaches the ensemble again")

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
        timeout_s = self._faults.heartbeat_timeout_s
        length_s = self._random.uniform(timeout_s if self._faults.lapses_leases else 0.5, 1.5 * timeout_s)
        self.freeze(self._random.choice(self._cluster.task_managers), length_s)

    async def _lose_results(self) -> None:
        """Lose up to three blocking results, or all of a job: all files of each, some of them, or the end of some."""
        files = self._cluster.spark.files
        results = sorted({path.rpartition("/")[0] for path in files.content if path.startswith("work/")})
        chosen = self._random.sample(results, min(len(results), self._random.randint(1, 3)))
        if chosen and self._random.random() < 0.5:
            chosen = [path for path in results if path.split("/")[1] == chosen[0].split("/")[1]]
        self._cluster.lost_results.append((now_ms(), frozenset(chosen)))
        for lost in chosen:
            paths = files.below(lost)
            how = self._random.choice(["lost", "lost in part", "truncated"])
            some = paths if how == "lost" else self._random.sample(paths, self._random.randint(1, len(paths)))
            self._cluster.record(f"{lost} is {how}")
            for path in some:
                if how == "truncated":
                    files.content[path] = files.content[path][:-1]
                else:
                    del files.content[path]

    async def _damage_a_graph(self) -> None:
        self._cluster.damage_graph()

    async def _deploy_unrecorded(self) -> None:
        self._cluster.deploy_unrecorded()

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
