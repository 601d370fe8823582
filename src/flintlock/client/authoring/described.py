"""Reads the job graphs that a Python file defines, as rows of a table: for a client that cannot import the file itself.

`graphs` is the function of a step. It runs where all user code runs, in an attempt on a TaskManager, with the limits,
the user and the timeout of a job; the JobManager only passes the file and the rows on. The dashboard submits such a job
for a Python file, and shows the plan that it finds, or the problems with their lines: the same as `flintlock info`.

A file that does not import `flintlock` is a program. It is not imported: that would run it.
"""

from __future__ import annotations

import ast
import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import JobPackage
from flintlock.client.authoring.targets import read_jobs
from flintlock.model.checking.jobspec import JobSpec
from flintlock.model.errors import Invalid, Refused

SCHEMA: Final = "kind STRING, job STRING, name STRING, line INT, text STRING"


class DescribedRow(NamedTuple):
    """One fact about a file.

    program     it defines no job
    document    a job: `text` is its document
    file        one that is sent with a job: `text` is its content in base64
    problem     what is wrong, at a line of the file, 0 where that is not known
    """

    kind: str
    job: str = ""
    name: str = ""
    line: int = 0
    text: str = ""


def graphs(params: Mapping[str, object], spark: Any) -> Any:
    """Return what the file of the parameter `file`, one of the job's artifacts, defines, as a DataFrame."""
    name = str(params["file"])
    file = next((path for folder in sys.path if (path := Path(folder) / name).is_file()), None)
    rows = [DescribedRow("problem", text=f"the job has no file {name!r}")] if file is None else described(file)
    return spark.createDataFrame([tuple(row) for row in rows], SCHEMA)


def described(file: Path) -> list[DescribedRow]:
    """Return what a file defines. What its code prints is not lost: it is output of the attempt."""
    try:
        tree = ast.parse(file.read_bytes(), filename=file.name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 0
        return [DescribedRow("problem", line=line, text=f"invalid Python: {getattr(error, 'msg', error)}")]
    if not _imports_flintlock(tree):
        return [DescribedRow("program")]
    before = Path.cwd()
    # A directory of its own: a path in it is a relative one, and stands for nothing that the submitter has.
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        try:
            return [*_of_jobs(file)]
        finally:
            os.chdir(before)


def _imports_flintlock(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        if any(name.partition(".")[0] == "flintlock" for name in names):
            return True
    return False


def _of_jobs(file: Path) -> Iterator[DescribedRow]:
    try:
        jobs = read_jobs(file)
    except Refused as error:
        yield from _problems(file, "", [error.public])
        return
    if not jobs:
        yield DescribedRow("program")
    for name, job in jobs.items():
        yield from _of_job(file, name, job)


def _of_job(file: Path, name: str, job: Job) -> Iterator[DescribedRow]:
    try:
        package = job.package()
    except Invalid as error:
        yield from _problems(file, name, error.problems)
        return
    except Refused as error:
        yield from _problems(file, name, [error.public])
        return
    relative = [*_relative_paths(package)]
    if relative:
        yield from _problems(file, name, relative)
        return
    spec = structs.replace(package.spec, directory="")
    yield DescribedRow("document", job=name, text=msgspec.json.encode(spec).decode())
    for file_name, content in package.files.items():
        data = content.read_bytes() if isinstance(content, Path) else content
        yield DescribedRow("file", job=name, name=file_name, text=base64.b64encode(data).decode())


def _relative_paths(package: JobPackage) -> Iterator[str]:
    """Yield the steps with paths that have become those of the directory in which the file was read."""
    spec: JobSpec = package.spec
    here = str(Path.cwd())
    for name, step in spec.steps.items():
        if here in msgspec.json.encode(step).decode():
            yield (
                f"step {name!r}: a path is relative, and a file that is submitted in a browser has no directory that"
                " it could start from: write it as an absolute path, or use `flintlock run`"
            )


def _problems(file: Path, job: str, texts: list[str] | tuple[str, ...]) -> Iterator[DescribedRow]:
    for text in texts:
        shown = text.replace(f"{file.resolve()}", file.name).replace(f"{file}", file.name)
        places = re.findall(rf'{re.escape(file.name)}(?::|", line )(\d+)', shown)
        yield DescribedRow("problem", job=job, line=int(places[-1]) if places else 0, text=shown)
