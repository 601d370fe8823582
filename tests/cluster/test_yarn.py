"""Clusters on YARN: a real ResourceManager and NodeManager, real Spark in the containers.

One session serves all tests, in their order; its jobs are stored in ZooKeeper, so that it survives its
ApplicationMaster.
"""

from __future__ import annotations

import json
import signal
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cluster.commands import flintlock
from tests.cluster.hadoop_artifacts import NotInstallable
from tests.cluster.processes import until
from tests.cluster.yarn_servers import RunningYarn, running_yarn
from tests.zookeeper.servers import Ensemble, zookeeper

import flintlock as fl

__all__ = ["zookeeper"]

JOB = """\
name: small
steps:
  numbers: {sql: "SELECT id, id % 3 AS k FROM range(3000)", exchange: blocking}
  sums: {sql: "SELECT k, count(*) AS n FROM numbers GROUP BY k", inputs: [numbers]}
  rows: {result: {}, inputs: [sums]}
"""
LIMIT_S = 300.0  # of each wait: containers start slowly on a busy machine
LONG = "SELECT count(*) AS n FROM range(0, 1000000000000000, 1, 1) WHERE sqrt(id) < 0"


class Session:
    """A session on YARN, and the place from which it is used."""

    def __init__(self, yarn: RunningYarn, place: Path, application_id: str) -> None:
        self.yarn = yarn
        self.place = place
        self.id = application_id

    @property
    def address(self) -> str:
        """As `-m` takes it."""
        return f"yarn://{self.id}"

    def run(self, *arguments: str | Path) -> Any:
        """Run a command that prints JSON; return that."""
        first, *others = arguments
        ordered = (first, "--json", *others) if first == "run" else (*arguments, "--json")
        done = flintlock(*ordered, cwd=self.place, timeout_s=LIMIT_S)
        assert done.returncode == 0, f"{done.stderr}\n{self.yarn.logs()}"
        return json.loads(done.stdout)

    def task_managers(self) -> list[psutil.Process]:
        """The TaskManagers in containers."""
        return self.yarn.containers("taskmanager", self.id)


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningYarn]:
    try:
        with running_yarn(tmp_path_factory.mktemp("yarn") / "home") as started:
            yield started
    except NotInstallable as reason:
        pytest.skip(str(reason))


def test_a_cluster_for_one_job_ends_with_it_and_with_its_status(
    yarn: RunningYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are stored in the container of its JobManager, which TaskManagers find by its address."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf_dir))
    (tmp_path / "job.yaml").write_text(JOB)
    settings = ("-D", f"yarn.staging-directory={yarn.staging}", "-D", "yarn.application.queue=default")
    done = flintlock("run", "-t", "yarn-per-job", *settings, "job.yaml", "--json", cwd=tmp_path, timeout_s=LIMIT_S)
    assert done.returncode == 0, f"{done.stderr}\n{yarn.logs()}"
    end = json.loads(done.stdout)
    (application,) = yarn.applications()
    until("the end of the application", lambda: yarn.application(application["id"])["state"] == "FINISHED", LIMIT_S)
    application = yarn.application(application["id"])

    assert sorted(end["results"]["rows"]["rows"]) == [[0, 1000], [1, 1000], [2, 1000]]
    assert (application["name"], application["finalStatus"]) == ("small", "SUCCEEDED")
    assert application["diagnostics"] == f"job 'small' ({end['jobid']}): SUCCEEDED"
    until("the end of all containers", lambda: not yarn.containers(), LIMIT_S)
    until("the removal of its files", lambda: list((yarn.staging / ".flintlock").iterdir()) == [], LIMIT_S)


@pytest.fixture(scope="module")
def session(yarn: RunningYarn, zookeeper: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    place = tmp_path_factory.mktemp("place")
    (place / "provided").mkdir()
    (place / "provided" / "provided.txt").touch()
    with zipfile.ZipFile(place / "shipped.zip", "w") as archive:
        archive.writestr("inside.txt", "")
    (place / "flintlock.yaml").write_text(
        f"""\
yarn.staging-directory: {yarn.staging}
yarn.application.name: of the tests
yarn.tags: tests, flintlock
yarn.heartbeat.interval: 1 s
yarn.ship-archives: {place / "shipped.zip"}
yarn.provided.lib.dirs: {place / "provided"}
taskmanager.numberOfTaskSlots: 2
high-availability.type: zookeeper
high-availability.zookeeper.quorum: {zookeeper.quorum}
high-availability.zookeeper.client.session-timeout: 4 s
high-availability.storageDir: {place / "storage"}
"""
    )
    (place / "job.yaml").write_text(JOB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(yarn.conf_dir))
        patch.chdir(place)
        patch.setenv("XDG_STATE_HOME", str(place / "state"))
        started = flintlock("session", "start", "-t", "yarn", "--json", cwd=place, timeout_s=LIMIT_S)
        assert started.returncode == 0, f"{started.stderr}\n{yarn.logs()}"
        yield Session(yarn, place, json.loads(started.stdout)["application-id"])


def test_a_job_runs_in_a_container_of_a_session_on_yarn(session: Session) -> None:
    """The command that started it, its application id and YARN's own list all name the same cluster."""
    end = session.run("run", "-t", "yarn-session", "job.yaml")
    assert end["status"] == "FINISHED"
    assert sorted(end["results"]["rows"]["rows"]) == [[0, 1000], [1, 1000], [2, 1000]]

    overview = session.run("cluster", "status", "-m", session.address)
    application = session.yarn.application(session.id)
    assert application["state"] == "RUNNING"
    assert application["name"] == "of the tests"
    assert application["applicationType"] == "FLINTLOCK"
    assert set(application["applicationTags"].split(",")) == {"tests", "flintlock"}
    assert application["runningContainers"] == 2
    assert overview["overview"]["taskmanagers"] == 1
    (worker,) = session.task_managers()
    for name in ("shipped.zip/inside.txt", "provided.txt"):
        assert (Path(worker.cwd()) / name).is_file()
    with fl.connect(session.address) as client:
        assert [line.id.startswith("container_") for line in client.task_managers()] == [True]


def test_a_killed_application_master_is_replaced_and_its_containers_and_tasks_go_on(session: Session) -> None:
    """The next attempt takes the container over: the same process, the same attempt of the task."""
    job = fl.Job("long")
    job.result("rows", job.sql("slow", LONG))
    with fl.connect(session.address) as client:
        handle = client.submit(job)
        until("a running task", lambda: _activity(client, handle), LIMIT_S)
        before = [process.pid for process in session.task_managers()]
        (master,) = session.yarn.containers("yarn_jobmanager", session.id)
        master.send_signal(signal.SIGKILL)
        until("another attempt", lambda: _attempt(session) == 2, LIMIT_S)
        until(
            "the running job",
            lambda: client.http.call("GET", f"/jobs/{handle.id}").json()["state"] == "RUNNING",
            LIMIT_S,
        )
        assert [(each["attempt"], each["state"]) for each in _attempts(client, handle)] == [(0, "RUNNING")]
        assert [process.pid for process in session.task_managers()] == before
        assert client.overview().taskmanagers == 1
        handle.cancel()
        until("its end", lambda: handle.ended_within(1.0), LIMIT_S)


def _attempts(client: fl.Client, handle: fl.JobHandle) -> list[dict[str, Any]]:
    """Return the attempts of a job's first region."""
    return client.http.call("GET", f"/jobs/{handle.id}/attempts").json()["regions"][0]["attempts"]


def _activity(client: fl.Client, handle: fl.JobHandle) -> str:
    """Return what the last attempt of a job's first region does; nothing if there is none."""
    attempts = _attempts(client, handle)
    return str(attempts[-1]["activity"] or "") if attempts else ""


def test_a_session_that_is_stopped_has_succeeded_for_yarn_and_leaves_nothing_behind(session: Session) -> None:
    assert len(session.yarn.containers()) >= 2

    ended = session.run("session", "stop", "-t", "yarn")

    assert (ended["state"], ended["final-status"]) == ("FINISHED", "SUCCEEDED")
    assert "SUCCEEDED" in session.yarn.application(session.id)["diagnostics"]
    until("the end of all containers", lambda: not session.yarn.containers(), LIMIT_S)
    until("the removal of its files", lambda: list((session.yarn.staging / ".flintlock").iterdir()) == [], LIMIT_S)
    gone = flintlock("list", "-m", session.address, cwd=session.place)
    assert gone.returncode == 3
    assert f"{session.id} has ended on YARN, SUCCEEDED" in gone.stderr


def _attempt(session: Session, application_id: str = "") -> int:
    """Return which attempt of an ApplicationMaster is registered; of the session, unless another one is named."""
    application_id = application_id or session.id
    running = session.yarn.containers("yarn_jobmanager", application_id)
    number = next(
        (part for process in running for part in process.cwd().split("/") if part.startswith("container_")), ""
    )
    registered = session.yarn.application(application_id).get("state") == "RUNNING"
    return int(number.split("_")[-2]) if number and registered else 0
