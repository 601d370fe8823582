"""Runners whose user code misbehaves, on a real engine: each fails its own task, and is reported with its cause."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame
from tests.cluster.runner_harness import (
    OUTPUT_LIMIT,
    RunnerHarness,
    contents,
    pickle_step,
    step,
)

from flintlock.model.ids import StepName
from flintlock.model.jobgraph import EngineKind, Resources
from flintlock.model.operations import Result, Sql
from flintlock.model.tasks import FailureKind

MEMORY = Resources(memory=400 << 20)
NUMBERS = step("numbers", Sql(query="SELECT id FROM range(10)"))


# --- memory


@pytest.mark.parametrize(
    "leak",
    ["kept += [bytes(1 << 20)]", "kept += [pa.array(range(100_000))]", "kept += [np.ones(100_000)]"],
    ids=["python", "arrow", "numpy"],
)
def test_a_runner_that_takes_too_much_memory_fails_with_the_limit(b: RunnerHarness, leak: str) -> None:
    text = f"import pyarrow as pa, numpy as np\nkept = []\nprint('begun')\nfor _ in range(2000):\n    {leak}\n"
    ran = b.run(b.program(text, resources=MEMORY))
    assert ran.failure.kind is FailureKind.OUT_OF_MEMORY
    assert "may use 400m of memory (the `memory` of its steps)" in ran.failure.message
    assert ran.log.startswith("begun")


def test_a_step_that_takes_too_much_memory_is_named(b: RunnerHarness) -> None:
    def hungry(numbers: DataFrame) -> DataFrame:
        kept = [bytes(1 << 20) for _ in range(2000)]
        return numbers.limit(len(kept))

    task = b.task(
        NUMBERS,
        pickle_step("hungry", "numbers"),
        step("r", Result(), "hungry"),
        artifacts=(b.pickled("hungry", hungry),),
        resources=MEMORY,
    )
    failure = b.run(task).failure
    assert (failure.kind, failure.step, failure.exception) == (FailureKind.OUT_OF_MEMORY, "hungry", "MemoryError")
    assert failure.frames[-1].source.startswith("kept = ")


def test_a_runner_has_room_for_spark_arrow_and_pandas_within_its_limit(b: RunnerHarness) -> None:
    text = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
twice = F.pandas_udf(lambda s: s * 2, "long")
print(spark.range(100000).select(twice("id").alias("d")).toPandas()["d"].sum())
"""
    ran = b.run(b.program(text, resources=MEMORY))
    assert ran.finished
    assert ran.log.strip() == "9999900000"


def test_the_driver_of_a_jobs_own_has_its_heap_besides(b: RunnerHarness) -> None:
    text = "from pyspark.sql import SparkSession\nprint(SparkSession.builder.getOrCreate().range(5).count())\n"
    ran = b.run(b.program(text, engine=EngineKind.DEDICATED, resources=MEMORY))
    assert ran.finished
    assert ran.log.strip().endswith("5")


def udf_task(b: RunnerHarness, function: Any) -> Any:
    def applied(numbers: DataFrame) -> DataFrame:
        from pyspark.sql.functions import udf

        return numbers.select(udf(function, "long")("id").alias("n"))

    steps = (NUMBERS, pickle_step("applied", "numbers"), step("r", Result(), "applied"))
    return b.task(*steps, artifacts=(b.pickled("applied", applied),))


def test_a_udf_that_takes_too_much_memory_fails_its_own_job(b: RunnerHarness) -> None:
    def hungry(x: int) -> int:
        return len([bytes(1 << 20) for _ in range(1000)]) + x

    failure = b.run(udf_task(b, hungry)).failure
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "Python workers may use 384m of memory (taskmanager.python-worker.memory)" in failure.message
    assert b.run(udf_task(b, abs)).finished


def test_a_udf_that_ends_its_worker_fails_its_own_job(b: RunnerHarness) -> None:
    def leave(x: int) -> int:
        os._exit(x + 7)

    failure = b.run(udf_task(b, leave)).failure
    assert failure.kind is FailureKind.SPARK_TASK
    assert "Python worker exited unexpectedly" in failure.message
    assert b.run(udf_task(b, abs)).finished


# --- ends


def test_a_crash_is_reported_with_its_line(b: RunnerHarness) -> None:
    failure = b.run(b.program("import ctypes\nctypes.string_at(0)\n")).failure
    assert failure.kind is FailureKind.RUNNER_LOST
    assert "was killed by SIGSEGV" in failure.message
    assert re.search(r'script.py", line 2', failure.message), failure.message


def test_output_without_end_is_cut_and_blocks_nothing(b: RunnerHarness) -> None:
    text = "line = 'x' * 1023\nfor _ in range(100_000):\n    print(line)\nprint('the end')\n"
    ran = b.run(b.program(text))
    assert ran.finished
    assert OUTPUT_LIMIT < len(ran.log) < OUTPUT_LIMIT + (16 << 10)
    assert "bytes are left out here]" in ran.log
    assert ran.log.endswith("the end\n")


def test_output_of_children_is_cut_too(b: RunnerHarness) -> None:
    ran = b.run(b.program("import subprocess\nsubprocess.run('yes | head -c 50000000', shell=True, check=True)\n"))
    assert ran.finished
    assert len(ran.log) < OUTPUT_LIMIT + (16 << 10)


def test_output_of_a_driver_of_its_own_is_cut_too(b: RunnerHarness) -> None:
    text = """
from pyspark.sql import SparkSession
jvm = SparkSession.builder.getOrCreate()._jvm
line = "x" * 10_000
for _ in range(500):
    jvm.System.err.println(line)
    jvm.System.out.println(line)
"""
    ran = b.run(b.program(text, engine=EngineKind.DEDICATED))
    assert ran.finished
    assert OUTPUT_LIMIT < len(ran.log) < OUTPUT_LIMIT + (16 << 10)


def test_a_runner_that_closes_its_output_goes_on(b: RunnerHarness) -> None:
    assert b.run(b.program("import os\nos.close(1)\nos.close(2)\n")).finished


def test_a_runner_that_closes_every_descriptor_fails_its_task(b: RunnerHarness) -> None:
    failure = b.run(b.program("import os\nprint('closing', flush=True)\nos.closerange(0, 4096)\n")).failure
    assert failure.kind is FailureKind.RUNNER_LOST
    assert "connection to its TaskManager" in failure.message
    assert failure.message.endswith("closing")


def test_a_runner_that_writes_into_its_connection_fails_its_task(b: RunnerHarness) -> None:
    text = """
import os, socket, stat
for fd in range(3, 200):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode) and socket.socket(fileno=os.dup(fd)).family == socket.AF_UNIX:
            os.write(fd, b"\\0\\0\\0\\5hello")
    except OSError:
        pass
"""
    assert b.run(b.program(text)).failure.kind is FailureKind.RUNNER_LOST


# --- what it leaves

DAEMON = """
import os, sys, time
def daemon(depth):
    if os.fork() == 0:
        os.setsid()
        if depth:
            daemon(depth - 1)
        sys.stdout.write(f"{os.getpid()}\\n")
        sys.stdout.flush()
        while True:
            time.sleep(1)
"""


def _over(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_got_away_from_a_runner_ends_with_it_and_its_neighbours_does_not(b: RunnerHarness) -> None:
    """Daemons of daemons, each in a session of its own."""
    waiting = f"{DAEMON}\ndaemon(0)\nimport threading\nthreading.Event().wait()\n"
    stays = b.program(waiting)

    async def scenario() -> tuple[list[int], list[int]]:
        keeper = await b.pool.take_process(stays)

        async def serve() -> None:
            async for _ in keeper.run(stays, str(b.log_of(stays)), contents(stays.graph)):
                pass

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve())
            await b.until(lambda: b.log_of(stays).exists() and len(b.log_of(stays).read_text().split()) == 1)
            theirs = [int(pid) for pid in b.log_of(stays).read_text().split()]
            marks = b.path("marks")
            leaving = f"{DAEMON}\ndaemon(3)\nwhile not os.path.exists({marks!r}):\n    time.sleep(0.01)\n"
            left = b.program(leaving)

            async def once_they_run(_: Any) -> None:
                await b.until(lambda: len(b.log_of(left).read_text().split()) == 4)
                Path(marks).touch()

            ran = await b.ran(left, during=once_they_run)
            gone = [int(pid) for pid in ran.log.split()]
            assert len(gone) == 4
            assert all(_over(pid) for pid in gone), "reported as ended only when all of its processes have"
            assert not any(_over(pid) for pid in theirs)
            await b.end(keeper)
        return gone, theirs

    _, theirs = b.loop.run(scenario())
    assert all(_over(pid) for pid in theirs)


# --- lost inputs

STEPS = (
    NUMBERS,
    step("clean", Sql(query="SELECT id FROM numbers"), "numbers", blocking=True),
    step("other", Sql(query="SELECT id + 1 AS id FROM numbers"), "numbers", blocking=True),
    step("joined", Sql(query="SELECT count(*) FROM clean JOIN other USING (id)"), "clean", "other"),
    step("r", Result(), "joined"),
)


def remove(directory: str) -> None:
    for path in Path(directory).iterdir():
        path.unlink()
    Path(directory).rmdir()


def test_missing_results_of_other_regions_are_reported_by_step(b: RunnerHarness) -> None:
    inputs = b.run(b.task(*STEPS, region=0, work_dir=b.path("inputs"))).finished.materialised
    assert set(inputs) == {"clean", "other"}
    remove(inputs[StepName("other")])
    failure = b.run(b.task(*STEPS, region=1, inputs=inputs)).failure
    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, ("other",))
    assert "'other'" in failure.message
    for file in Path(inputs[StepName("clean")]).iterdir():
        file.unlink()
    failure = b.run(b.task(*STEPS, region=1, inputs=inputs)).failure
    assert failure.kind is FailureKind.MISSING_INPUT
    assert set(failure.missing) == {"clean", "other"}, "all that are gone are reported together"


def test_a_file_that_goes_while_it_is_read_is_a_lost_input(b: RunnerHarness) -> None:
    def late(clean: DataFrame, spark: Any, params: dict[str, Any]) -> DataFrame:
        clean.createOrReplaceTempView("listed")  # holds the list of files
        for path in Path(params["dir"]).glob("*.parquet"):
            path.unlink()
        return spark.table("listed")

    steps = (
        NUMBERS,
        step("clean", Sql(query="SELECT id FROM numbers"), "numbers", blocking=True),
        pickle_step("late", "clean"),
        step("r", Result(), "late"),
    )
    more: dict[str, Any] = {"artifacts": (b.pickled("late", late),)}
    inputs = b.run(b.task(*steps, region=0, work_dir=b.path("inputs"), **more)).finished.materialised
    params = {"dir": inputs[StepName("clean")]}
    failure = b.run(b.task(*steps, region=1, inputs=inputs, params=params, **more)).failure
    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, ("clean",))


@pytest.mark.parametrize("how", ["gone", "truncated", "replaced"])
def test_a_result_of_which_a_part_is_gone_is_a_missing_input_and_never_fewer_rows(b: RunnerHarness, how: str) -> None:
    made = b.run(b.task(*STEPS, region=0, work_dir=b.path("inputs"))).finished
    rows = {output.step: output.rows for output in made.outputs}
    assert {step: manifest.rows for step, manifest in made.manifests.items()} == rows
    directory = Path(made.materialised[StepName("other")])
    first, *others = sorted(directory.glob("*.parquet"))
    assert others, "the rest of the rows is still there"
    match how:
        case "gone":
            first.unlink()
        case "truncated":
            os.truncate(first, first.stat().st_size // 2)
        case _:
            first.write_bytes(first.read_bytes() + others[0].read_bytes())

    failure = b.run(b.task(*STEPS, region=1, inputs=made.materialised, manifests=made.manifests)).failure

    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, ("other",))
    assert first.name in failure.message


def test_a_damaged_file_of_another_region_is_a_missing_input(b: RunnerHarness) -> None:
    """Its length is right: Hadoop's checksum of local files shows it."""
    made = b.run(b.task(*STEPS, region=0, work_dir=b.path("inputs"))).finished
    first = min(Path(made.materialised[StepName("other")]).glob("*.parquet"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)

    failure = b.run(b.task(*STEPS, region=1, inputs=made.materialised, manifests=made.manifests)).failure

    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, ("other",))


def test_a_job_that_ignores_missing_files_of_its_sources_does_not_ignore_those_of_other_regions(
    b: RunnerHarness,
) -> None:
    def late(clean: DataFrame, spark: Any, params: dict[str, Any]) -> DataFrame:
        clean.createOrReplaceTempView("listed")  # holds the list of files
        min(Path(params["dir"]).glob("*.parquet")).unlink()
        return spark.table("listed")

    steps = (
        NUMBERS,
        step("clean", Sql(query="SELECT id FROM numbers"), "numbers", blocking=True),
        pickle_step("late", "clean"),
        step("r", Result(), "late"),
    )
    more: dict[str, Any] = {
        "artifacts": (b.pickled("late", late),),
        "config": {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"},
    }
    inputs = b.run(b.task(*steps, region=0, work_dir=b.path("inputs"), **more)).finished.materialised
    params = {"dir": inputs[StepName("clean")]}
    failure = b.run(b.task(*steps, region=1, inputs=inputs, params=params, **more)).failure
    assert (failure.kind, failure.missing) == (FailureKind.MISSING_INPUT, ("clean",))


# --- what jobs see of each other


def test_settings_views_and_artifacts_of_one_job_are_invisible_to_another(b: RunnerHarness) -> None:
    """While the first one's session is open."""
    done, go = b.path("done"), b.path("go")
    module = b.artifact("only_mine.py", b"VALUE = 1\n")
    first = f"""
import os, tempfile, time, only_mine
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "77")
spark.conf.set("spark.my.own", "secret")
spark.range(3).createOrReplaceTempView("mine")
later = os.path.join(tempfile.mkdtemp(), "later_mine.py")
with open(later, "w") as file:
    file.write("VALUE = 2\\n")
spark.addArtifact(later, pyfile=True)
def value(x):
    import only_mine, later_mine
    return only_mine.VALUE + later_mine.VALUE
assert spark.range(1).select(F.udf(value, "long")("id")).collect()[0][0] == 3
spark.udf.register("value", value, "long")
open({done!r}, "w").close()
while not os.path.exists({go!r}):
    time.sleep(0.01)
assert spark.conf.get("spark.sql.shuffle.partitions") == "77"
assert spark.table("mine").count() == 3
"""
    second = """
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.getOrCreate()
def imported(x):
    found = []
    for name in ("only_mine", "later_mine"):
        try:
            __import__(name)
            found.append(name)
        except ImportError:
            pass
    return ",".join(found)
print("partitions", spark.conf.get("spark.sql.shuffle.partitions"))
print("own", spark.conf.get("spark.my.own", "-"))
print("view", spark.catalog.tableExists("mine"))
print("function", spark.catalog.functionExists("value"))
print("modules", spark.range(1).select(F.udf(imported, "string")("id")).collect()[0][0] or "-")
"""

    async def beside(_: Any) -> None:
        await b.until(lambda: Path(done).exists())
        other = await b.ran(b.program(second))
        Path(go).touch()
        assert other.finished
        assert other.log.splitlines() == ["partitions 2", "own -", "view False", "function False", "modules -"]

    assert b.loop.run(b.ran(b.program(first, artifacts=(module,)), during=beside)).finished
