"""Clusters on YARN: a real ResourceManager, NodeManager and HDFS, real Spark in the containers.

One YARN serves all tests, and one session most of them, in their order; its jobs are stored in ZooKeeper, so that it
survives its ApplicationMaster.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from pyarrow import parquet
from tests.cluster.commands import flintlock
from tests.cluster.hadoop_artifacts import NotInstallable
from tests.cluster.long_tests import LONG
from tests.cluster.processes import Processes, until
from tests.cluster.spark_standalone import numbers, orders
from tests.cluster.yarn_servers import RunningYarn, running_yarn
from tests.cluster.yarn_sessions import (
    LIMIT_S,
    Session,
    activity,
    admit_this_process,
    attached_run,
    attempts,
    cancel,
    endless,
    gated,
    running_session,
    state,
)
from tests.zookeeper.servers import Ensemble, zookeeper

import flintlock as fl
from flintlock.spark.engine.python import python_daemon
from flintlock.yarn.bridge import running_bridge
from flintlock.yarn.client_bridge import BridgedYarn
from flintlock.yarn.master_bridge import BridgedApplicationMaster
from flintlock.yarn.messages import ContainerSize, FinalStatus

__all__ = ["zookeeper"]

#: How many programs are submitted at once; by default none.
MANY_APPLICATIONS = int(os.environ.get("MANY_APPLICATIONS") or 0)

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
        pytest.skip(f"no test of YARN is run: {reason}")


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


def test_a_node_that_is_excluded_gets_no_container_until_it_is_no_longer_excluded(
    yarn: RunningYarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process is the ApplicationMaster. One that has asked later gets a container of the only node meanwhile."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf_dir))
    size = ContainerSize(memory_mb=256, vcores=1)
    with running_bridge(os.environ) as jvm, closing(BridgedYarn(jvm)) as client:
        (node,) = client.node_hosts()
        application_id = admit_this_process(jvm)
        with closing(BridgedApplicationMaster(lambda: jvm)) as master:
            master.register("127.0.0.1", 0, "")
            master.exclude(frozenset({node}))
            assert master.heartbeat(size, 1).allocated == ()
            later = yarn.submit("exec sleep 3600")
            until("a container for another one", lambda: yarn.application(later).get("runningContainers") == 1, LIMIT_S)
            assert master.heartbeat(size, 1).allocated == ()

            master.exclude(frozenset())
            (container,) = until("a container", lambda: master.heartbeat(size, 1).allocated, LIMIT_S)
            assert container.node_name == node
            master.give_back(container)
            master.unregister(FinalStatus.SUCCEEDED, "")
        yarn.kill(later)
    until("its end", lambda: yarn.application(application_id)["state"] == "FINISHED", LIMIT_S)


@pytest.fixture(scope="module")
def session(yarn: RunningYarn, zookeeper: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    place = tmp_path_factory.mktemp("place")
    for directory in ("provided/libraries/inner", "package/inner"):
        (place / directory).mkdir(parents=True)
    for name in ("provided/provided.txt", "provided/libraries/inner/.hidden", "package/inner/module.py", "shipped.txt"):
        (place / name).touch()
    (place / "secrets").mkdir()
    (place / "secrets" / "FILE").touch(0o600)
    (place / "secrets" / "FILE").write_text("of a file\n")
    with zipfile.ZipFile(place / "shipped.zip", "w") as archive:
        archive.writestr("inside.txt", "")
    settings = {
        "yarn.application.name": "of the tests",
        "yarn.tags": "tests, flintlock",
        "yarn.application-attempts": 4,
        "yarn.application.priority": 3,
        "yarn.ship-files": f"{place / 'shipped.txt'}, {place / 'package'}",
        "yarn.ship-archives": place / "shipped.zip",
        "yarn.provided.lib.dirs": place / "provided",
        "security.secrets.directory": place / "secrets",
        "containerized.taskmanager.env.SECRET_VARIABLE": "of a variable",
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.process.size": "4g",  # more than the queue is guaranteed, and half of a node
        "restart-strategy.type": "none",  # what YARN does is never charged to a job
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
    """The next attempt takes the container over: the same process, the same attempts, each row once.

    That holds for the stream, for a batch job that ends under the next attempt, and for one that has ended before.
    """
    before, across = session.place / "before", session.place / "across"
    stream = fl.Job("stream")
    source = stream.source("source", format="rate", options={"rowsPerSecond": "20"}, stream=True)
    out = session.place / "numbers"
    stream.sink("files", source, format="json", path=str(out), uid="files-v1", trigger={"processingTime": "1 second"})
    with session.connect() as client:
        client.submit(numbers(before)).wait()
        published = _files(before)
        batch = client.submit(gated(across))
        handles = [batch, client.submit(stream)]
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

        (across / "go").touch()
        batch.wait()
        assert [(each["attempt"], each["state"]) for each in attempts(client, batch)] == [(0, "FINISHED")]
        assert _rows(across / "out") == [0, 1, 2], "published once, although it is an append"
        assert _rows(before) == list(range(100))
        assert _files(before) == published, "nothing was published again"
        cancel(handles[-1])
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
    assert application["priority"] == 3
    assert session.run("cluster", "status", "-m", session.address)["overview"]["taskmanagers"] == 1
    (worker,) = session.task_managers()
    for name in (
        "shipped.txt", "package/inner/module.py", "shipped.zip/inside.txt", "provided.txt", "libraries/inner/.hidden",
    ):  # fmt: skip
        assert (Path(worker.cwd()) / name).is_file(), name
    assert [line.id.startswith("container_") for line in client.task_managers()] == [True]


def _rows(out: Path) -> list[int]:
    """Return the ids in a directory of Parquet files."""
    return sorted(cast("Any", parquet).read_table(out).column("id").to_pylist())


def _files(out: Path) -> set[tuple[str, int, int]]:
    """Return the files with data in a directory: one that is written or moved again is another one, or a later one."""
    return {(path.name, path.stat().st_ino, path.stat().st_ctime_ns) for path in out.glob("*.parquet")}


def _batches(out: Path) -> list[Path]:
    """Return the log of Spark's file sink: a file for each batch that is committed."""
    return [path for path in (out / "_spark_metadata").glob("*") if path.name.isdecimal() or path.suffix == ".compact"]


def _committed(out: Path) -> list[dict[str, Any]]:
    """Return the rows of all committed batches."""
    entries = {line for batch in _batches(out) for line in batch.read_text().splitlines()[1:]}
    files = {json.loads(entry)["path"].removeprefix("file:").replace("//", "") for entry in entries}
    return [json.loads(line) for file in files for line in Path(file).read_text().splitlines()]


@LONG
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


@LONG
def test_a_job_manager_whose_bridge_to_yarn_hangs_is_replaced_while_its_job_runs_on(session: Session) -> None:
    """It ends the bridge, and itself, once the bridge was silent for `heartbeat.timeout`: a failure of no job."""
    with session.connect() as client:
        handle = client.submit(endless("endless"))
        until("a running task", lambda: activity(client, handle), LIMIT_S)
        (worker,) = session.task_managers()
        attempt, bridge = session.attempt(), session.bridge()

        bridge.send_signal(signal.SIGSTOP)
        until("another attempt", lambda: session.attempt() == attempt + 1, LIMIT_S)
        assert not bridge.is_running()
        assert "yarn-bridge-silent" in session.yarn.logs(1_000_000)
        until("the job again", lambda: state(client, handle) == "RUNNING", LIMIT_S)
        assert [(each["attempt"], each["state"]) for each in attempts(client, handle)] == [(0, "RUNNING")]
        assert [process.pid for process in session.task_managers()] == [worker.pid]
        cancel(handle)


def test_a_session_is_attached_from_elsewhere_and_the_output_of_its_jobs_is_followed_by_its_id(
    session: Session,
) -> None:
    """Its jobs have secrets of a directory that all nodes have, and of variables of its containers."""
    place = session.place / "elsewhere"
    place.mkdir()
    (place / "said.py").write_text('import sys\nprint("said in a container:", *sys.argv[1:])\n')
    (place / "flintlock.yaml").write_text(f"yarn.staging-directory: {session.yarn.staging}\n")
    elsewhere = Session(session.yarn, place, session.id)

    assert elsewhere.run("session", "attach", "-t", "yarn", session.address)["application-id"] == session.id
    secrets = ("${secret:FILE}", "${secret:VARIABLE}")
    submitted = elsewhere.run("run", "-t", "yarn-session", "-d", "said.py", *secrets)
    followed = flintlock("logs", "-f", submitted["jobid"], "-m", session.address, cwd=place, timeout_s=LIMIT_S)
    assert followed.returncode == 0, followed.stderr
    assert "said in a container: of a file of a variable\n" in followed.stdout


#: Of applications beside the session: with it they fill a node.
SMALL = ("-D", "taskmanager.memory.process.size=2g")
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
        "run", "-t", "yarn-application", "-d", "-D", "yarn.application.name=nightly", *SMALL, "nightly.py", str(place)
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


WAITS_FOR_A_FILE = """\
import flintlock as fl

job = fl.Job("one-job")
three = job.sql("three", "SELECT id FROM range(0, 3, 1, 1)")


@job.step(inputs=[three])
def waited(three):
    from pyspark.sql.functions import udf

    def wait(value):
        import time
        from pathlib import Path

        while not Path("{place}/go").exists():
            time.sleep(0.1)
        return value

    return three.select(udf(wait, "long")("id").alias("id"))


job.sink("files", waited, format="parquet", path="{place}/out", mode="append")
"""


@LONG
def test_a_cluster_for_one_job_survives_its_application_master_and_ends_with_the_job(session: Session) -> None:
    """The same attempt of the task runs on, in the same container."""
    place, yarn = session.place / "one-job", session.yarn
    place.mkdir()
    (session.place / "one.py").write_text(WAITS_FOR_A_FILE.replace("{place}", str(place)))
    started = session.run("run", "-t", "yarn-per-job", "-d", *SMALL, "one.py:job")
    application_id = started["cluster"].removeprefix("yarn://")
    with session.connect(started["cluster"]) as client:
        job = client.job(started["jobid"])
        until("its task", lambda: activity(client, job), LIMIT_S)
        workers = [process.pid for process in session.task_managers(application_id)]
        session.master(application_id).send_signal(signal.SIGKILL)
        until("another attempt", lambda: session.attempt(application_id) == 2, LIMIT_S)
        until("the job again", lambda: state(client, job) == "RUNNING", LIMIT_S)
        assert [(each["attempt"], each["state"]) for each in attempts(client, job)] == [(0, "RUNNING")]
        assert [process.pid for process in session.task_managers(application_id)] == workers

    (place / "go").touch()
    until("the end of the application", lambda: yarn.application(application_id)["state"] == "FINISHED", LIMIT_S)
    ended = yarn.application(application_id)
    assert (ended["finalStatus"], ended["diagnostics"]) == ("SUCCEEDED", f"job 'one-job' ({job.id}): SUCCEEDED")
    assert _rows(place / "out") == [0, 1, 2], "published once, although it is an append"
    until("the end of its containers", lambda: not yarn.containers("", application_id), LIMIT_S)


WAITS = """\
import sys, time
from pathlib import Path

Path(sys.argv[1]).touch()
while True:
    time.sleep(0.1)
"""


def test_a_preempted_container_is_replaced_once_the_program_that_preempted_it_is_cancelled(session: Session) -> None:
    """Queue `urgent` gets what it is guaranteed, from a container of the session, and gives it back."""
    place, yarn = session.place, session.yarn
    (place / "urgent.py").write_text(WAITS)
    with session.connect() as client:
        handle = client.submit(endless("preempted"))
        until("a running task", lambda: activity(client, handle), LIMIT_S)

        preempting = ("-D", "yarn.application.queue=urgent", "-D", "taskmanager.memory.process.size=3g")
        started = session.run("run", "-t", "yarn-application", "-d", *preempting, "urgent.py", place / "urgent")
        application_id = started["cluster"].removeprefix("yarn://")
        until("the urgent program", (place / "urgent").exists, LIMIT_S)
        assert session.task_managers() == [], "there is no room for another container of this size"
        lost = attempts(client, handle)[0]
        assert lost["failure"]["kind"] == "TaskManager lost"
        assert "heartbeat" not in lost["failure"]["message"], "noticed before its heartbeats were missed"
        assert state(client, handle) != "FAILED", "though restarts for its own failures are switched off"

        session.run("cancel", "latest", "-m", started["cluster"])
        until("the end of the program", lambda: yarn.application(application_id)["state"] == "FINISHED", LIMIT_S)
        assert yarn.application(application_id)["finalStatus"] == "KILLED"
        until("the end of its containers", lambda: not yarn.containers("", application_id), LIMIT_S)
        until("the next attempt", lambda: activity(client, handle), LIMIT_S)
        assert [each["attempt"] for each in attempts(client, handle)] == [0, 1]
        cancel(handle)


@LONG
def test_a_task_manager_on_a_node_that_yarn_calls_lost_works_on(session: Session) -> None:
    """Its container is written off, its process lives: it is silent for YARN, not dead."""
    session.yarn.start_node("second")
    with session.connect() as client:
        handles = [client.submit(endless(f"on-two-nodes-{number}")) for number in range(3)]  # on two slots each
        for handle in handles:
            until(f"a task of {handle.name}", lambda handle=handle: activity(client, handle), LIMIT_S)
        workers = session.task_managers()
        assert sorted(map(session.yarn.node_of, workers)) == ["nodemanager", "second"]

        session.yarn.lose_node("second")
        until("YARN's word for it", lambda: "yarn-container-written-off" in session.yarn.logs(1_000_000), LIMIT_S)
        assert client.overview().taskmanagers == 2
        assert sorted(process.pid for process in session.task_managers()) == sorted(each.pid for each in workers)
        for handle in handles:
            assert [(each["attempt"], each["state"]) for each in attempts(client, handle)] == [(0, "RUNNING")]
            cancel(handle)


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


TAKES_ITS_TURN = """\
import flintlock as fl

job = fl.Job("one")
job.result("rows", job.sql("one", "SELECT 1 AS x"))
fl.run(job, quiet=True)
print("said in its turn")
"""


@pytest.fixture
def narrow(yarn: RunningYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program, from which clients use the queue with room for one ApplicationMaster at a time."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf_dir))
    settings = {"yarn.staging-directory": yarn.staging, "yarn.application.queue": "narrow"}
    (tmp_path / "flintlock.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))
    (tmp_path / "turn.py").write_text(TAKES_ITS_TURN)
    return tmp_path


def test_a_program_waits_for_its_turn_in_a_full_queue_until_it_has_it_or_its_client_is_interrupted(
    yarn: RunningYarn, narrow: Path
) -> None:
    occupying = yarn.submit("exec sleep 3600", queue="narrow")
    until("the first one", lambda: yarn.application(occupying).get("runningContainers") == 1, LIMIT_S)
    with attached_run(narrow, "turn.py", "first") as first, attached_run(narrow, "turn.py", "second") as second:
        for run in (first, second):
            until("its wait", lambda run=run: "has waited for its turn in queue 'narrow'" in run.notes(), LIMIT_S)
            assert yarn.application(run.application_id())["state"] == "ACCEPTED"
            assert "Queue's AM resource limit exceeded" in run.notes(), "as YARN says it"

        first.process.send_signal(signal.SIGINT)
        assert first.process.wait(LIMIT_S) != 0
        assert yarn.application(first.application_id())["finalStatus"] == "KILLED"

        yarn.kill(occupying)
        assert second.process.wait(LIMIT_S) == 0, f"{second.notes()}\n{yarn.logs()}"
        application_id = second.application_id()
    assert "has its turn: YARN starts its JobManager" in second.notes()
    assert "said in its turn\n" in second.out.read_text()
    until("the end of it for YARN", lambda: yarn.application(application_id)["state"] == "FINISHED", LIMIT_S)
    assert yarn.application(application_id)["finalStatus"] == "SUCCEEDED"
    assert yarn.application(application_id)["diagnostics"].endswith(": SUCCEEDED")
    until("the end of its containers", lambda: not yarn.containers("", application_id), LIMIT_S)


@pytest.mark.skipif(not MANY_APPLICATIONS, reason="takes some twenty seconds for each; MANY_APPLICATIONS=20 runs it")
def test_many_programs_at_once_take_turns_in_a_queue_with_room_for_one(yarn: RunningYarn, narrow: Path) -> None:
    with ExitStack() as stack:
        names = [f"run-{number}" for number in range(MANY_APPLICATIONS)]
        runs = [stack.enter_context(attached_run(narrow, "turn.py", name)) for name in names]
        for run in runs:
            assert run.process.wait(3600) == 0, run.notes()
            assert "said in its turn\n" in run.out.read_text()
        ids = [run.application_id() for run in runs]
    for application_id in ids:
        until(f"the end of {application_id}", lambda each=application_id: _status(yarn, each) == "SUCCEEDED", LIMIT_S)


def _status(yarn: RunningYarn, application_id: str) -> str:
    return str(yarn.application(application_id)["finalStatus"])


EXECUTORS = {
    "spark.master": "yarn",
    "spark.executor.memory": "512m",
    "spark.yarn.am.memory": "256m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "taskmanager.engine.start-timeout": "300 s",
    "spark.executorEnv.FLINTLOCK_PYTHON_DAEMON_IDLE_S": "2",
}
#: Nodes are this machine. In a container of YARN a TaskManager knows that they have Flintlock.
DAEMON = f"spark.python.daemon.module={python_daemon.MODULE}"


def test_an_engine_has_its_executors_in_containers_of_yarn_and_takes_them_with_it(
    yarn: RunningYarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JobManager and a TaskManager of this machine; slots are cores of the engine's application on YARN."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf_dir))
    cluster = Processes(tmp_path / "cluster")
    cluster.state_dir.mkdir()
    cluster.settings = (DAEMON, *(f"{key}={value}" for key, value in EXECUTORS.items()))
    known = {application["id"] for application in yarn.applications()}
    try:
        cluster.start_jobmanager()
        cluster.start_taskmanager()
        cluster.await_slots(limit_s=LIMIT_S)
        (application,) = [each for each in yarn.applications() if each["id"] not in known]
        assert (application["applicationType"], application["state"]) == ("SPARK", "RUNNING")
        assert application["runningContainers"] == 3, "Spark's own, and an executor of one core for each slot"
        with fl.connect(cluster.url) as client:
            client.submit(orders(tmp_path)).wait()
            assert [manager.spark_master for manager in client.task_managers()] == ["yarn"]
        tables = cast("Any", parquet)
        assert tables.read_table(tmp_path / "rows").num_rows == 3000
        assert sum(tables.read_table(tmp_path / "sums").column("s").to_pylist()) == 2999 * 3000
        assert daemons(yarn, application["id"])

        mistyped = flintlock("session", "stop", "-t", "yarn", application["id"], cwd=tmp_path)
        assert mistyped.returncode != 0
        assert "is an application of type 'SPARK', not of Flintlock" in mistyped.stderr
        until("the end of idle Python daemons", lambda: not daemons(yarn, application["id"]), LIMIT_S)
        assert yarn.executors(application["id"]), "nothing but Python has ended"
        assert yarn.application(application["id"])["state"] == "RUNNING"

        assert cluster.taskmanager is not None
        cluster.taskmanager.kill()
        until("the end of all executors", lambda: not yarn.executors(application["id"]), LIMIT_S)
        until("the end of it for YARN", lambda: yarn.application(application["id"])["state"] == "FINISHED", LIMIT_S)
    finally:
        cluster.stop()


def daemons(yarn: RunningYarn, application_id: str) -> list[int]:
    """Return the Python daemons of Spark, and their workers, in the executors of an application."""
    found: list[int] = []
    for process in yarn.executors(application_id):
        with suppress(psutil.Error):  # it ends meanwhile
            if python_daemon.MODULE in process.cmdline():
                found.append(process.pid)
    return found


@LONG
def test_a_session_whose_engines_have_executors_on_yarn_ends_them_and_goes_on_when_yarn_does(
    yarn: RunningYarn, tmp_path: Path
) -> None:
    """An engine in a container has an application of Spark beside that of the session."""

    def spark() -> list[dict[str, Any]]:
        ended = ("FINISHED", "FAILED", "KILLED")
        found = [each for each in yarn.applications() if each["id"] not in known]
        return [each for each in found if each["applicationType"] == "SPARK" and each["state"] not in ended]

    known = {application["id"] for application in yarn.applications()}
    settings = {
        **EXECUTORS,
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.memory.process.size": "2g",
        "resourcemanager.taskmanager-timeout": "10 min",  # Spark ends idle Python workers after one
        "restart-strategy.type": "none",  # what YARN does is never charged to a job
    }
    with running_session(yarn, tmp_path / "place", settings) as session, session.connect() as client:
        client.submit(orders(tmp_path)).wait()
        assert sum(cast("Any", parquet).read_table(tmp_path / "sums").column("s").to_pylist()) == 2999 * 3000
        assert [manager.spark_master for manager in client.task_managers()] == ["yarn"]
        (first,) = spark()
        assert first["runningContainers"] == 3, "Spark's own, and an executor of one core for each slot"
        assert daemons(yarn, first["id"])
        until("the end of idle Python daemons", lambda: not daemons(yarn, first["id"]), LIMIT_S)
        assert yarn.executors(first["id"]), "nothing but Python has ended"

        handle = client.submit(endless("goes-on"))
        until("a running task", lambda: activity(client, handle), LIMIT_S)
        (worker,) = session.task_managers()
        yarn.kill(first["id"])
        until("the next attempt", lambda: len(attempts(client, handle)) == 2, LIMIT_S)
        lost = attempts(client, handle)[0]["failure"]
        assert lost["kind"] == "engine lost"
        assert "yarn has ended its application" in lost["message"]
        until("a running task", lambda: activity(client, handle), LIMIT_S)
        assert [process.pid for process in session.task_managers()] == [worker.pid]
        (second,) = spark()
        assert second["id"] != first["id"]

        ended = session.run("session", "stop", "-t", "yarn")
        assert (ended["state"], ended["final-status"]) == ("FINISHED", "SUCCEEDED")
    until("the end of its containers", lambda: not yarn.containers("", session.id), LIMIT_S)
    until("the end of all executors", lambda: not yarn.executors(second["id"]), LIMIT_S)
    until("the end of Spark's application", lambda: not spark(), LIMIT_S)
