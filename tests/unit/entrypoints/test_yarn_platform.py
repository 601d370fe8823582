"""A JobManager as ApplicationMaster: registered while it serves, unregistered when its cluster has ended for good."""

from __future__ import annotations

import asyncio
import tarfile
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec import Raw

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.yarn_platform import YarnPlatform, unpack_job
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.job_directory import JobDescription, JobDirectory, JobEnd
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.testing.fakes.fake_yarn import FakeApplicationMaster, FakeStaging
from flintlock.yarn.layout import attempt_of
from flintlock.yarn.messages import FinalStatus, Registered

VALUES = {
    "resourcemanager.max-taskmanagers": "5",
    "taskmanager.numberOfTaskSlots": "2",
    "yarn.heartbeat.interval": "10 ms",
    "yarn.heartbeat.container-request-interval": "10 ms",
}
TOKEN = FencingToken(epoch=Epoch(1), session="cluster/1")


class Application:
    """A platform and what it talks to."""

    def __init__(self, place: Path, values: Mapping[str, str] | None = None) -> None:
        self.master = FakeApplicationMaster()
        self.staging = FakeStaging()
        secret = ClusterSecret(b"s" * 32)
        self.settings = ProcessSettings(
            state_dir=place, configuration=Configuration({**VALUES, **(values or {})}), secret=secret
        )
        (place / "cluster-secret").write_text("hidden")
        self.staging.put("cluster-secret", place / "cluster-secret")
        self.platform = YarnPlatform(self.settings, self.master, lambda: self.staging)

    def attempt(self, number: int) -> YarnPlatform:
        """Return the platform of another attempt of it."""
        attempt = ApplicationAttempt(application="application_1_0001", number=number)
        return YarnPlatform(self.settings, FakeApplicationMaster(), lambda: self.staging, attempt)


def test_a_task_manager_has_the_files_of_the_application_and_the_address_of_its_job_manager(tmp_path: Path) -> None:
    async def scenario() -> None:
        application = Application(tmp_path)
        opener = application.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with application.platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            worker = await driver.start()
            assert application.master.registered == ("10.0.0.1", 8081, "http://10.0.0.1:8081")
            assert worker is not None
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
                assert await driver.taken_over() == (worker,)

    asyncio.run(scenario())


def test_a_job_manager_whose_bridge_hangs_ends_it_and_itself_and_leaves_its_workers(tmp_path: Path) -> None:
    """Also while a call of YARN hangs with it. Nothing is unregistered: YARN starts the next attempt."""

    async def scenario(application: Application) -> None:
        opener = application.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with application.platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            await driver.start()
            application.master.resource_manager_answers.clear()
            application.master.bridge_answers.clear()
            await asyncio.get_running_loop().create_future()

    application = Application(tmp_path, {"heartbeat.timeout": "200 ms"})
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(asyncio.wait_for(scenario(application), 30))
    assert raised.group_contains(Unavailable, match="the bridge to YARN has not answered for 0.2 s, and was ended")
    assert application.master.bridge_ended.is_set()
    assert len(application.master.running) == 1
    assert application.master.unregistered is None


def archive_of_a_job(place: Path, *, application: bool = False) -> Path:
    """Return the archive that a client of a per-job cluster stages."""
    directory = JobDirectory(place / "client")
    description = JobDescription(job_id=JobId("ab" * 16), name="nightly", files=("a.py",), application=application)
    directory.create(description, b"{}", {"a.py": b"pass"}, ClusterSpec())
    with tarfile.open(place / "job.tar", "w") as tar:
        tar.add(directory.path, directory.path.name)
    return place / "job.tar"


def test_the_job_of_a_per_job_cluster_comes_with_the_files_of_its_application(tmp_path: Path) -> None:
    archive = archive_of_a_job(tmp_path)
    for _ in range(2):  # an attempt that is started again in the same container
        unpack_job(archive, tmp_path / "state")
    directory = JobDirectory(tmp_path / "state")
    description = directory.describe()
    assert description is not None
    assert description.name == "nightly"
    assert directory.files(description)["a.py"].read_bytes() == b"pass"
    assert directory.read_end() is None


def test_a_session_has_no_job(tmp_path: Path) -> None:
    unpack_job(tmp_path / "job.tar", tmp_path)
    assert JobDirectory(tmp_path).describe() is None


def test_the_next_attempt_finds_the_end_of_the_job_and_does_not_run_it_again(tmp_path: Path) -> None:
    """The first one dies after the HA data was removed, and before it has unregistered."""
    application = Application(tmp_path)
    first, second = JobDirectory(tmp_path / "1"), JobDirectory(tmp_path / "2")
    for directory in (first, second):
        directory.path.mkdir(parents=True)

    async def scenario() -> None:
        first.write_end(JobEnd(application_status=ApplicationStatus.FAILED))
        await application.attempt(1).keep_end(first.end_file)

        next_one = application.attempt(2)
        async with asyncio.TaskGroup() as tasks:
            finding = tasks.create_task(next_one.find_end(second.end_file), name="finding")
            await asyncio.sleep(0)
            assert not finding.done(), "the bridge is opened by the registration"
            async with next_one.serving("http://10.0.0.1:8081"):
                await finding

    asyncio.run(scenario())
    end = second.read_end()
    assert end is not None
    assert end.application_status is ApplicationStatus.FAILED


def test_an_end_that_no_attempt_has_kept_is_not_found(tmp_path: Path) -> None:
    """The first attempt has no earlier one: it does not wait for its registration."""

    async def scenario() -> None:
        application = Application(tmp_path)
        await application.attempt(1).find_end(tmp_path / "end.json")
        second = application.attempt(2)
        async with second.serving("http://10.0.0.1:8081"):
            await second.find_end(tmp_path / "end.json")

    asyncio.run(scenario())
    assert not (tmp_path / "end.json").exists()


def test_yarn_shows_why_the_job_has_failed(tmp_path: Path) -> None:
    application = Application(tmp_path)
    unpack_job(archive_of_a_job(tmp_path), tmp_path)
    job = Raw(
        b'{"failure": {"kind": "user code", "message": "no x", "exception": "KeyError",'
        b' "frames": [{"file": "nightly.py", "line": 7, "function": "main", "source": "row[x]"}]}}'
    )
    JobDirectory(tmp_path).write_end(JobEnd(application_status=ApplicationStatus.FAILED, job=job))

    async def scenario() -> None:
        async with application.platform.serving("http://10.0.0.1:8081"):
            await application.platform.finish(ApplicationStatus.FAILED)

    asyncio.run(scenario())
    assert application.master.unregistered is not None
    text = application.master.unregistered[1]
    assert text.startswith(f"job 'nightly' ({'ab' * 16}): FAILED: ")
    assert "KeyError: no x" in text
    assert 'File "nightly.py", line 7, in main' in text


def test_yarn_shows_which_jobs_of_a_program_have_failed_that_it_has_left(tmp_path: Path) -> None:
    application = Application(tmp_path)
    unpack_job(archive_of_a_job(tmp_path, application=True), tmp_path)
    jobs = Raw(
        b'[{"jobid": "cd", "name": "first", "status": "FINISHED"}, {"jobid": "ef", "name": "left", "status": "FAILED"}]'
    )
    end = JobEnd(application_status=ApplicationStatus.FAILED, job=Raw(b'{"failure": null}'), jobs=jobs)
    JobDirectory(tmp_path).write_end(end)

    async def scenario() -> None:
        async with application.platform.serving("http://10.0.0.1:8081"):
            await application.platform.finish(ApplicationStatus.FAILED)

    asyncio.run(scenario())
    assert application.master.unregistered is not None
    text = application.master.unregistered[1]
    assert text == f"program 'nightly' ({'ab' * 16}): FAILED: it has left jobs that failed: 'left' (ef)"


def test_only_task_managers_of_an_application_have_the_address_of_its_rest_api(tmp_path: Path) -> None:
    async def environment(place: Path, *, application: bool) -> dict[str, str]:
        place.mkdir()
        unpack_job(archive_of_a_job(place, application=application), place)
        started = Application(place)
        opener = started.platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with started.platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            await driver.start()
            (launch,) = started.master.launched.values()
            return launch.environment

    program = asyncio.run(environment(tmp_path / "application", application=True))
    assert program["FLINTLOCK_APPLICATION_REST"] == "http://10.0.0.1:8081"
    job = asyncio.run(environment(tmp_path / "job", application=False))
    assert "FLINTLOCK_APPLICATION_REST" not in job


def test_a_job_manager_serves_and_its_term_begins_before_the_bridge_to_yarn_is_there(tmp_path: Path) -> None:
    """What fails there ends the process."""

    class LateMaster(FakeApplicationMaster):
        """Its bridge starts when the test says so, and does not last."""

        def __init__(self) -> None:
            super().__init__()
            self.started = threading.Event()

        def register(self, host: str, port: int, tracking_url: str) -> Registered:
            assert self.started.wait(30)
            super().register(host, port, tracking_url)
            raise Unavailable("the JVM of the bridge to YARN does not start")

    async def scenario() -> None:
        application = Application(tmp_path)
        master = LateMaster()
        platform = YarnPlatform(application.settings, master, lambda: application.staging)
        opener = platform.workers("10.0.0.1:4711")
        assert opener is not None
        async with platform.serving("http://10.0.0.1:8081"), opener(TOKEN) as driver:
            assert master.registered is None
            assert driver.slots == 2
            master.started.set()
            await driver.taken_over()

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(scenario())
    assert "does not start" in str(raised.value.exceptions[0])


@pytest.mark.parametrize(
    ("name", "number"),
    [("container_1700000000000_0007_01_000001", 1), ("container_e17_1700000000000_0007_03_000001", 3)],
)
def test_the_name_of_its_container_says_which_attempt_a_job_manager_is(name: str, number: int) -> None:
    expected = ApplicationAttempt(application="application_1700000000000_0007", number=number)
    assert attempt_of({"CONTAINER_ID": name}) == expected
    assert attempt_of({}) is None
