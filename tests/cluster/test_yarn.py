"""Clusters on YARN: a real ResourceManager, NodeManager and HDFS, real Spark in the containers.

One YARN serves all tests, and one session most of them, in their order; its jobs are stored in ZooKeeper, so that it
survives its ApplicationMaster.
"""

from __future__ import annotations

import json
import signal
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.hadoop_artifacts import NotInstallable
from tests.cluster.processes import until
from tests.cluster.yarn_servers import RunningYarn, running_yarn
from tests.cluster.yarn_sessions import LIMIT_S, Session, activity, attempts, cancel, endless, running_session, state
from tests.zookeeper.servers import Ensemble, zookeeper

import flintlock as fl

__all__ = ["zookeeper"]

JOB = """\
name: small
steps:
  numbers: {source: {format: csv, path: /in, schema: "id LONG"}}
  keyed: {sql: "SELECT id, id % 3 AS k FROM numbers", inputs: [numbers], exchange: blocking}
  sums: {sql: "SELECT k, count(*) AS n FROM keyed GROUP BY k", inputs: [keyed]}
  rows: {result: {}, inputs: [sums]}
  files: {sink: {format: parquet, path: /out}, inputs: [sums]}
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningYarn]:
    try:
        with running_yarn(tmp_path_factory.mktemp("yarn") / "home", hdfs=True) as started:
            yield started
    except NotInstallable as reason:
        pytest.skip(str(reason))


def test_a_cluster_for_one_job_ends_with_it_and_with_its_status_and_shares_its_files_by_hdfs(
    yarn: RunningYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDFS is the default file system: of paths without a scheme, of the staging directory and of blocking results."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.hdfs_conf_dir))
    yarn.put("/in/numbers.csv", b"".join(b"%d\n" % number for number in range(3000)))
    (tmp_path / "job.yaml").write_text(JOB)
    done = flintlock("run", "-t", "yarn-per-job", "job.yaml", "--json", cwd=tmp_path, timeout_s=LIMIT_S)
    assert done.returncode == 0, f"{done.stderr}\n{yarn.logs()}"
    end = json.loads(done.stdout)
    (application,) = yarn.applications()
    until("the end of the application", lambda: yarn.application(application["id"])["state"] == "FINISHED", LIMIT_S)
    application = yarn.application(application["id"])

    assert sorted(end["results"]["rows"]["rows"]) == [[0, 1000], [1, 1000], [2, 1000]]
    assert (application["name"], application["finalStatus"]) == ("small", "SUCCEEDED")
    assert application["diagnostics"] == f"job 'small' ({end['jobid']}): SUCCEEDED"
    written = yarn.files("/out")
    assert "_SUCCESS" in written
    assert [name for name in written if not name.endswith(".parquet")] == ["_SUCCESS"], "nothing else is left there"
    until("the end of all containers", lambda: not yarn.containers(), LIMIT_S)
    home = f"/user/{application['user']}/.flintlock"
    until("the removal of its files", lambda: yarn.files(home) == [], LIMIT_S)


@pytest.fixture(scope="module")
def session(yarn: RunningYarn, zookeeper: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    place = tmp_path_factory.mktemp("place")
    (place / "provided").mkdir()
    (place / "provided" / "provided.txt").touch()
    with zipfile.ZipFile(place / "shipped.zip", "w") as archive:
        archive.writestr("inside.txt", "")
    settings = {
        "yarn.application.name": "of the tests",
        "yarn.tags": "tests, flintlock",
        "yarn.application-attempts": 4,
        "yarn.ship-archives": place / "shipped.zip",
        "yarn.provided.lib.dirs": place / "provided",
        "taskmanager.numberOfTaskSlots": 2,
        "resourcemanager.taskmanager-timeout": "10 min",
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper.quorum,
        "high-availability.zookeeper.client.session-timeout": "4 s",
        "high-availability.storageDir": place / "storage",
    }
    with running_session(yarn, place, settings) as running:
        yield running


def test_batch_and_streaming_tasks_in_containers_go_on_while_a_killed_application_master_is_replaced(
    session: Session,
) -> None:
    """The next attempt takes the container over: the same process, the same attempts, each row of the stream once."""
    stream = fl.Job("stream")
    numbers = stream.source("numbers", format="rate", options={"rowsPerSecond": "20"}, stream=True)
    out = session.place / "numbers"
    stream.sink("files", numbers, format="json", path=str(out), uid="files-v1", trigger={"processingTime": "1 second"})
    with session.connect() as client:
        handles = [client.submit(endless("long")), client.submit(stream)]
        for handle in handles:
            until(f"a task of {handle.name}", lambda handle=handle: activity(client, handle), LIMIT_S)
        until("rows of the stream", lambda: _committed(out), LIMIT_S)
        workers = [process.pid for process in session.task_managers()]
        _check_what_yarn_and_containers_have(session, client)

        killed_s = time.time()
        session.master().send_signal(signal.SIGKILL)
        until("another attempt", lambda: session.attempt() == 2, LIMIT_S)
        back_s = time.time()
        for handle in handles:
            until(f"{handle.name} again", lambda handle=handle: state(client, handle) == "RUNNING", LIMIT_S)
            assert [(each["attempt"], each["state"]) for each in attempts(client, handle)] == [(0, "RUNNING")]
        assert [process.pid for process in session.task_managers()] == workers
        assert client.overview().taskmanagers == 1
        meanwhile = [path for path in _batches(out) if killed_s < path.stat().st_mtime < back_s]
        assert meanwhile, "batches were committed while no ApplicationMaster ran"
        for handle in handles:
            cancel(handle)
    values = sorted(row["value"] for row in _committed(out))
    assert values == list(range(len(values))), "each row once"


def _check_what_yarn_and_containers_have(session: Session, client: fl.Client) -> None:
    """The command that started it, its application id and YARN's own list all name the same cluster."""
    application = session.yarn.application(session.id)
    assert application["state"] == "RUNNING"
    assert application["name"] == "of the tests"
    assert application["applicationType"] == "FLINTLOCK"
    assert set(application["applicationTags"].split(",")) == {"tests", "flintlock"}
    assert application["runningContainers"] == 2
    assert session.run("cluster", "status", "-m", session.address)["overview"]["taskmanagers"] == 1
    (worker,) = session.task_managers()
    for name in ("shipped.zip/inside.txt", "provided.txt"):
        assert (Path(worker.cwd()) / name).is_file()
    assert [line.id.startswith("container_") for line in client.task_managers()] == [True]


def _batches(out: Path) -> list[Path]:
    """Return the log of Spark's file sink: a file for each batch that is committed."""
    return [path for path in (out / "_spark_metadata").glob("*") if path.name.isdecimal() or path.suffix == ".compact"]


def _committed(out: Path) -> list[dict[str, Any]]:
    """Return the rows of all committed batches."""
    entries = {line for batch in _batches(out) for line in batch.read_text().splitlines()[1:]}
    files = {json.loads(entry)["path"].removeprefix("file:").replace("//", "") for entry in entries}
    return [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]


def test_a_killed_container_is_replaced_also_by_a_resource_manager_that_was_restarted(session: Session) -> None:
    """While the ResourceManager is away, and when it is back, tasks run on as they are."""
    with session.connect() as client:
        handle = client.submit(endless("endless"))
        until("a running task", lambda: activity(client, handle), LIMIT_S)
        (worker,) = session.task_managers()

        session.yarn.restart_resource_manager()
        until("the application", lambda: session.yarn.application(session.id).get("state") == "RUNNING", LIMIT_S)
        assert [process.pid for process in session.task_managers()] == [worker.pid]
        assert [(each["attempt"], each["state"]) for each in attempts(client, handle)] == [(0, "RUNNING")]

        worker.send_signal(signal.SIGKILL)
        until("the next attempt", lambda: len(attempts(client, handle)) == 2, LIMIT_S)
        until("a running task", lambda: activity(client, handle), LIMIT_S)
        lost = attempts(client, handle)[0]
        assert lost["failure"]["kind"] == "TaskManager lost"
        assert "heartbeat" not in lost["failure"]["message"], "noticed before its heartbeats were missed"
        assert [process.pid for process in session.task_managers()] != [worker.pid]
        cancel(handle)


PROGRAM = """\
import json, sys, time
from pathlib import Path
import flintlock as fl

place = Path(sys.argv[1])


def numbered(number):
    job = fl.Job(f"numbered-{number}")
    job.result("rows", job.sql("one", f"SELECT {number} AS x"))
    return job


first = fl.run(numbered(1), quiet=True)
with fl.connect() as client:
    second = client.submit(numbered(2)).wait()
    with (place / "runs").open("a") as file:
        file.write(json.dumps([first.id, second.id]) + "\\n")
    while not (place / "go").exists():
        time.sleep(0.1)
    client.submit(numbered(3)).wait()
print("all three")
row = {}["x"]
"""


def test_a_program_survives_its_application_master_finds_its_jobs_when_it_is_lost_and_fails_with_its_line(
    session: Session,
) -> None:
    """It goes on while its ApplicationMaster is replaced. When it is lost itself, it runs again with the same jobs."""
    place, yarn = session.place, session.yarn
    (place / "nightly.py").write_text(PROGRAM)
    started = session.run(
        "run", "-t", "yarn-application", "-d", "-D", "yarn.application.name=nightly", "nightly.py", str(place)
    )
    application_id = started["cluster"].removeprefix("yarn://")
    runs = place / "runs"

    def lines() -> list[str]:
        return runs.read_text().splitlines() if runs.exists() else []

    until("the first run of the program", lines, LIMIT_S)
    workers = session.task_managers(application_id)
    session.master(application_id).send_signal(signal.SIGKILL)
    until("another attempt", lambda: session.attempt(application_id) == 2, LIMIT_S)
    with session.connect(started["cluster"]) as client:
        program = client.job(started["jobid"])
        until("the program, taken over", lambda: state(client, program) == "RUNNING", LIMIT_S)
        assert [process.pid for process in session.task_managers(application_id)] == [each.pid for each in workers]
        assert len(lines()) == 1, "the program has run on"

    for process in workers:
        process.send_signal(signal.SIGKILL)
    until("the second run of the program", lambda: len(lines()) == 2, LIMIT_S)
    (place / "go").touch()
    until("the end of the application", lambda: yarn.application(application_id)["state"] == "FINISHED", LIMIT_S)

    first, second = lines()
    assert first == second, "the same jobs"
    ended = yarn.application(application_id)
    assert (ended["name"], ended["finalStatus"]) == ("nightly", "FAILED")
    assert ended["diagnostics"].startswith(f"program 'nightly' ({started['jobid']}): FAILED")
    assert "KeyError: 'x'" in ended["diagnostics"]
    assert f'File "nightly.py", line {PROGRAM.count(chr(10))}' in ended["diagnostics"]
    until("the end of its containers", lambda: not yarn.containers("", application_id), LIMIT_S)

    def aggregated() -> bool:
        logs = yarn.aggregated_logs.glob(f"**/{application_id}/*")
        return any(b"all three\n" in path.read_bytes() for path in logs if path.is_file())

    until("what the program has printed in YARN's logs", aggregated, LIMIT_S)


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
