"""Which paths executors share: decided by what they write and find, and by nothing that is uncertain."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from flintlock.spark.engine.executors.shared_paths import MISSING, SharedPaths, a_file_of, nearest_directory
from flintlock.spark.engine.publication.hadoop_files import FileFailure

TASKS = 4


class Failed(Py4JJavaError):
    """An error of the JVM, without one."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Executors:
    """Executors of which some write and read elsewhere: each task that arrives has its file."""

    def __init__(self, *, arriving: int = TASKS, error: str = "") -> None:
        self.arriving = arriving
        self.error = error
        self.queries: list[str] = []

    def run(self, *queries: str) -> None:
        *_, query = queries
        self.queries.append(query)
        if self.error:
            raise Failed(self.error)
        if (wanted := re.search(r"count\(\*\) >= (\d+)", query)) is not None and int(wanted[1]) > self.arriving:
            raise Failed(f"[USER_RAISED_EXCEPTION] {MISSING}")
        if (written := re.match("INSERT OVERWRITE DIRECTORY 'file://(.*?)' USING", query)) is not None:
            place = Path(written[1].replace("\\'", "'"))
            place.mkdir()
            (place / "_SUCCESS").touch()
            for number in range(self.arriving):
                (place / f"part-{number}.parquet").touch()


class Local:
    """Everything but `hdfs:` is local, and `abfss:` cannot be opened without the settings of a job."""

    def local_path(self, path: str) -> Path | None:
        if path.startswith("abfss:"):
            raise FileFailure(f"cannot find {path}: no key", permanent=True)
        return None if path.startswith("hdfs:") else Path(path)


def paths(executors: Executors) -> SharedPaths:
    return SharedPaths(Local(), executors.run, lambda: TASKS)


def test_a_directory_is_shared_if_the_file_of_every_task_is_there(tmp_path: Path) -> None:
    assert paths(Executors()).is_shared(str(tmp_path))
    assert not paths(Executors(arriving=TASKS - 1)).is_shared(str(tmp_path)), "one of the machines writes elsewhere"
    assert not paths(Executors(arriving=0)).find_unshared([], []), "no path, no query"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_an_output_is_tested_in_the_nearest_directory_and_once(tmp_path: Path) -> None:
    executors, target = Executors(), tmp_path / "it's" / "out"
    (tmp_path / "it's").mkdir()
    shared = paths(executors)
    assert shared.find_unshared([str(target), str(target)], []) is None
    assert len(executors.queries) == 1
    assert f"file://{tmp_path}/it\\'s/.flintlock-shared-" in executors.queries[0]
    assert not target.exists()
    executors.arriving = 1
    assert shared.find_unshared([str(target)], []) is None, "confirmed before"
    assert shared.find_unshared([str(tmp_path)], []) == str(tmp_path)
    assert shared.find_unshared([str(tmp_path)], []) == str(tmp_path), "a refusal is not remembered"


def test_an_output_that_cannot_be_tested_is_left_to_the_job(tmp_path: Path) -> None:
    executors = Executors(error="AccessControlException: Permission denied")
    assert paths(executors).find_unshared([str(tmp_path)], []) is None
    with pytest.raises(Py4JJavaError):
        paths(executors).is_shared(str(tmp_path))


def test_other_file_systems_are_the_same_everywhere() -> None:
    executors = Executors(arriving=0)
    assert paths(executors).find_unshared(["hdfs:///out"], ["hdfs:///in"]) is None
    assert paths(executors).is_shared("hdfs:///work")
    assert executors.queries == []


def test_a_source_is_looked_up_by_every_task_and_refused_only_if_its_file_is_here(tmp_path: Path) -> None:
    file = tmp_path / "in" / "day=1" / "part-0"
    file.parent.mkdir(parents=True)
    file.write_text("rows")
    (tmp_path / "in" / "_SUCCESS").touch()
    source = str(tmp_path / "in")
    executors = Executors()
    assert paths(executors).find_unshared([], [source]) is None
    assert executors.queries[0].count(f"binaryFile.`file://{file}`") == TASKS

    missing = Executors(arriving=TASKS - 1)
    assert paths(missing).find_unshared([], [source]) == source
    assert paths(Executors(error="out of memory")).find_unshared([], [source]) is None
    assert paths(missing).find_unshared([], [f"{source}/*", str(tmp_path / "none")]) is None

    def remove(*_queries: str) -> None:
        file.unlink()
        raise Failed(MISSING)

    assert SharedPaths(Local(), remove, lambda: TASKS).find_unshared([], [source]) is None, "another job removed it"


def test_where_a_path_is_tested(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert nearest_directory(tmp_path / "a" / "b") == tmp_path
    assert nearest_directory(tmp_path / "file") == tmp_path
    assert a_file_of(tmp_path / "file") == tmp_path / "file"
    assert a_file_of(tmp_path / "none") is None


def test_a_path_that_only_the_job_can_open_is_left_to_the_job() -> None:
    executors = Executors()
    assert paths(executors).find_unshared(["abfss://data/out"], ["abfss://data/in"]) is None
    assert executors.queries == []
