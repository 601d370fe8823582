"""What a client refuses before it starts anything on YARN, what it ships, and what it leaves behind when that fails."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.model.errors import FlintlockError, Refused, Unavailable
from flintlock.testing.fakes.fake_yarn import FakeStaging, FakeYarn
from flintlock.yarn.delegation_tokens import DelegationTokens
from flintlock.yarn.descriptor import YarnClusterDescriptor, shipped_configuration
from flintlock.yarn.layout import MOST_PROVIDED, master_size, worker_size
from flintlock.yarn.messages import ApplicationReport, ContainerSize, StagedFile, YarnApplicationState

ZOOKEEPER = {"high-availability.type": "zookeeper", "high-availability.zookeeper.quorum": "zk:2181"}
SECRET = b"ab" * 32


class Deployment:
    """A YARN, a staging directory and a clock that jumps with each pause."""

    def __init__(self, place: Path) -> None:
        self.yarn = FakeYarn()
        self.staging = FakeStaging()
        self.notes: list[str] = []
        self.tokens: DelegationTokens | None = None
        self.conf_dir = place / "conf"
        self.conf_dir.mkdir()
        (self.conf_dir / "yarn-site.xml").write_text("<configuration/>")
        self._now_s = 0.0

    def deploy(self, values: Mapping[str, str] | None = None, job: Path | None = None) -> ApplicationReport:
        """Deploy a session with this configuration."""
        descriptor = YarnClusterDescriptor(
            self.yarn,
            lambda _: self.staging,
            self.conf_dir,
            tokens=self.tokens,
            sleep=self._sleep,
            clock_s=lambda: self._now_s,
        )
        return descriptor.deploy(Configuration(values), SECRET, job=job, timeout_s=300, notify=self.notes.append)

    def _sleep(self, _: float) -> None:
        self._now_s += 30


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_a_session_is_staged_submitted_and_waited_for(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "extra.txt").write_text("extra")
    report = deployment.deploy(
        {
            "yarn.ship-files": str(tmp_path / "extra.txt"),
            "yarn.tags": "a, b",
            "yarn.application.priority": "3",
            "yarn.application.node-label": "gpu",
            "security.secrets.directory": "/etc/flintlock/secrets",
            "security.token": "of the client",
            "rest.port": "8081",
        }
    )

    assert report.state is YarnApplicationState.RUNNING
    (submission,) = deployment.yarn.submitted
    assert (submission.attempts, submission.priority, submission.tags) == (1, 3, ("a", "b"))
    assert submission.node_label == "gpu"
    assert submission.size == ContainerSize(memory_mb=768, vcores=1)
    assert deployment.staging.contents["extra.txt"] == b"extra"
    assert deployment.staging.contents["cluster-secret"] == SECRET
    assert {file.name for file in submission.launch.files} == set(deployment.staging.contents)
    settings = json.loads(deployment.staging.contents["flintlock.yaml"])
    assert settings["rest.port"] == "0"
    assert settings["yarn.application.id"] == "application_1_0001"
    assert settings["execution.work-dir"] == "hdfs://files/home/.flintlock/application_1_0001/work"
    assert "security.token" not in settings
    assert settings["security.secrets.directory"] == "/etc/flintlock/secrets", "for TaskManagers on all nodes"
    assert SECRET.decode() not in submission.launch.command
    assert deployment.staging.exists


def test_the_job_of_a_per_job_cluster_is_staged(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"job")
    deployment.deploy(job=tmp_path / "archive")
    assert deployment.staging.contents["job.tar"] == b"job"


def test_no_setting_is_on_a_command_line(deployment: Deployment) -> None:
    """Every user of a node can read them, and YARN's launch script, which is also copied into logs."""
    settings = {"spark.hadoop.fs.s3a.secret.key": "hidden", "containerized.taskmanager.env.SECRET_DB": "hidden"}
    deployment.deploy(settings)
    shipped = json.loads(deployment.staging.contents["flintlock.yaml"])
    assert {key: shipped[key] for key in settings} == settings
    assert "hidden" not in deployment.yarn.submitted[0].launch.command
    assert "hidden" not in " ".join(deployment.yarn.submitted[0].launch.environment.values())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"yarn.application-attempts": "2"}, "more than one attempt needs high-availability.type: zookeeper"),
        ({"yarn.application.queue": "nightly"}, r"YARN has no queue 'nightly' .*; it has: default"),
        ({"taskmanager.engine.memory": "16g"}, "a container for a TaskManager needs .* and the largest that YARN"),
        ({"jobmanager.memory.process.size": "9g"}, "a container for a JobManager needs 9216 MB and 1 vcores"),
        (
            {"taskmanager.numberOfTaskSlots": "5"},
            "needs .* and 5 vcores, and the largest that YARN allocates has 8192 MB",
        ),
        (
            {"spark.master": "yarn", "yarn.python": "environment.tar.gz/bin/python"},
            "executors have neither the Python that is shipped",
        ),
        ({"yarn.ship-archives": "/nowhere/at.zip"}, "there is no file '/nowhere/at.zip'"),
        ({"yarn.ship-files": "/"}, "'/' cannot have this name in containers"),
        ({"yarn.ship-files": "/nowhere/at.all"}, "there is no file or directory '/nowhere/at.all'"),
    ],
)
def test_what_yarn_could_never_run_is_refused_before_anything_is_started(
    deployment: Deployment, values: dict[str, str], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        deployment.deploy(values)
    assert deployment.yarn.submitted == []
    assert not deployment.staging.exists


def test_a_yarn_with_kerberos_is_refused_with_the_reason(deployment: Deployment) -> None:
    deployment.yarn.secure = True
    with pytest.raises(Refused, match=r"YARN requires Kerberos .* which Flintlock does not support yet"):
        deployment.deploy()
    assert deployment.yarn.created == 0


class SomeTokens:
    """DelegationTokens of a YARN that requires them."""

    def obtain(self) -> bytes:
        return b"tokens"


def test_delegation_tokens_are_submitted_with_the_application(deployment: Deployment) -> None:
    """Where an implementation can obtain them, nothing else refuses Kerberos."""
    deployment.yarn.secure = True
    deployment.tokens = SomeTokens()
    deployment.deploy()
    assert deployment.yarn.submitted[0].launch.tokens == b"tokens"


def test_several_hosts_need_tls(deployment: Deployment) -> None:
    """Without it all processes listen on loopback addresses, and none would reach another one."""
    deployment.yarn.hosts = frozenset({"a", "b"})
    with pytest.raises(Refused, match="YARN has 2 hosts, and TLS is not configured"):
        deployment.deploy()
    deployment.deploy({"security.tls.certificate-file": "/etc/member.pem"})
    settings = json.loads(deployment.staging.contents["flintlock.yaml"])
    assert settings["rest.address"] == settings["taskmanager.host"] == "0.0.0.0"


def test_a_yarn_without_nodes_is_unavailable(deployment: Deployment) -> None:
    deployment.yarn.hosts = frozenset()
    with pytest.raises(Unavailable, match="no node of YARN runs"):
        deployment.deploy()


def test_files_of_the_user_do_not_replace_those_of_the_cluster(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "flintlock.yaml").write_text("")
    with pytest.raises(Refused, match=r"the name 'flintlock.yaml' is taken"):
        deployment.deploy({"yarn.ship-files": str(tmp_path / "flintlock.yaml")})


@pytest.mark.parametrize("name", ["state", "launch_container.sh", "container_tokens", "tmp"])
def test_files_of_the_user_do_not_have_the_names_of_files_that_each_container_has(
    deployment: Deployment, tmp_path: Path, name: str
) -> None:
    """Containers of a node share what is localized: two TaskManagers would have one state directory."""
    (tmp_path / name).mkdir()
    with pytest.raises(Refused, match=rf"the name '{name}' is taken"):
        deployment.deploy({"yarn.ship-files": str(tmp_path / name)})
    for provided in (name, f"{name}/inner/a.py"):
        deployment.staging.elsewhere["hdfs://files/libs"] = (provided,)
        with pytest.raises(Refused, match=rf"the name '{provided}' of hdfs://files/libs/{provided} is taken"):
            deployment.deploy({"yarn.provided.lib.dirs": "hdfs://files/libs"})
    assert deployment.yarn.submitted == []


def test_an_application_that_fails_leaves_nothing_behind_and_says_why(deployment: Deployment) -> None:
    deployment.yarn.states = [YarnApplicationState.ACCEPTED, YarnApplicationState.FAILED]
    deployment.yarn.diagnostics = "AM Container exited with exitCode: 2"
    with pytest.raises(Unavailable, match=r"application_1_0001 has ended on YARN .* FAILED: AM Container exited with"):
        deployment.deploy()
    assert not deployment.staging.exists


def test_an_application_that_gets_no_container_in_time_is_killed(deployment: Deployment) -> None:
    deployment.yarn.states = [YarnApplicationState.ACCEPTED]
    deployment.yarn.diagnostics = "waiting for AM container to be allocated"
    with pytest.raises(Unavailable, match="is still ACCEPTED after 300 s, and was killed: waiting for AM container"):
        deployment.deploy()
    assert deployment.yarn.killed == ["application_1_0001"]
    assert not deployment.staging.exists
    assert any("has waited for its turn in queue 'default' for 30 s" in note for note in deployment.notes)


def test_a_cluster_for_one_job_waits_for_its_turn_in_a_full_queue_however_long_that_takes(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Its job would wait on a session, too."""
    (tmp_path / "archive").write_bytes(b"job")
    deployment.yarn.states = [*[YarnApplicationState.ACCEPTED] * 100, YarnApplicationState.RUNNING]
    deployment.yarn.diagnostics = "Queue's AM resource limit exceeded."
    report = deployment.deploy(job=tmp_path / "archive")

    assert report.state is YarnApplicationState.RUNNING
    assert deployment.yarn.killed == []
    _, first, second, *_, last = deployment.notes
    waits = "application_1_0001 has waited for its turn in queue 'default' for"
    assert first == f"{waits} 30 s: Queue's AM resource limit exceeded."
    assert second == f"{waits} 90 s: Queue's AM resource limit exceeded."
    assert last.startswith(waits)


def test_a_cluster_for_one_job_that_has_had_its_turn_and_does_not_start_is_killed(
    deployment: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "archive").write_bytes(b"job")
    waiting = 40  # polls, of 30 s each

    class Turning(FakeYarn):
        polls = 0

        def report(self, application_id: str) -> ApplicationReport:
            self.polls += 1
            self.containers = 1 if self.polls > waiting else 0
            return super().report(application_id)

    deployment.yarn = yarn = Turning()
    yarn.states = [YarnApplicationState.ACCEPTED]
    yarn.diagnostics = "AM container is launched, waiting for AM container to Register with RM"
    with pytest.raises(Unavailable, match="is still ACCEPTED after 300 s, and was killed: AM container is launched"):
        deployment.deploy(job=tmp_path / "archive")

    assert yarn.polls == waiting + 10, "the time before its turn does not count"
    assert yarn.killed == ["application_1_0001"]
    assert not deployment.staging.exists
    assert "application_1_0001 has its turn: YARN starts its JobManager …" in deployment.notes


@pytest.mark.parametrize("error", [Unavailable("no connection"), Refused("queue is full")])
def test_a_submission_that_fails_leaves_neither_files_nor_an_application(
    deployment: Deployment, error: FlintlockError
) -> None:
    """YARN may have stored it all the same: it is killed by its id."""
    deployment.yarn.fails_to_submit = error
    with pytest.raises(type(error)):
        deployment.deploy()
    assert deployment.yarn.killed == ["application_1_0001"]
    assert not deployment.staging.exists


def test_zookeeper_has_two_attempts_a_namespace_of_its_own_and_shared_results(deployment: Deployment) -> None:
    deployment.deploy({**ZOOKEEPER, "high-availability.storageDir": "/shared"})
    settings = json.loads(deployment.staging.contents["flintlock.yaml"])
    assert deployment.yarn.submitted[0].attempts == 2
    assert settings["high-availability.cluster-id"] == "application_1_0001"
    assert "execution.work-dir" not in settings
    assert "state.checkpoints.dir" not in settings


def test_a_cluster_for_one_job_never_joins_the_cluster_that_its_client_is_configured_for(
    deployment: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "job.zip").write_bytes(b"job")
    team = {**ZOOKEEPER, "high-availability.storageDir": "/shared", "high-availability.cluster-id": "team-a"}
    deployment.deploy(team, job=tmp_path / "job.zip")
    settings = json.loads(deployment.staging.contents["flintlock.yaml"])
    assert settings["high-availability.cluster-id"] == "application_1_0001"


def test_a_local_staging_directory_gives_a_plain_path_for_results() -> None:
    settings = shipped_configuration(
        Configuration(), "application_1_0001", "file:/shared/.flintlock/application_1_0001"
    )
    assert settings["execution.work-dir"] == "/shared/.flintlock/application_1_0001/work"


def test_checkpoints_are_where_all_containers_see_them_and_savepoints_outlive_the_application() -> None:
    """A path of the state directory would be in the container of one process."""
    own = "file:/shared/.flintlock/application_1_0001"
    settings = shipped_configuration(Configuration(), "application_1_0001", own)
    assert settings["state.checkpoints.dir"] == "/shared/.flintlock/application_1_0001/checkpoints"
    assert settings["state.savepoints.dir"] == "/shared/.flintlock/savepoints"
    chosen = Configuration({"state.checkpoints.dir": "/elsewhere", "execution.work-dir": "/work"})
    settings = shipped_configuration(chosen, "application_1_0001", "hdfs://files/home/.flintlock/application_1_0001")
    assert (settings["state.checkpoints.dir"], settings["execution.work-dir"]) == ("/elsewhere", "/work")
    assert "state.savepoints.dir" not in settings


def test_a_container_has_room_for_the_engine_and_all_runners() -> None:
    two = Configuration({"taskmanager.numberOfTaskSlots": "2", "taskmanager.engine.memory": "1g"})
    assert worker_size(two) == ContainerSize(memory_mb=1024 + 640 + 2 * 192, vcores=2)
    given = Configuration({"taskmanager.memory.process.size": "3g", "yarn.containers.vcores": "4"})
    assert worker_size(given) == ContainerSize(memory_mb=3072, vcores=4)
    assert master_size(Configuration()) == ContainerSize(memory_mb=768, vcores=1)


def test_archives_are_unpacked_and_provided_files_are_not_copied(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "env.tar.gz").write_bytes(b"packed")
    deployment.staging.elsewhere["hdfs://files/libs"] = ("driver.jar",)
    deployment.deploy(
        {
            "yarn.ship-archives": str(tmp_path / "env.tar.gz"),
            "yarn.python": "env.tar.gz/bin/python",
            "yarn.provided.lib.dirs": "hdfs://files/libs",
            "yarn.rolled-logs.include-pattern": ".*log",
        }
    )
    (submission,) = deployment.yarn.submitted
    files = {file.name: file for file in submission.launch.files}
    assert [name for name, file in files.items() if file.is_archive] == ["env.tar.gz"]
    assert [(file.name, file.url) for file in files.values() if file.is_provided] == [
        ("driver.jar", "hdfs://files/libs/driver.jar")
    ]
    assert "driver.jar" not in deployment.staging.contents
    assert "exec $PWD/env.tar.gz/bin/python -m flintlock" in submission.launch.command
    assert submission.rolled_logs == ".*log"


def test_a_directory_is_shipped_as_an_archive_that_containers_unpack_under_its_name(
    deployment: Deployment, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "module.py").write_text("x = 1")
    (package / ".hidden").write_text("hidden")
    (package / "linked.py").symlink_to(package / "inner" / "module.py")
    deployment.deploy({"yarn.ship-files": f"{package}/"})
    (found,) = [file for file in deployment.yarn.submitted[0].launch.files if file.name == "package"]
    assert found.is_archive
    assert found.url.endswith("/package.directory.tar")
    with tarfile.open(fileobj=io.BytesIO(deployment.staging.contents["package.directory.tar"])) as tar:
        files = sorted(member.name for member in tar if member.isfile())
    assert files == [".hidden", "inner/module.py", "linked.py"]


def test_a_directory_that_cannot_be_read_is_refused_and_nothing_is_left(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(Refused, match=r"yarn.ship-files: .*/package cannot be read: .*dangling"):
        deployment.deploy({"yarn.ship-files": str(tmp_path / "package")})
    assert not deployment.staging.exists
    assert deployment.yarn.submitted == []


def test_provided_directories_come_with_the_directories_in_them(deployment: Deployment) -> None:
    deployment.staging.elsewhere["hdfs://files/libs"] = ("package/a.py", "package/inner/b.py", ".hidden")
    deployment.staging.elsewhere["hdfs://files/more"] = ("package/c.py",)
    deployment.deploy({"yarn.provided.lib.dirs": "hdfs://files/libs, hdfs://files/more"})
    files = {file.name: file.url for file in deployment.yarn.submitted[0].launch.files if file.is_provided}
    assert files == {
        "package/a.py": "hdfs://files/libs/package/a.py",
        "package/inner/b.py": "hdfs://files/libs/package/inner/b.py",
        ".hidden": "hdfs://files/libs/.hidden",
        "package/c.py": "hdfs://files/more/package/c.py",
    }


@pytest.mark.parametrize("others", [("package",), ("package/a.py/b",), ("package/a.py",)])
def test_a_provided_file_where_a_directory_or_file_is_already_is_refused(
    deployment: Deployment, others: tuple[str, ...]
) -> None:
    deployment.staging.elsewhere["hdfs://files/libs"] = ("package/a.py",)
    deployment.staging.elsewhere["hdfs://files/more"] = others
    with pytest.raises(Refused, match=rf"the name '{others[0]}' of hdfs://files/more/{others[0]} is taken"):
        deployment.deploy({"yarn.provided.lib.dirs": "hdfs://files/libs, hdfs://files/more"})


def test_provided_directories_with_more_files_than_a_container_should_have_are_refused(deployment: Deployment) -> None:
    """They are listed file by file, by each attempt of the ApplicationMaster before its heartbeats begin."""
    listed: list[int] = []

    class Counting(FakeStaging):
        def provided(self, url: str, at_most: int) -> tuple[StagedFile, ...]:
            found = super().provided(url, at_most)
            listed.append(len(found))
            return found

    deployment.staging = Counting()
    deployment.staging.elsewhere["hdfs://files/few"] = ("a.py", "b.py")
    deployment.staging.elsewhere["hdfs://files/many"] = tuple(f"inner/{n}.py" for n in range(MOST_PROVIDED - 2))
    directories = {"yarn.provided.lib.dirs": "hdfs://files/few, hdfs://files/many"}
    deployment.deploy(directories)
    deployment.staging.elsewhere["hdfs://files/many"] += tuple(f"more/{n}.py" for n in range(5000))
    listed.clear()
    with pytest.raises(Refused, match=r"more than 1000 files in hdfs://files/many .* An archive is one file"):
        deployment.deploy(directories)
    assert sum(listed) == MOST_PROVIDED + 1
    assert len(deployment.yarn.submitted) == 1


def test_a_provided_directory_does_not_mix_with_one_that_is_shipped(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    deployment.staging.elsewhere["hdfs://files/libs"] = ("package/a.py",)
    with pytest.raises(Refused, match=r"the name 'package/a.py' of .* is taken"):
        deployment.deploy({"yarn.ship-files": str(tmp_path / "package"), "yarn.provided.lib.dirs": "hdfs://files/libs"})


def test_what_containers_cannot_have_is_refused_and_nothing_is_left(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "env.rar").touch()
    with pytest.raises(Refused, match=r"yarn.ship-archives: env.rar is not an archive that YARN unpacks: .zip"):
        deployment.deploy({"yarn.ship-archives": str(tmp_path / "env.rar")})
    with pytest.raises(Refused, match=r"yarn.provided.lib.dirs: there is no directory hdfs://files/libs"):
        deployment.deploy({"yarn.provided.lib.dirs": "hdfs://files/libs"})
    deployment.staging.elsewhere["hdfs://files/libs"] = ("flintlock.yaml",)
    with pytest.raises(Refused, match=r"the name 'flintlock.yaml' of hdfs://files/libs/flintlock.yaml is taken"):
        deployment.deploy({"yarn.provided.lib.dirs": "hdfs://files/libs"})
    assert not deployment.staging.exists
    assert deployment.yarn.submitted == []
