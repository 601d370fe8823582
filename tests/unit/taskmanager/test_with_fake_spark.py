"""A TaskManager on simulated Spark with random faults: invariants hold for every seed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.unit.taskmanager.harness import until
from tests.unit.taskmanager.orders import attempt_id, order

from flintlock.model.commands import CancelTask
from flintlock.model.errors import NotFound, Refused, Unavailable
from flintlock.model.ids import AttemptId, BlobKey, InstanceId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import TaskManagerRegistration
from flintlock.model.tasks import DeployTask, TaskCanceled, TaskFailed, TaskFinished
from flintlock.taskmanager.endpoint import TaskManager
from flintlock.taskmanager.services import TaskManagerServices, loop_s
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.testing.fakes.fake_jobmaster import FakeJobMaster
from flintlock.testing.fakes.fake_resourcemanager import FakeResourceManager
from flintlock.testing.fakes.fake_spark import FakeSpark
from flintlock.testing.virtual_time import run_virtual

SLOTS = 3
ATTEMPTS = 25


class Scenario:
    """Deploys attempts, cancels some, lets engines crash, and records which deployments were accepted."""

    def __init__(self, seed: int, logs: Path) -> None:
        self.random = Random(seed)
        self.spark = FakeSpark(self.random, work_s=4.0, failures=0.2)
        self.launcher = self.spark.launcher()
        self.masters = FakeJobMaster()
        self.resource_manager = FakeResourceManager()
        self.deployed: dict[AttemptId, DeployTask] = {}
        self.cancelled: set[AttemptId] = set()
        self.instances = 0
        self.task_manager = TaskManager(
            TaskManagerServices(
                offer=TaskManagerRegistration(
                    id=TaskManagerId("tm"),
                    instance=InstanceId(""),
                    address="tm:1",
                    slots=SLOTS,
                    versions=Versions(flintlock="0", python="3", pyspark="4"),
                ),
                launcher=self.launcher,
                resource_manager=lambda: self.resource_manager,
                job_masters=lambda: self.masters,
                fetch_blob=self.no_blob,
                log_directory=logs,
                new_instance=self.new_instance,
            ),
            TokenGuard(loop_s),
        )

    async def no_blob(self, key: BlobKey) -> Path:
        raise NotFound(f"no blob {key}")

    def new_instance(self) -> InstanceId:
        self.instances += 1
        return InstanceId(f"instance-{self.instances}")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(self.task_manager.run(), name="taskmanager")
            await asyncio.gather(self.order(), self.cancel(), self.crash(), self.stutter())
            self.masters.fail_with = None
            await until(
                lambda: set(self.deployed) <= {report.attempt for report in self.masters.reports if ended(report.news)}
            )
            await until(lambda: self.resource_manager.heartbeats[-1].attempts == ())
            run.cancel()

    async def order(self) -> None:
        number = 0
        while number < ATTEMPTS:
            await asyncio.sleep(self.random.uniform(0, 1.5))
            slots = self.random.sample(range(SLOTS), self.random.randint(1, 2))
            deployment = order(attempt_id(number), *slots, cancel_timeout_s=2, instance=f"instance-{self.instances}")
            try:
                await self.task_manager.deploy(deployment)
            except (Refused, Unavailable):
                continue
            self.deployed[deployment.attempt] = deployment
            number += 1
            if self.random.random() < 0.3:
                await asyncio.sleep(self.random.uniform(0, 3))
                try:
                    await self.task_manager.deploy(deployment)  # sent again
                except (Refused, Unavailable):
                    continue

    async def cancel(self) -> None:
        for _ in range(8):
            await asyncio.sleep(self.random.uniform(0, 4))
            if self.deployed:
                attempt = self.random.choice(sorted(self.deployed))
                try:
                    await self.task_manager.command(CancelTask(attempt=attempt))
                except Unavailable:
                    continue
                self.cancelled.add(attempt)

    async def crash(self) -> None:
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(self.random.uniform(0, 15))
            if self.launcher.engines:
                self.launcher.engines[-1].crash("exit code 137")

    async def stutter(self) -> None:
        for _ in range(4):
            await asyncio.sleep(self.random.uniform(0, 6))
            self.masters.fail_with = Unavailable("no answer")
            await asyncio.sleep(self.random.uniform(0, 3))
            self.masters.fail_with = None


def ended(news: object) -> bool:
    return isinstance(news, TaskFinished | TaskFailed | TaskCanceled)


@pytest.mark.parametrize("seed", range(30))
def test_every_attempt_ends_once_and_success_only_by_its_runner(seed: int, tmp_path: Path) -> None:
    """The end of each attempt is reported once; FINISHED only if its runner did the work; nothing is left."""
    scenario = Scenario(seed, tmp_path)

    run_virtual(scenario.run())

    ran = {entry.attempt for entry in scenario.spark.ledger}
    assert len(ran) == len(scenario.spark.ledger), "an attempt ran twice"
    for attempt in scenario.deployed:
        ends = [report.news for report in scenario.masters.reports_of(attempt) if ended(report.news)]
        echoes = sum(isinstance(news, TaskCanceled) for news in ends[1:])
        assert len(ends) - echoes == 1, ends
        assert echoes == 0 or attempt in scenario.cancelled
        assert attempt in ran or not isinstance(ends[0], TaskFinished)
        assert not isinstance(ends[0], TaskCanceled) or attempt in scenario.cancelled
