"""An engine whose executors are on a Spark standalone cluster: a real master and two workers.

One of the workers does not see all directories of this machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame
from tests.cluster.commands import flintlock
from tests.cluster.long_tests import LONG
from tests.cluster.processes import Processes, running_processes, until
from tests.cluster.spark_standalone import (
    SparkStandalone,
    held,
    numbers,
    orders,
    own_mounts,
    running_standalone,
    settings_of,
)
from tests.cluster.test_dependencies import write_wheel

import flintlock as fl
from flintlock.model.errors import JobFailed
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.python.python_daemon import MODULE
from flintlock.testing import rest_requests

JAVAC = Path(find_java(os.environ).home) / "bin" / "javac"

pytestmark = pytest.mark.skipif(
    not find_java(os.environ).has_vector_module, reason="executors need a Java with the module jdk.incubator.vector"
)

#: As short as the time that a leader may take to come back allows.
LEASE_S = 20
#: What an engine and its executors, four JVMs, may take to start on a busy machine.
START_S = 600.0
PATIENT = f"taskmanager.engine.start-timeout={START_S:g} s"

#: Executors that are idle end soon, also those that still have the files of a shuffle.
DYNAMIC = (
    "spark.dynamicAllocation.enabled=true",
    "spark.dynamicAllocation.minExecutors=0",
    "spark.dynamicAllocation.executorIdleTimeout=2s",
    "spark.dynamicAllocation.shuffleTracking.timeout=2s",
)
HIDES = pytest.mark.skipif(not own_mounts(), reason="processes cannot have mounts of their own here")
USES_EVERYTHING = """
import sys
import beside
import flintlock_tiny
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

length, prefix = len(sys.argv[1]), sys.prefix


@udf("string")
def in_a_worker(x):
    import sys
    import flintlock_tiny

    return f"{flintlock_tiny.VALUE + beside.thrice(x) + length} {sys.prefix == prefix}"


spark = SparkSession.builder.getOrCreate()
rows = spark.range(1, 3, 1, 2).select(in_a_worker("id")).collect()
print("on executors:", *sorted(row[0] for row in rows))
"""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that one of the workers does not see, where processes can have mounts of their own."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[SparkStandalone]:
    home = tmp_path_factory.mktemp("standalone")
    with running_standalone(home, hidden=hidden if own_mounts() else None) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(spark: SparkStandalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager and a TaskManager with two slots; the workers have four cores."""
    processes = Processes(tmp_path_factory.mktemp("on-standalone"))
    processes.settings = settings_of(spark.url, LEASE_S)
    try:
        processes.start_jobmanager()
        processes.start_taskmanager(settings=(PATIENT,))
        processes.await_leader()
        processes.await_slots(limit_s=START_S)
        yield processes
    finally:
        processes.stop()


def applications(spark: SparkStandalone) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", spark.state().get("activeapps", []))


def python_daemons(spark: SparkStandalone) -> set[int]:
    """Return the processes that executors fork their Python workers from."""
    found: set[int] = set()
    for executor in spark.executors():
        with suppress(psutil.Error):
            found |= {child.pid for child in psutil.Process(executor).children() if MODULE in child.cmdline()}
    return found


def engine_jvm(cluster: Processes) -> psutil.Process:
    assert cluster.taskmanager is not None
    below = psutil.Process(cluster.taskmanager.pid).children(recursive=True)
    return next(process for process in below if "org.apache.spark.deploy.SparkSubmit" in process.cmdline())


@contextmanager
def frozen(cluster: Processes) -> Generator[None]:
    """Freeze the TaskManager with all that it has started; thaw them at the end."""
    assert cluster.taskmanager is not None
    task_manager = psutil.Process(cluster.taskmanager.pid)
    family = [task_manager, *task_manager.children(recursive=True)]
    for process in family:
        process.suspend()
    try:
        yield
    finally:
        for process in family:
            with suppress(psutil.Error):
                process.resume()


def test_a_job_runs_on_the_executors_of_a_standalone_master(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    """Slots are the cores of the application: two of the four that the workers have."""
    with fl.connect(cluster.url) as client:
        client.submit(orders(tmp_path)).wait()
    tables = cast("Any", parquet)

    assert tables.read_table(tmp_path / "rows").num_rows == 3000
    assert sum(tables.read_table(tmp_path / "sums").column("s").to_pylist()) == 2999 * 3000
    assert [app["cores"] for app in applications(spark)] == [2]
    listed = rest_requests.get(f"{cluster.url}/taskmanagers").json()["taskmanagers"]
    assert [each["sparkMaster"] for each in listed] == [spark.url]


@HIDES
def test_a_sink_that_one_machine_does_not_see_is_refused_before_anything_is_written(
    spark: SparkStandalone, cluster: Processes, hidden: Path, tmp_path: Path
) -> None:
    (hidden / "old").mkdir()
    (hidden / "old" / "part-0.parquet").write_text("of an earlier run")
    with fl.connect(cluster.url) as client:
        for target in (hidden / "new", hidden / "old"):
            job = client.submit(numbers(target))
            with pytest.raises(JobFailed, match="that all machines share") as failed:
                job.wait()
            assert f"the executors of {spark.url} do not see {target} as this machine does" in str(failed.value)
            attempts = rest_requests.get(f"{cluster.url}/jobs/{job.id}/exceptions").json()
            assert "PathNotShared" in f"{attempts}"
        client.submit(numbers(tmp_path / "shared")).wait()
        own_driver = client.submit(numbers(hidden / "new", engine="dedicated"))
        with pytest.raises(JobFailed, match=f"the executors of {spark.url} do not see {hidden / 'new'} as this"):
            own_driver.wait()
        assert _failures(cluster, own_driver) == ["PathNotShared"]
    assert sorted(path.name for path in hidden.rglob("*")) == ["old", "part-0.parquet"], "nothing is left there"
    assert list((tmp_path / "shared").glob("*.parquet"))


@HIDES
def test_a_source_that_one_machine_does_not_see_is_refused(cluster: Processes, hidden: Path, tmp_path: Path) -> None:
    for place in (hidden / "in", tmp_path / "in"):
        place.mkdir()
        (place / "rows.csv").write_text("1\n2\n3\n")

    def counting(place: Path) -> fl.Job:
        job = fl.Job("counting")
        rows = job.source("rows", format="csv", path=str(place), schema="n INT")
        job.result("counted", job.sql("count_of", "SELECT count(*) AS c FROM rows", inputs=[rows]))
        return job

    with fl.connect(cluster.url) as client:
        with pytest.raises(JobFailed, match=f"do not see {hidden / 'in'} as this machine does"):
            client.submit(counting(hidden / "in")).wait()
        counted = client.submit(counting(tmp_path / "in"))
        counted.wait()
        assert [tuple(row) for row in counted.result("counted").rows()] == [(3,)]


def test_requirements_modules_and_secrets_of_a_job_reach_its_executors(cluster: Processes, tmp_path: Path) -> None:
    """The environment is in the work directory, which all machines share."""
    wheel = write_wheel(tmp_path, "3.0", f"VALUE = 41  # {tmp_path}\n")
    (tmp_path / "requirements.txt").write_text(f"./{wheel}\n")
    (tmp_path / "beside.py").write_text("def thrice(x):\n    return 3 * x\n")
    (tmp_path / "script.py").write_text(USES_EVERYTHING)
    secrets = cluster.state_dir / "secrets"
    secrets.mkdir(mode=0o700, exist_ok=True)
    (secrets / "KEY").touch(mode=0o600)
    (secrets / "KEY").write_text("12345")
    flags = ("--requirements", "requirements.txt", "script.py", "${secret:KEY}")
    ran = flintlock("run", "-m", cluster.url, *flags, cwd=tmp_path, timeout_s=300)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "on executors: 49 True 52 True" in ran.stdout
    assert list((cluster.state_dir / "work" / "environments").iterdir())


@pytest.mark.skipif(not JAVAC.exists(), reason="there is no compiler of Java")
def test_jars_and_the_python_of_a_job_with_a_driver_of_its_own_reach_its_executors(
    cluster: Processes, tmp_path: Path
) -> None:
    """Its paths are tested before, in the same driver, and what that has written does not count."""
    (tmp_path / "Sample.java").write_text(
        'public class Sample { public static String value(long id) { return "of the jar " + id; } }\n'
    )
    subprocess.run([JAVAC, "--release", "17", "Sample.java"], cwd=tmp_path, check=True, capture_output=True)
    with zipfile.ZipFile(tmp_path / "own.jar", "w") as jar:
        jar.write(tmp_path / "Sample.class", "Sample.class")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nCHOSEN_BY_THE_JOB=chosen exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    job = fl.Job("own-driver", jars=[tmp_path / "own.jar"], config={"spark.pyspark.python": str(python)})
    of_jar = job.sql("of_jar", "SELECT id, reflect('Sample', 'value', id) AS value FROM range(0, 3, 1, 2)")

    @job.step(inputs=[of_jar])
    def of_python(of_jar: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        def chosen(_: int) -> str:
            import os

            return os.environ.get("CHOSEN_BY_THE_JOB", "the default")

        return of_jar.select("value", udf(chosen, "string")("id").alias("python"))

    job.sink("rows", of_python, format="parquet", path=str(tmp_path / "rows"))
    with fl.connect(cluster.url) as client:
        handle = client.submit(job)
        handle.wait()
    rows = cast("Any", parquet).read_table(tmp_path / "rows").to_pylist()
    assert sorted(row["value"] for row in rows) == [f"of the jar {number}" for number in range(3)]
    assert {row["python"] for row in rows} == {"chosen"}
    steps = rest_requests.get(f"{cluster.url}/jobs/{handle.id}").json()["vertices"]
    assert [step["metrics"]["write-records"] for step in steps if "rows" in step["name"]] == [3], steps


def test_the_death_of_an_engine_leaves_no_executor_behind(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    before = {app["id"] for app in applications(spark)}
    old = spark.executors()
    with fl.connect(cluster.url) as client:
        job = client.submit(held(tmp_path))
        until("both tasks on executors", lambda: len(list(tmp_path.iterdir())) == 2)
        engine_jvm(cluster).send_signal(signal.SIGKILL)
        (tmp_path / "go").touch()
        job.wait()  # done by the next engine

    until("the end of the old executors", lambda: not old & spark.executors(), 30.0)
    assert not before & {app["id"] for app in applications(spark)}
    assert _failures(cluster, job) == ["EngineLost"]


def test_the_executors_of_a_machine_that_falls_silent_end_before_its_work_may_start_elsewhere(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    """All processes of the TaskManager are frozen, its watchdog and the driver too: no connection breaks."""
    old, losses = spark.executors(), len(cluster.log_events("jobmanager", "taskmanager-lost"))
    with fl.connect(cluster.url) as client:
        job = client.submit(held(tmp_path))
        until("both tasks on executors", lambda: len(list(tmp_path.iterdir())) == 2)
        with frozen(cluster):
            until("the end of the executors", lambda: not old & spark.executors(), LEASE_S + 60.0)
            ended_s = time.time()
            lost = until("the loss", lambda: cluster.log_events("jobmanager", "taskmanager-lost")[losses:])
            worked_s = max(file.stat().st_mtime for file in tmp_path.iterdir())
        (tmp_path / "go").touch()
        job.wait()  # done by the next engine
        assert sorted(row.id for row in job.result("rows").rows()) == [0, 1]

    lost_s = datetime.fromisoformat(lost[0]["timestamp"]).timestamp()
    assert worked_s <= ended_s < lost_s
    assert _failures(cluster, job) == ["TaskManagerLost"]


@LONG
def test_an_engine_whose_application_the_master_has_forgotten_is_started_again(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    """A master that is killed and started again without recovery has the executors killed, and gives no others."""
    old = engine_jvm(cluster).pid
    with fl.connect(cluster.url) as client:
        job = client.submit(held(tmp_path))
        until("both tasks on executors", lambda: len(list(tmp_path.iterdir())) == 2)
        spark.kill_master()
        spark.start_master()
        spark.await_workers()

        until("another engine", lambda: _is_another_engine(cluster, old), LEASE_S + 120.0)
        (tmp_path / "go").touch()
        job.wait()  # although it has no restart strategy: the loss is the infrastructure's
    assert _failures(cluster, job) == ["EngineLost"]


def test_an_engine_whose_application_was_ended_at_the_master_is_lost_and_its_job_goes_on(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    """The engine's JVM runs on, with a SparkContext in which nothing works any more."""
    old = engine_jvm(cluster).pid
    with fl.connect(cluster.url) as client:
        job = client.submit(held(tmp_path))
        until("both tasks on executors", lambda: len(list(tmp_path.iterdir())) == 2)
        (application,) = applications(spark)
        spark.end_application(application["id"])

        until("another engine", lambda: _is_another_engine(cluster, old), START_S)
        (tmp_path / "go").touch()
        job.wait()  # although it has no restart strategy: the loss is the infrastructure's
    (lost,) = _exceptions(cluster, job)
    assert lost["exceptionName"] == "EngineLost"
    assert f"the Spark engine died: {spark.url} has ended its application" in lost["stacktrace"]
    assert "Master removed our application" in lost["stacktrace"]


@LONG
def test_python_daemons_of_executors_end_when_they_are_idle(
    spark: SparkStandalone, cluster: Processes, tmp_path: Path
) -> None:
    """Spark starts one for each session and ends none; it ends idle workers after a minute, then the daemon ends."""
    before = python_daemons(spark)
    with fl.connect(cluster.url) as client:
        client.submit(orders(tmp_path)).wait()
    started = python_daemons(spark) - before

    assert started
    until("the end of the daemons", lambda: not started & python_daemons(spark), 240.0)


@LONG
def test_executors_of_dynamic_allocation_end_without_jobs_and_come_back_for_the_next(
    spark: SparkStandalone, tmp_path: Path
) -> None:
    own = Processes(tmp_path / "own")
    own.state_dir.mkdir()
    own.settings = (*settings_of(spark.url, LEASE_S), "spark.app.name=dynamic", *DYNAMIC)

    def cores() -> int:
        return sum(app["cores"] for app in applications(spark) if app["name"] == "dynamic")

    try:
        own.start_jobmanager()
        own.start_taskmanager(settings=(PATIENT,))
        own.await_leader()
        own.await_slots(limit_s=START_S)
        engine = engine_jvm(own).pid
        with fl.connect(own.url) as client:
            for name in ("first", "second"):
                until("no executors", lambda: cores() == 0, 120.0)
                job = client.submit(held(tmp_path / name))
                until("executors", lambda: cores() == 2, START_S)
                until("both tasks", lambda name=name: len(list((tmp_path / name).iterdir())) == 2)
                (tmp_path / name / "go").touch()
                job.wait()
                assert _failures(own, job) == []
        assert engine_jvm(own).pid == engine, "it was not given up for a lack of executors"
    finally:
        own.stop()


@LONG
def test_drivers_that_their_cluster_cannot_serve_are_given_up_in_time_and_say_why(
    spark: SparkStandalone, hidden: Path, tmp_path: Path
) -> None:
    """No worker has as many cores as one executor of these wants; the executors of another see another work directory.

    The job's driver is on a TaskManager with a local engine; the others are engines.
    """
    (tmp_path / "job.yaml").write_text(
        "name: starved\nsteps: {one: {sql: SELECT 1}, rows: {result: {}, inputs: [one]}}\n"
    )
    wanted = (f"spark.master={spark.url}", "spark.executor.cores=3", "spark.driver.host=127.0.0.1")
    patience = "taskmanager.engine.start-timeout=120 s"
    with running_processes(tmp_path / "own", settings=(patience,)) as own:
        own.start_another_taskmanager(1, settings=(*wanted, patience))
        if own_mounts():
            unshared = (*settings_of(spark.url, LEASE_S), f"execution.work-dir={hidden}/work")
            own.start_another_taskmanager(2, settings=(*unshared, PATIENT))
        flags = [part for item in wanted for part in ("-D", item)]
        ran = flintlock(
            "run", "-m", own.url, "--engine", "dedicated", *flags, "job.yaml", cwd=tmp_path, timeout_s=START_S
        )
        assert "starved" in {app["name"] for app in spark.state()["completedapps"]}, "it has registered"
        until("the end of the first engine", lambda: _start_failed(own, 1, "it has no executor after 60 s"), START_S)
        if own_mounts():
            reason = f"write into another directory {hidden}/work than the one that this machine sees"
            until("the end of the second engine", lambda: _start_failed(own, 2, reason), START_S)

    assert ran.returncode == 1
    given_up = (
        r"the job's own Spark driver is given up: it has no executor after \d+ s"  # 60, or when it is looked next
    )
    assert re.search(given_up, ran.stderr), ran.stderr
    assert f"{spark.url} has no free cores or memory for it" in ran.stderr
    assert "It asks for spark.cores.max=2, spark.executor.cores=3" in ran.stderr


def _start_failed(cluster: Processes, index: int, reason: str) -> bool:
    """Return whether the engine of a TaskManager did not start, for this reason."""
    return any(reason in each["reason"] for each in cluster.log_events(f"taskmanager-{index}", "engine-start-failed"))


def test_a_lost_worker_is_sparks_own_business(spark: SparkStandalone, cluster: Processes, tmp_path: Path) -> None:
    """The last test: the worker is gone. Spark repeats its task on the other one, and the attempt goes on."""
    with fl.connect(cluster.url) as client:
        job = client.submit(held(tmp_path))
        until("both tasks on executors", lambda: len(list(tmp_path.iterdir())) == 2)
        old = spark.executors()
        spark.kill_worker(0)
        until("another executor", lambda: spark.executors() - old)
        (tmp_path / "go").touch()
        job.wait()
    assert _failures(cluster, job) == []


def _failures(cluster: Processes, job: fl.JobHandle) -> list[str]:
    return [entry["exceptionName"] for entry in _exceptions(cluster, job)]


def _exceptions(cluster: Processes, job: fl.JobHandle) -> list[dict[str, Any]]:
    history = rest_requests.get(f"{cluster.url}/jobs/{job.id}/exceptions").json()["exceptionHistory"]
    return cast("list[dict[str, Any]]", history["entries"])


def _is_another_engine(cluster: Processes, old: int) -> bool:
    with suppress(StopIteration, psutil.Error):
        return engine_jvm(cluster).pid != old
    return False
