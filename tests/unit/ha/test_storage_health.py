"""A leader that does not reach the storage directory gives way to a candidate that does, and to no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.election import LatchElection
from flintlock.ha.zookeeper.operations import Create
from flintlock.ha.zookeeper.storage.storage_health import (
    CHECK_LIMIT_S,
    CHECK_S,
    NOT_READY,
    READY,
    STEP_DOWN_S,
    Access,
    StorageHealth,
)
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch
from flintlock.testing.fakes.fake_zookeeper import FakeEnsemble, FakeLink
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import virtual_time

PATHS = tree.Tree("/flintlock", "test")
NOTICED_S = CHECK_S + CHECK_LIMIT_S + 1.0


class Directory:
    """A storage directory as one host sees it."""

    def __init__(self) -> None:
        self.hangs = False
        self.fails = False
        self.full = False
        self.writes_hang = False
        self.write_checks = 0  # that have begun
        self.takes_s = 0.0  # how long one takes

    async def check(self) -> None:
        while self.hangs:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        if self.fails:
            raise Unavailable("it is not mounted")

    async def check_writable(self) -> None:
        self.write_checks += 1
        await asyncio.sleep(self.takes_s)
        while self.writes_hang:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)
        if self.full:
            raise Unavailable("no space left on device")


class Candidates:
    """JobManagers with a directory each; records which of them leads."""

    def __init__(self) -> None:
        self.network = SimulatedNetwork(Random(1))
        self.ensemble = FakeEnsemble(self.network, 4.0)
        self.ensemble.ensure(PATHS.latches)
        no_leader = tree.EpochRecord(epoch=Epoch(0), session="")
        self.ensemble.transact((Create(PATHS.epoch, tree.EPOCH.encode(no_leader)),), 0)
        self.processes: dict[str, SimulatedProcess] = {}
        self.directories: dict[str, Directory] = {}
        self.leading: list[str] = []  # one after the other
        self.stepped_down: list[str] = []  # likewise

    def join(self, name: str, *, full: bool = False, takes_s: float = 0.0) -> None:
        process = self.processes[name] = self.network.process(name)
        directory = self.directories[name] = Directory()
        directory.full, directory.takes_s = full, takes_s

        async def run() -> None:
            link, health = FakeLink(self.ensemble, process), StorageHealth(directory.check, directory.check_writable)
            process.spawn(link.run(), "link")
            process.spawn(health.run(), "health")
            election = LatchElection(
                link=link,
                paths=PATHS,
                new_session=lambda: name,
                clock_s=asyncio.get_running_loop().time,
                storage_health=health,
            )
            async for term in election.terms():
                async with term:
                    self.leading.append(name)
                    await asyncio.get_running_loop().create_future()
                self.stepped_down.append(name)

        process.spawn(run(), "election")


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.1)


async def two() -> Candidates:
    candidates = Candidates()
    candidates.join("a")
    await until(lambda: candidates.leading == ["a"], 10)
    candidates.join("b")
    await asyncio.sleep(NOTICED_S)
    return candidates


@pytest.mark.parametrize("trouble", ["hangs", "fails", "full"])
@virtual_time
async def test_a_leader_that_does_not_reach_the_directory_gives_way_to_a_standby_that_does(trouble: str) -> None:
    candidates = await two()
    setattr(candidates.directories["a"], trouble, True)

    await until(lambda: candidates.leading == ["a", "b"], STEP_DOWN_S + NOTICED_S + 5)


@virtual_time
async def test_a_directory_that_hangs_for_everybody_changes_no_leader() -> None:
    candidates = await two()
    for directory in candidates.directories.values():
        directory.hangs = True

    await asyncio.sleep(10 * STEP_DOWN_S)

    assert candidates.leading == ["a"]
    assert candidates.stepped_down == []
    candidates.directories["b"].hangs = False  # it comes back for one of them first
    await until(lambda: candidates.leading == ["a", "b"], NOTICED_S + 5)


@virtual_time
async def test_a_directory_that_is_full_for_everybody_changes_no_leader_and_the_next_one_leads_all_the_same() -> None:
    candidates = await two()
    for directory in candidates.directories.values():
        directory.full = True

    await asyncio.sleep(10 * STEP_DOWN_S)
    assert candidates.leading == ["a"]

    candidates.processes["a"].crash()
    await until(lambda: candidates.leading == ["a", "b"], 20)


@virtual_time
async def test_a_candidate_that_only_reads_the_directory_does_not_lead_before_one_that_writes() -> None:
    candidates = await two()
    candidates.join("c")
    candidates.directories["b"].full = True
    await asyncio.sleep(NOTICED_S)

    candidates.processes["a"].crash()

    await until(lambda: len(candidates.leading) > 1, 20)
    assert candidates.leading == ["a", "c"]


@virtual_time
async def test_a_candidate_that_does_not_reach_the_directory_does_not_lead_before_one_that_does() -> None:
    candidates = await two()
    candidates.join("c")
    candidates.directories["b"].hangs = True
    await asyncio.sleep(NOTICED_S)

    candidates.processes["a"].crash()

    await until(lambda: len(candidates.leading) > 1, 20)
    assert candidates.leading == ["a", "c"]


@virtual_time
async def test_a_candidate_that_joins_when_the_directory_is_full_for_everybody_changes_no_leader() -> None:
    """It does not claim that it can write before it has tried: each start of one would end a term."""
    candidates = await two()
    for directory in candidates.directories.values():
        directory.full = True
    await asyncio.sleep(2 * STEP_DOWN_S)

    for number in range(5):
        candidates.join(f"c{number}", full=True)
        await asyncio.sleep(NOTICED_S)

    assert candidates.leading == ["a"]
    assert candidates.stepped_down == []


@pytest.mark.parametrize("takes_s", [each * 0.002 for each in range(20)])
@virtual_time
async def test_a_candidate_that_joins_and_writes_takes_over_from_a_leader_that_cannot_write(takes_s: float) -> None:
    """At whichever step of creating its latch it finds out that it writes."""
    candidates = await two()
    for directory in candidates.directories.values():
        directory.full = True
    await asyncio.sleep(2 * STEP_DOWN_S)

    candidates.join("c", takes_s=takes_s)

    await until(lambda: candidates.leading == ["a", "c"], 3)


@virtual_time
async def test_a_process_that_has_not_written_yet_is_not_ready() -> None:
    directory = Directory()
    health = StorageHealth(directory.check, directory.check_writable)
    assert (health.reached, health.latch_data, health.failing_s()) == (True, NOT_READY, 0.0)
    directory.full = True
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(health.run(), name="health")
        await asyncio.sleep(1)
        assert (health.access, health.failing_s()) == (Access.READS, 1.0)
        directory.full = False
        await asyncio.sleep(NOTICED_S)
        assert (health.latch_data, health.failing_s()) == (READY, 0.0)
        running.cancel()


@virtual_time
async def test_a_directory_whose_writes_hang_can_be_read_and_is_not_written_to_by_one_check_after_another() -> None:
    directory = Directory()
    health = StorageHealth(directory.check, directory.check_writable)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(health.run(), name="health")
        await asyncio.sleep(1)
        begun = directory.write_checks
        directory.writes_hang = True
        await asyncio.sleep(600)
        assert health.access is Access.READS
        assert directory.write_checks == begun + 1
        directory.writes_hang = False
        await asyncio.sleep(NOTICED_S)
        assert health.ready
        running.cancel()


@virtual_time
async def test_a_candidate_whose_writes_hang_leads_where_nobody_writes() -> None:
    candidates = await two()
    for directory in candidates.directories.values():
        directory.writes_hang = True
    await asyncio.sleep(10 * STEP_DOWN_S)
    assert candidates.stepped_down == []

    candidates.processes["a"].crash()

    await until(lambda: candidates.leading == ["a", "b"], 20)
