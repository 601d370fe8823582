"""Dependencies that a job brings itself, on a real cluster. Nothing is downloaded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
import zipfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes

from flintlock.model.errors import Unavailable
from flintlock.model.ids import AttemptId, BlobKey, JobId, RegionId
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, JobGraph
from flintlock.model.regions import Region
from flintlock.model.tasks import DeployTask, FailureKind, TaskFailed
from flintlock.spark.cluster_environment import cluster_environment
from flintlock.spark.engine.jvm import spark_home
from flintlock.spark.environments import environment_places, remove_unused
from flintlock.spark.runner.pool import PoolSettings, runner_pool
from flintlock.spark.runner_messages import DedicatedEngine

READS_A_RESOURCE = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
loader = spark.sparkContext._jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
print("on the class path:", loader.getResource("flintlock-sample.txt") is not None, spark.range(3).count())
"""


def test_a_jar_is_sent_with_a_job_and_is_on_the_class_path_of_its_own_driver(
    standing: Processes, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "own.jar", "w") as jar:
        jar.writestr("flintlock-sample.txt", "a resource")
    (tmp_path / "script.py").write_text(READS_A_RESOURCE)
    (tmp_path / "job.yaml").write_text("name: jar\njars: [own.jar]\nsteps:\n  script: {program: {file: script.py}}\n")
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "jars need a Spark driver of its own: the job runs on a dedicated engine" in ran.stderr
    assert "on the class path: True 3" in ran.stdout


def test_a_jar_of_the_settings_that_is_not_there_fails_the_job_by_its_name(standing: Processes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('never')\n")
    missing = tmp_path / "none.jar"
    ran = flintlock("run", "-m", standing.url, "-D", f"spark.jars={missing}", "script.py", cwd=tmp_path)

    assert ran.returncode == 1
    assert f"spark.jars names '{missing}', which is not a file on this machine" in ran.stderr
    assert "never" not in ran.stdout


USES_A_PACKAGE = """
import sys
import flintlock_tiny
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()


@udf("string")
def in_a_worker(x):
    import sys
    import flintlock_tiny

    return f"{flintlock_tiny.VALUE + x} {sys.prefix == PREFIX}"


PREFIX = sys.prefix
print("runner", flintlock_tiny.VALUE, "worker", spark.range(1, 2).select(in_a_worker("id")).first()[0])
"""


def write_wheel(folder: Path, version: str, module: str, package: str = "flintlock_tiny") -> str:
    """Write a wheel of one module, which needs nothing else, and return its name."""
    name, info = f"{package}-{version}-py3-none-any.whl", f"{package}-{version}.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{package}.py", module)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name


def test_requirements_are_installed_once_for_runner_and_workers_and_no_other_job_sees_them(
    standing: Processes, tmp_path: Path
) -> None:
    wheel = write_wheel(tmp_path, "1.0", f"VALUE = 41  # {uuid.uuid4()}: built in no earlier run of this test\n")
    (tmp_path / "requirements.txt").write_text(f"./{wheel}\n")
    (tmp_path / "script.py").write_text(USES_A_PACKAGE)
    first = flintlock("run", "-m", standing.url, "--requirements", "requirements.txt", "script.py", cwd=tmp_path)
    again = flintlock("run", "-m", standing.url, "--requirements", "requirements.txt", "script.py", cwd=tmp_path)
    without = flintlock("run", "-m", standing.url, "script.py", cwd=tmp_path)

    assert first.returncode == 0, first.stdout + first.stderr
    assert "runner 41 worker 42 True" in first.stdout
    assert "Successfully installed" in first.stdout
    assert "runner 41 worker 42 True" in again.stdout, again.stdout + again.stderr
    assert "installed" not in again.stdout
    assert without.returncode == 1
    assert "No module named 'flintlock_tiny'" in without.stderr


def test_requirements_that_cannot_be_installed_fail_the_job_once_with_the_last_lines_of_pip(
    standing: Processes, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("--no-index\nflintlock-no-such-package==1\n")
    (tmp_path / "script.py").write_text("print('never')\n")
    (tmp_path / "job.yaml").write_text(
        "name: retried\nrequirements: requirements.txt\nsteps:\n  script: {program: {file: script.py}}\n"
        "config: {restart-strategy.type: fixed-delay, restart-strategy.fixed-delay.attempts: 3}\n"
    )
    ran = flintlock("run", "-m", standing.url, "job.yaml", cwd=tmp_path)

    assert ran.returncode == 1
    assert "the requirements cannot be installed:" in ran.stderr
    assert "No matching distribution found for flintlock-no-such-package==1" in ran.stderr
    assert "failures (oldest first)" not in ran.stderr  # one attempt
    assert "never" not in ran.stdout


def test_the_requirements_of_a_cluster_are_installed_into_an_environment_that_has_its_own_pyspark(
    tmp_path: Path,
) -> None:
    """Without Spark: what a TaskManager does before it starts an engine."""
    wheel = write_wheel(tmp_path, "2.0", "VALUE = 2\n")
    (tmp_path / "requirements.txt").write_text(f"./{wheel}\npyspark\n")
    (tmp_path / "wrong.txt").write_text("--no-index\npyspark==1.0\n")
    code = "import flintlock_tiny, flintlock, pyspark; print(flintlock_tiny.VALUE, pyspark.__file__)"

    def opened(requirements: str) -> AbstractAsyncContextManager[str]:
        return cluster_environment(
            requirements,
            cache=tmp_path / "cache",
            run_dir=tmp_path / "run",
            log_file=tmp_path / "engine.log",
            environment=os.environ,
        )

    async def scenario() -> None:
        async with opened("") as python:
            assert python == sys.executable
        async with opened(str(tmp_path / "requirements.txt")) as python:
            printed = await asyncio.to_thread(subprocess.check_output, [python, "-P", "-c", code], text=True)
            assert printed.split() == ["2", str(spark_home() / "__init__.py")]
            remove_unused(tmp_path / "cache", kept=0)
            assert Path(python).exists()  # it is in use
        remove_unused(tmp_path / "cache", kept=0)
        assert not Path(python).exists()
        with pytest.raises(Unavailable, match=r"wrong\.txt cannot be built: the requirements cannot be installed"):
            async with opened(str(tmp_path / "wrong.txt")):
                pass
        assert "Successfully installed" in (tmp_path / "engine.log").read_text()

    asyncio.run(scenario())


def test_a_job_whose_executors_would_not_find_its_environment_fails_before_that_is_built(tmp_path: Path) -> None:
    """No engine is needed for that: where executors work is known from the settings, here from those of the job."""
    (tmp_path / "requirements.txt").write_text("no-such-package-of-flintlock\n")
    artifact = Artifact(name="requirements.txt", blob=BlobKey("b"), size=1, kind=ArtifactKind.REQUIREMENTS)
    job, config = JobId("ab" * 16), {"spark.master": "yarn"}
    task = DeployTask(
        attempt=AttemptId(job_id=job, region=RegionId(0), attempt=0),
        graph=JobGraph(job_id=job, name="j", engine=EngineKind.DEDICATED, config=config, artifacts=(artifact,)),
        region=Region(id=RegionId(0), steps=()),
        slots=(0,),
    )
    settings = PoolSettings(
        scratch_dir=str(tmp_path / "scratch"),
        run_dir=str(tmp_path / "run"),
        warm=0,
        dedicated=DedicatedEngine(run_dir=""),
        environments=environment_places(tmp_path / "caches", "hdfs:///work"),
    )

    async def run() -> object:
        async with runner_pool(settings) as pool:
            runner = await pool.take(task)
            contents = {"requirements.txt": str(tmp_path / "requirements.txt")}
            news = [each async for each in runner.run(task, str(tmp_path / "log"), contents)]
            await runner.kill()
            return news[-1]

    outcome = asyncio.run(run())
    assert isinstance(outcome, TaskFailed)
    assert outcome.failure.kind is FailureKind.CONFIGURATION
    assert "it needs an execution.work-dir that is mounted on all machines" in outcome.failure.message
    assert not (tmp_path / "caches").exists()
