"""A JobManager as ApplicationMaster: registered while it serves, unregistered when its cluster has ended for good."""

from __future__ import annotations

import asyncio
from pathlib import Path

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.yarn_jobmanager import YarnPlatform
from flintlock.model.application import ApplicationStatus
from flintlock.model.ids import Epoch, FencingToken
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.testing.fake_yarn import FakeApplicationMaster, FakeStaging
from flintlock.yarn.messages import FinalStatus

VALUES = {
    "resourcemanager.max-taskmanagers": "5",
    "taskmanager.numberOfTaskSlots": "2",
    "yarn.heartbeat.interval": "10 ms",
    "yarn.heartbeat.container-request-interval": "10 ms",
}
TOKEN = FencingToken(epoch=Epoch(1), session="cluster/1")


class Application:
    """A platform and what it talks to."""

    def __init__(self, place: Path) -> None:
        self.master = FakeApplicationMaster()
        self.staging = FakeStaging()
        secret = ClusterSecret(b"s" * 32)
        settings = ProcessSettings(state_dir=place, configuration=Configuration(VALUES), secret=secret)
        (place / "cluster-secret").write_text("hidden")
        self.staging.put("cluster-secret", place / "cluster-secret")
        self.platform = YarnPlatform(settings, self.master, self.staging)


def test_a_task_manager_has_the_files_of_the_application_and_the_address_of_its_job_manager(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = Application(tmp_path)
        opener = application.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with application.platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            assert application.master.registered == ("10.0.0.1", 8081, "http://10.0.0.1:8081")
            worker = await driver.start()
            launch = application.master.launched[worker]
            assert (driver.slots, driver.resources.cpu) == (2, 2.0)
            for setting in (f"taskmanager.resource-id={worker}", "jobmanager.rpc.address=10.0.0.1",
                            "jobmanager.rpc.port=4711", "security.secret-file=$PWD/cluster-secret"):  # fmt: skip
                assert f"-D {setting} " in launch.command
            assert "hidden" not in launch.command
            assert [file.name for file in launch.files] == ["cluster-secret"]
            assert launch.environment["FLINTLOCK_CONF"] == "$PWD/flintlock.yaml"

    asyncio.run(scenario())


def test_a_cluster_that_has_ended_unregisters_with_its_status_and_removes_what_it_has_staged(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = Application(tmp_path)
        async with application.platform.serving("http://10.0.0.1:8081"):
            await application.platform.finish(ApplicationStatus.FAILED)
        assert application.master.unregistered == (FinalStatus.FAILED, "the cluster has shut down: FAILED")
        assert application.staging.removals == 1

    asyncio.run(scenario())


def test_a_job_manager_that_is_stopped_does_not_unregister(tmp_path: Path) -> None:
    """YARN starts the next attempt, which takes the containers over."""

    async def scenario() -> None:
        application = Application(tmp_path)
        opener = application.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with application.platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            await driver.start()
        assert application.master.unregistered is None
        assert len(application.master.running) == 1
        assert application.staging.removals == 0

    asyncio.run(scenario())


def test_a_term_that_begins_later_in_the_same_process_has_the_containers_of_the_first(tmp_path: Path) -> None:
    """The process registers once; leadership may be lost and won again."""

    async def scenario() -> None:
        application = Application(tmp_path)
        opener = application.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with application.platform.serving("http://10.0.0.1:8081"):
            async with opener(TOKEN) as driver:
                worker = await driver.start()
            async with opener(TOKEN) as driver:
                assert driver.taken_over == (worker,)

    asyncio.run(scenario())
