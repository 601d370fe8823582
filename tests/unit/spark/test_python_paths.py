"""Python's relative paths in a program whose directory does not exist where it runs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.programs.python_paths import PythonPaths, written_paths

PROBLEM = "the directory '/home/ann' does not exist on this TaskManager's host"


def found(text: str) -> list[tuple[str, int, bool]]:
    return list(written_paths(ast.parse(dedent(text))))


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("open('a.txt')", [("a.txt", 1, False)]),
        ("open('a.txt', mode='w').write('x')", [("a.txt", 1, True)]),
        ("with open('a.txt', 'a') as f:\n    f.write('x')", [("a.txt", 1, True)]),
        ("df = spark.read.option('header', True).csv('in/a.csv')", [("in/a.csv", 1, False)]),
        ("df.write.mode('overwrite').parquet('out')", [("out", 1, True)]),
        ("df.writeStream.format('json').start('out')", [("out", 1, True)]),
        ("if __name__ == '__main__':\n    spark.read.load('in')", [("in", 2, False)]),
        ("def main():\n    open('a')\n\nmain()", [("a", 2, False)]),
        ("query.load('x')", []),
        ("open(name)", []),
        ("name = 'x' if open else open('y')", []),
        ("def never():\n    open('a')", []),
        ("if len(sys.argv) > 1:\n    open('a')\nopen('b')", []),
        ("try:\n    open('a')\nexcept OSError:\n    pass", []),
        ("os.chdir('/data')\nopen('a')", []),
    ],
)
def test_paths_are_found_in_statements_that_always_run(text: str, paths: list[tuple[str, int, bool]]) -> None:
    assert found(text) == paths


def test_a_script_with_a_relative_path_is_refused_before_it_runs(tmp_path: Path) -> None:
    checked = PythonPaths(PROBLEM, tmp_path)
    with pytest.raises(TaskError, match=r"the path 'out' in line 2 is relative, and the directory '/home/ann'"):
        checked.check_script(ast.parse("import os\nspark.range(3).write.parquet('out')\n"))

    (tmp_path / "sent.json").write_text("{}")
    checked.check_script(ast.parse("open('sent.json')\nspark.read.csv('s3a://bucket/x')\nopen('/etc/hosts')\n"))
    with pytest.raises(TaskError, match=r"'sent\.json' in line 1"):
        checked.check_script(ast.parse("open('sent.json', 'w')\n"))


USES = """
import os, sqlite3, sys
from pathlib import Path
from flintlock.spark.region.programs.python_paths import PythonPaths

PythonPaths("PROBLEM", Path.cwd()).watch()
def refused(use):
    try:
        use()
    except FileNotFoundError as error:
        return "PROBLEM" in str(error)
    return False

print([
    refused(lambda: open("new.txt", "w")), refused(lambda: Path("gone.txt").read_text()),
    refused(lambda: os.mkdir("folder")), refused(lambda: os.rename("sent.txt", "other.txt")),
    refused(lambda: sqlite3.connect("base.db")), refused(lambda: os.open("raw", os.O_WRONLY | os.O_CREAT)),
    refused(lambda: os.listdir("gone")), refused(lambda: open("sent.txt", "a")),
])
print([
    refused(lambda: open("sent.txt").close()), refused(lambda: open(sys.argv[1], "w").close()),
    refused(lambda: os.listdir(".")), refused(lambda: sqlite3.connect(":memory:").close()),
])
os.chdir(sys.argv[2])
print(refused(lambda: open("mine.txt", "w").close()))
"""


def test_other_relative_paths_are_refused_when_they_are_used(tmp_path: Path) -> None:
    """In a process of its own: what watches it stays."""
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.mkdir()
    (scratch / "sent.txt").write_text("x")

    ran = subprocess.run(
        [sys.executable, "-c", USES, str(other / "absolute.txt"), str(other)],
        cwd=scratch, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert ran.stdout.splitlines() == [str([True] * 8), str([False] * 4), "False"]
    assert sorted(path.name for path in scratch.iterdir()) == ["sent.txt"]
    assert sorted(path.name for path in other.iterdir()) == ["absolute.txt", "mine.txt"]
