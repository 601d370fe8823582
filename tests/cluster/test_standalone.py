"""An engine whose executors are on a Spark standalone cluster: a real master and two workers.

One of the workers does not see all directories of this machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until
from tests.cluster.spark_standalone import (
    SparkStandalone,
    held,
    numbers,
    own_mounts,
    running_standalone,
    settings_of,
)
from tests.cluster.test_dependencies import write_wheel

import flintlock as fl
from flintlock.model.errors import JobFailed
from flintlock.spark.engine.java import find_java
from flintlock.testing import rest_requests

pytestmark = pytest.mark.skipif(
    not find_java(os.environ).has_vector_module, reason="executors need a Java with the module jdk.incubator.vector"
)

#: As short as the time that a leader may take to come back allows.
LEASE_S = 20
#: What an engine and its executors, four JVMs, may take to start on a busy machine.
START_S = 600.0
PATIENT = f"taskmanager.engine.start-timeout={START_S:g} s"

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


def engine_jvm(cluster: Processes) -> psutil.Process:
    assert cluster.taskmanager is not None
    below = psutil.Process(cluster.taskmanager.pid).children(recursive=True)
    return next(process for process in below if "org.apache.spark.deploy.SparkSubmit" in process.cmdline())


def orders(path: Path) -> fl.Job:
    """A job with a Python function, a blocking exchange and two sinks."""
    job = fl.Job("orders")
    numbers = job.sql("numbers", "SELECT id, id % 3 AS k FROM range(0, 3000, 1, 4)", exchange="blocking")

    @job.step(inputs=[numbers])
    def doubled(numbers: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        def twice(value: int) -> int:
            return value * 2

        return numbers.select("k", udf(twice, "long")("id").alias("twice"))

    job.sink("rows", numbers, format="parquet", path=str(path / "rows"))
    job.sink("sums", job.sql("sums_of", "SELECT k, sum(twice) AS s FROM doubled GROUP BY k", inputs=[doubled]),
             format="parquet", path=str(path / "sums"), partition_by=["k"])  # fmt: skip
    return job


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
    history = rest_requests.get(f"{cluster.url}/jobs/{job.id}/exceptions").json()["exceptionHistory"]
    return [entry["exceptionName"] for entry in history["entries"]]


def _is_another_engine(cluster: Processes, old: int) -> bool:
    with suppress(StopIteration, psutil.Error):
        return engine_jvm(cluster).pid != old
    return False
