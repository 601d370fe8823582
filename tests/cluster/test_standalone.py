"""An engine whose executors are on a Spark standalone cluster: a real master and two workers."""

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
from tests.cluster.processes import Processes, until
from tests.cluster.spark_standalone import SparkStandalone, running_standalone

import flintlock as fl
from flintlock.spark.engine.java import find_java
from flintlock.testing import rest_requests

pytestmark = pytest.mark.skipif(
    not find_java(os.environ).has_vector_module, reason="executors need a Java with the module jdk.incubator.vector"
)

#: As short as the time that a leader may take to come back allows.
LEASE_S = 20


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkStandalone]:
    with running_standalone(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(spark: SparkStandalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager and a TaskManager with two slots; the workers have four cores."""
    processes = Processes(tmp_path_factory.mktemp("on-standalone"))
    processes.settings = (
        f"spark.master={spark.url}",
        "spark.executor.memory=512m",
        "spark.driver.host=127.0.0.1",
        "spark.driver.bindAddress=127.0.0.1",
        f"heartbeat.timeout={LEASE_S} s",
        "heartbeat.interval=1 s",
        "high-availability.recovery-time=5 s",
    )
    try:
        processes.start_jobmanager()
        processes.start_taskmanager()
        processes.await_leader()
        processes.await_slots()
        yield processes
    finally:
        processes.stop()


def applications(spark: SparkStandalone) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", spark.state().get("activeapps", []))


def executors() -> set[int]:
    """Return the processes of executors on this machine."""
    found: set[int] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


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


def waiting(seconds: int) -> fl.Job:
    """A job that runs on executors for so long."""
    job = fl.Job("waiting")
    text = f"SELECT java_method('java.lang.Thread', 'sleep', cast({seconds * 1000} + id * 0 AS bigint)) FROM range(1)"
    job.result("slept", job.sql("slow", text))
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


def test_the_death_of_an_engine_leaves_no_executor_behind(spark: SparkStandalone, cluster: Processes) -> None:
    before = {app["id"] for app in applications(spark)}
    old = executors()
    with fl.connect(cluster.url) as client:
        job = client.submit(waiting(3))
        until("a running task", lambda: _runs(cluster, job.id) or None)
        engine_jvm(cluster).send_signal(signal.SIGKILL)
        job.wait()  # done by the next engine

    until("the end of the old executors", lambda: not old & executors() or None, 30.0)
    assert not before & {app["id"] for app in applications(spark)}


def test_an_engine_whose_application_the_master_has_forgotten_is_started_again(
    spark: SparkStandalone, cluster: Processes
) -> None:
    """A master that is killed and started again without recovery has the executors killed, and gives no others."""
    old = engine_jvm(cluster).pid
    spark.kill_master()
    spark.start_master()
    spark.await_workers()

    until("another engine", lambda: _is_another_engine(cluster, old) or None, LEASE_S + 120.0)
    cluster.await_slots()
    with fl.connect(cluster.url) as client:
        client.submit(waiting(0)).wait()


def _runs(cluster: Processes, job_id: str) -> bool:
    vertices = rest_requests.get(f"{cluster.url}/jobs/{job_id}").json()["vertices"]
    return any(vertex["status"] == "RUNNING" for vertex in vertices)


def _is_another_engine(cluster: Processes, old: int) -> bool:
    with suppress(StopIteration, psutil.Error):
        return engine_jvm(cluster).pid != old
    return False
