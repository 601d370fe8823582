"""What a TaskManager starts its engine with, and with which settings it starts none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flintlock.config.configuration import Configuration
from flintlock.model.errors import Invalid
from flintlock.spark.engine.conf import engine_conf
from flintlock.spark.launcher import LocalEngineLauncher

CONTAINER = "container_1700000000000_0007_01_000002"


def launcher(place: Path, *, work_dir: str = "/shared/work", **values: str) -> LocalEngineLauncher:
    """Return that of a TaskManager with these settings."""
    return LocalEngineLauncher(
        slots=2,
        configuration=Configuration({key.replace("__", "."): value for key, value in values.items()}),
        run_dir=place,
        files_dir=place,
        user=None,
        log_file=place / "log" / "engine.log",
        work_dir=work_dir,
        checkpoints_dir="/shared/checkpoints",
        archive_dir=place,
        secrets_dir=place,
    )


def refusal(given: LocalEngineLauncher) -> str:
    """Return why no engine is started."""

    async def open_engine() -> None:
        async with given.open():
            raise AssertionError("it was started")

    with pytest.raises(Invalid) as raised:
        asyncio.run(open_engine())
    return raised.value.public


def test_idle_python_daemons_end_on_yarn_if_the_task_manager_is_a_container_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then all nodes have Flintlock. The variable by which it knows is not one that user code inherits."""
    monkeypatch.delenv("CONTAINER_ID", raising=False)
    outside = engine_conf(launcher(tmp_path, spark__master="yarn").engine_settings(None))
    monkeypatch.setenv("CONTAINER_ID", CONTAINER)
    settings = launcher(tmp_path, spark__master="yarn").engine_settings(None)

    assert "spark.python.daemon.module" not in outside
    assert engine_conf(settings)["spark.python.daemon.module"] == "flintlock.spark.engine.python.python_daemon"
    assert "CONTAINER_ID" not in settings.environment


def test_requirements_of_a_cluster_that_its_executors_would_not_find_are_refused(tmp_path: Path) -> None:
    given = launcher(tmp_path, work_dir="hdfs:///work", spark__master="yarn", python__requirements="/etc/requirements")

    assert "it needs an execution.work-dir that is mounted on all machines" in refusal(given)


@pytest.mark.parametrize("missing", ["spark.pyspark.python", "spark.yarn.jars"])
def test_executors_on_yarn_do_not_have_a_python_that_is_shipped_with_flintlock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("CONTAINER_ID", CONTAINER)
    values = {"spark.master": "yarn", "spark.pyspark.python": "/opt/python", "spark.yarn.jars": "hdfs:///spark/*"}
    del values[missing]

    assert "executors have neither the Python that is shipped" in refusal(
        launcher(tmp_path, **values, **{"yarn.python": "environment.tar.gz/bin/python"})
    )
