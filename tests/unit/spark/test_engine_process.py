"""How an engine's process is started: with a program in the place of Java that says what it sees, and ends."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from flintlock.host.user_environment import user_environment
from flintlock.model.errors import Unavailable
from flintlock.spark.engine.handle import EngineSettings, SparkEngine
from flintlock.spark.engine.java import Java

#: Prints the environment of its parent, the engine's process, and its own last line.
JAVA = """#!/bin/sh
tr '\\0' '\\n' < "/proc/$PPID/environ"
echo "workers run $PYSPARK_PYTHON, the driver $PYSPARK_DRIVER_PYTHON"
echo "the last line of a JVM"
exit 7
"""


@pytest.fixture
def java(tmp_path: Path) -> Java:
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(JAVA)
    program.chmod(0o755)
    return Java(home=str(tmp_path / "java"), major=17, origin="JAVA_HOME", has_vector_module=False)


def test_the_python_of_workers_is_this_one_unless_the_settings_name_another(java: Java, tmp_path: Path) -> None:
    """The driver's variable travels with each function to executors on other machines, whatever they have."""
    configured = {"spark.pyspark.python": "/opt/python"}
    for conf, workers in (({}, sys.executable), (configured, "/opt/python")):
        log_file = tmp_path / f"{len(conf)}.log"
        settings = EngineSettings(
            java=java,
            scratch_dir=str(tmp_path / "engine"),
            log_file=str(log_file),
            run_dir=str(tmp_path / "run"),
            environment=user_environment({"PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": "/of/the/operator"}),
            conf=conf,
        )

        async def start(settings: EngineSettings = settings) -> None:
            async with SparkEngine.start(settings):
                raise AssertionError("there is no Java")

        with pytest.raises(Unavailable):
            asyncio.run(start())
        assert f"workers run {workers}, the driver {sys.executable}" in log_file.read_text()


def test_the_process_of_an_engine_inherits_what_user_code_does_and_reports_the_end_of_its_log(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """User code can read the environment of the processes of its user."""
    monkeypatch.setenv("SERVICE_PASSWORD", "hidden")
    settings = EngineSettings(
        java=java,
        scratch_dir=str(tmp_path / "engine"),
        log_file=str(tmp_path / "engine.log"),
        run_dir=str(tmp_path / "run"),
        environment={**user_environment({"PATH": "/usr/bin:/bin"}), "PASSED": "shown"},
    )

    async def start() -> None:
        async with SparkEngine.start(settings):
            raise AssertionError("there is no Java")

    with pytest.raises(Unavailable, match=r"exit code 7; the end of .*engine\.log:[\s\S]*the last line of a JVM"):
        asyncio.run(start())
    seen = (tmp_path / "engine.log").read_text()
    assert "PASSED=shown" in seen
    assert "hidden" not in seen
