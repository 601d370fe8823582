"""What a program writes into the directory of its task, which is removed with it, is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.proto import commands_pb2, relations_pb2

from flintlock.model.tasks import Failure, FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.programs.task_directory import TaskDirectory

PROBLEM = "the script is not on this TaskManager's host"

USES = """
import os, sqlite3, sys
from pathlib import Path
from flintlock.spark.region.programs.task_directory import TaskDirectory

here, other = Path(sys.argv[1]), Path(sys.argv[2])
sys.addaudithook(TaskDirectory(here, "PROBLEM").observe)
def refused(use):
    try:
        use()
    except PermissionError as error:
        return "PROBLEM" in str(error)
    return False

print([
    refused(lambda: open(here / "new.txt", "w")), refused(lambda: (here / "lib" / "new").mkdir()),
    refused(lambda: os.rename(other / "mine.txt", here / "mine.txt")), refused(lambda: open(here / "sent.txt", "a")),
    refused(lambda: os.open(here / "raw", os.O_WRONLY | os.O_CREAT)), refused(lambda: sqlite3.connect(here / "new.db")),
    refused(lambda: os.symlink(other, here / "link")),
])
print([
    refused(lambda: open(here / "sent.txt").close()), refused(lambda: open(other / "new.txt", "w").close()),
    refused(lambda: (here / ".driver" / "tmp").mkdir()), refused(lambda: os.listdir(here)),
    refused(lambda: sqlite3.connect(":memory:").close()), refused(lambda: sqlite3.connect(here / "sent.txt").close()),
])
os.chdir(here)
print(refused(lambda: open("mine.txt", "w")), refused(lambda: open("lib/../sent.txt").close()))
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    made = tmp_path / "scratch"
    (made / "lib").mkdir(parents=True)
    (made / "sent.txt").touch()
    return made


def test_what_python_writes_there_is_refused(scratch: Path, tmp_path: Path) -> None:
    """In a process of its own: what watches it stays."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").touch()
    (scratch / ".driver").mkdir()

    ran = subprocess.run(
        [sys.executable, "-c", USES, str(scratch), str(other)], capture_output=True, text=True, check=False
    )

    assert ran.stdout.splitlines() == [str([True] * 7), str([False] * 6), "True False"], ran.stderr
    assert sorted(path.name for path in scratch.iterdir()) == [".driver", "lib", "sent.txt"]


CLASSIC = """
import sys
from pathlib import Path
from pyspark.core.rdd import RDD
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter
from flintlock.spark.region.programs.task_directory import TaskDirectory

here = sys.argv[1]
TaskDirectory(Path(here), "PROBLEM").watch_writers()
batch, stream, rows = (object.__new__(kind) for kind in (DataFrameWriter, DataStreamWriter, RDD))
def refused(use):
    try:
        use()
    except PermissionError as error:
        return "PROBLEM" in str(error)
    except AttributeError:  # there is no JVM
        return False

print([
    refused(lambda: batch.parquet(f"{here}/out")), refused(lambda: batch.save(path=f"file://{here}/out")),
    refused(lambda: batch.option("path", f"{here}/out")), refused(lambda: stream.start(f"{here}/out")),
    refused(lambda: stream.option("checkpointLocation", f"file:{here}/state")),
    refused(lambda: rows.saveAsTextFile(f"{here}/out")), refused(lambda: stream.start(checkpointLocation=f"{here}/s")),
])
print([
    refused(lambda: batch.parquet("/data/out")), refused(lambda: batch.csv("out", sep=",")),
    refused(lambda: stream.start()), refused(lambda: batch.option("header", True)),
])
"""


def test_what_classic_pyspark_writes_there_is_refused(scratch: Path) -> None:
    """In a process of its own: its classes are changed."""
    ran = subprocess.run([sys.executable, "-c", CLASSIC, str(scratch)], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == [str([True] * 7), str([False] * 4)], ran.stderr


def writing(path: str, options: dict[str, str] | None = None) -> Any:
    command: Any = commands_pb2.Command()
    command.write_operation.source = "parquet"
    command.write_operation.path = path
    command.write_operation.options.update(options or {})
    return command


def streaming(path: str, **options: str) -> Any:
    command: Any = commands_pb2.Command()
    command.write_stream_operation_start.path = path
    command.write_stream_operation_start.options.update(options)
    return command


def test_what_spark_connect_writes_there_is_refused(scratch: Path) -> None:
    directory = TaskDirectory(scratch, PROBLEM)
    model: Any = commands_pb2.Command()
    model.ml_command.write.path = f"{scratch}/model"
    for command in (
        writing(f"{scratch}/out"),
        writing((scratch / "out").as_uri()),
        writing("", {"path": f"file:{scratch}/out"}),
        streaming("/elsewhere", checkpointLocation=f"{scratch}/state"),
        model,
    ):
        with pytest.raises(TaskError, match=rf"where it would be lost: .*because {PROBLEM}") as caught:
            directory.check_plan(command)
        assert caught.value.kind is FailureKind.CONFIGURATION


def test_other_plans_of_spark_connect_are_not_refused(scratch: Path) -> None:
    directory = TaskDirectory(scratch, PROBLEM)
    reading: Any = relations_pb2.Relation()
    reading.read.data_source.paths.append(f"{scratch}/sent.txt")
    for message in (reading, writing("/data/out"), writing("s3a://bucket/x"), writing(f"{scratch}-2/out"), writing("")):
        directory.check_plan(message)


def test_files_that_were_left_there_fail_the_program(scratch: Path) -> None:
    directory = TaskDirectory(scratch, "")
    (scratch / ".driver").mkdir()
    (scratch / ".driver" / "spark.properties").touch()
    (scratch / "lib" / "__pycache__").mkdir()
    (scratch / "lib" / "__pycache__" / "x.pyc").touch()
    directory.check_end()

    (scratch / "out").mkdir()
    for number in range(5):
        (scratch / "out" / f"part-{number}").touch()
    with pytest.raises(
        TaskError, match=r"has written 'out/part-0', 'out/part-1', 'out/part-2' and 2 more into the directory of its"
    ):
        directory.check_end()


def test_an_error_about_a_file_that_is_not_there_says_how_to_send_it(scratch: Path) -> None:
    directory = TaskDirectory(scratch, PROBLEM)

    def explained(message: str) -> str:
        return directory.explained(Failure(kind=FailureKind.USER_CODE, message=message)).message

    hint = (
        "\n'in/conf.yaml' is not beside the script where that runs: a copy in the directory of its task, because"
        f" {PROBLEM}. Send the files that it reads along (--files)"
    )
    for text in (f"No such file or directory: '{scratch}/in/conf.yaml'", f"There is no file:{scratch}/in/conf.yaml."):
        assert explained(text) == text + hint
    assert explained(f"sent, but wrong: {scratch}/sent.txt") == f"sent, but wrong: {scratch}/sent.txt"
    assert explained("no path") == "no path"
