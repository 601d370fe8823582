"""The contract of WorkerDriver, held against local processes, against containers of YARN, and against the fake.

The containers are those of `FakeApplicationMaster`; tests/cluster/test_yarn.py has real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

import msgspec
import psutil
import pytest

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.workers.local_workers import WorkerFile, local_workers
from flintlock.gateways.workers import WorkerDriver
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, TaskManagerId
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.testing.fakes.fake_workers import FakeWorkers
from flintlock.testing.fakes.fake_yarn import FakeApplicationMaster
from flintlock.yarn.containers import HeartbeatIntervals, YarnContainers
from flintlock.yarn.messages import ContainerSize, Launch
from flintlock.yarn.workers import yarn_workers

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place(Protocol):
    """Where workers outlive terms."""

    def term(self) -> AbstractAsyncContextManager[WorkerDriver]:
        """Open the driver of the next term."""
        ...

    def running(self) -> set[TaskManagerId]:
        """Return the workers whose processes run."""
        ...

    def kill(self, worker: TaskManagerId) -> None:
        """End the process of a worker from outside."""
        ...


class FakePlace:
    """The fake."""

    def __init__(self) -> None:
        self._driver: FakeWorkers | None = None

    @asynccontextmanager
    async def term(self) -> AsyncGenerator[WorkerDriver]:
        self._driver = FakeWorkers() if self._driver is None else self._driver.next_term()
        yield self._driver

    def running(self) -> set[TaskManagerId]:
        assert self._driver is not None
        return set(self._driver.alive)

    def kill(self, worker: TaskManagerId) -> None:
        assert self._driver is not None
        self._driver.end(worker)


class LocalPlace:
    """Processes of this machine."""

    def __init__(self, state_dir: Path) -> None:
        configuration = Configuration({"taskmanager.registration.timeout": "60 s"})
        secret = ClusterSecret(b"s" * 32)
        self._settings = ProcessSettings(state_dir=state_dir, configuration=configuration, secret=secret)
        self._epochs = count(1)

    def term(self) -> AbstractAsyncContextManager[WorkerDriver]:
        return local_workers(self._settings, Epoch(next(self._epochs)))

    def running(self) -> set[TaskManagerId]:
        return {TaskManagerId(file.id) for file in self._files() if _runs(file)}

    def kill(self, worker: TaskManagerId) -> None:
        (file,) = (file for file in self._files() if file.id == worker)
        psutil.Process(file.pid).kill()

    def _files(self) -> list[WorkerFile]:
        paths = (self._settings.state_dir / "run" / "workers").glob("worker-*.json")
        return [msgspec.json.decode(path.read_bytes(), type=WorkerFile) for path in paths]


class YarnPlace:
    """Containers, of which each term has those of a new attempt of the ApplicationMaster."""

    def __init__(self) -> None:
        self._master = FakeApplicationMaster()

    @asynccontextmanager
    async def term(self) -> AsyncGenerator[WorkerDriver]:
        before = self._master
        self._master = master = FakeApplicationMaster(tuple(before.running.values()))
        size = ContainerSize(memory_mb=1024, vcores=1)
        intervals = HeartbeatIntervals(idle_s=0.01, waiting_s=0.01)
        containers = YarnContainers(master, size, lambda container: Launch(command=container.id), intervals)
        await containers.register("node", 1, "http://node:1")
        async with asyncio.TaskGroup() as tasks:
            heartbeats = tasks.create_task(containers.run(), name="heartbeats")
            async with yarn_workers(containers, slots=1) as driver:
                yield driver
            heartbeats.cancel()

    def running(self) -> set[TaskManagerId]:
        return set(map(TaskManagerId, self._master.running))

    def kill(self, worker: TaskManagerId) -> None:
        self._master.complete(worker, 137)


def _runs(file: WorkerFile) -> bool:
    try:
        return psutil.Process(file.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(params=["fake", "local", "yarn"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    places = {"fake": FakePlace, "local": lambda: LocalPlace(tmp_path), "yarn": YarnPlace}
    return places[request.param]()


async def started(driver: WorkerDriver) -> TaskManagerId:
    worker = await driver.start()
    assert worker is not None
    return worker


async def test_each_worker_has_an_id_of_its_own_and_runs_until_it_is_released(place: Place) -> None:
    async with place.term() as driver:
        assert await driver.taken_over() == ()
        assert driver.slots >= 1
        first, second = await started(driver), await started(driver)
        assert first != second
        assert place.running() == {first, second}
        await driver.release(first)
        assert place.running() == {second}
        await driver.release(first)  # it is gone: nothing happens
        await driver.release(TaskManagerId("another"))
        await driver.release(second)
        assert place.running() == set()


async def test_a_worker_that_ends_by_itself_is_reported_once_and_a_released_one_never(place: Place) -> None:
    async with place.term() as driver:
        killed, released, last = await started(driver), await started(driver), await started(driver)
        await driver.release(released)
        place.kill(killed)
        ended = await driver.ended()
        assert ended.id == killed
        assert ended.reason
        place.kill(last)
        assert (await driver.ended()).id == last
        await driver.release(killed)
        assert place.running() == set()


async def test_workers_outlive_their_term_and_the_next_one_can_release_them(place: Place) -> None:
    async with place.term() as driver:
        first, second = await started(driver), await started(driver)
    assert place.running() == {first, second}
    async with place.term() as driver:
        assert set(await driver.taken_over()) == {first, second}
        assert await started(driver) not in (first, second)
        place.kill(first)
        assert (await driver.ended()).id == first
        await driver.release(second)
        await driver.release_all()
    assert place.running() == set()
    async with place.term() as driver:
        assert await driver.taken_over() == ()


async def test_a_cluster_that_shuts_down_ends_all_workers_and_starts_no_more(place: Place) -> None:
    async with place.term() as driver:
        await started(driver)
    async with place.term() as driver:
        await started(driver)
        assert len(place.running()) == 2
        await driver.release_all()
        assert place.running() == set()
        with pytest.raises(Unavailable, match="shutting down"):
            await started(driver)


async def test_no_start_is_withdrawn_that_does_not_wait(place: Place) -> None:
    async with place.term() as driver:
        assert not driver.withdraw_start()
        worker = await started(driver)
        assert not driver.withdraw_start()
        assert place.running() == {worker}
        await driver.release(worker)
