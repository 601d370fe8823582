"""Engines with executors in pods, as far as that can be tried without Kubernetes: API and pods are stand-ins."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any, cast

from pyarrow import parquet
from tests.cluster.kubernetes_api import running_kubernetes
from tests.cluster.long_tests import LONG
from tests.cluster.processes import Processes, until
from tests.cluster.spark_standalone import orders

import flintlock as fl

LIMIT_S = 300.0


@LONG
def test_an_engine_asks_kubernetes_for_a_pod_for_each_slot_and_works_on_them(tmp_path: Path) -> None:
    with running_kubernetes(tmp_path / "pods") as api:
        cluster = Processes(tmp_path / "cluster")
        cluster.state_dir.mkdir()
        cluster.settings = (
            f"spark.master={api.master}",
            "spark.kubernetes.container.image=registry/flintlock:1",
            f"spark.driver.host={socket.gethostname()}",
            "spark.driver.bindAddress=0.0.0.0",
            "spark.executor.memory=512m",
            "taskmanager.engine.start-timeout=300 s",
        )
        try:
            cluster.start_jobmanager()
            cluster.start_taskmanager()
            cluster.await_slots(limit_s=LIMIT_S)
            with fl.connect(cluster.url) as client:
                client.submit(orders(tmp_path)).wait()
                assert [manager.spark_master for manager in client.task_managers()] == [api.master]
            assert sum(cast("Any", parquet).read_table(tmp_path / "sums").column("s").to_pylist()) == 2999 * 3000

            assert len(api.created) == 2, "one of one core for each slot"
            for pod in api.created:
                (container,) = pod["spec"]["containers"]
                variables = {each["name"]: each.get("value") for each in container["env"]}
                assert container["image"] == "registry/flintlock:1"
                assert container["resources"]["requests"]["cpu"] == "1"
                assert variables["SPARK_EXECUTOR_MEMORY"] == "512m"
                assert f"@{socket.gethostname()}:" in str(variables["SPARK_DRIVER_URL"])
            assert cluster.taskmanager is not None
            cluster.taskmanager.kill()
            until("the end of all executors", lambda: not api.executors(), LIMIT_S)
        finally:
            cluster.stop()
