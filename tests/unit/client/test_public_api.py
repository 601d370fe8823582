from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import flintlock


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(flintlock, name) is not None for name in flintlock.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(flintlock, "no_such_thing")


def test_importing_flintlock_imports_nothing_heavy() -> None:
    heavy = ("pyspark", "grpc", "httpx", "click", "msgspec")
    code = f"import sys, flintlock; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_writing_and_packing_a_job_imports_neither_pyspark_nor_grpc() -> None:
    code = (
        "import sys, flintlock as fl\n"
        "job = fl.Job('j')\n"
        "job.step('one')(lambda spark: spark.range(1))\n"
        "job.result('r', 'one')\n"
        "job.package()\n"
        "print([m for m in ('pyspark', 'grpc', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_version_is_declared_once() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())

    assert project["project"]["dynamic"] == ["version"]
    declared = re.compile(project["tool"]["hatch"]["version"]["pattern"], re.MULTILINE)
    assert declared.findall(Path(flintlock.__file__).read_text()) == [flintlock.__version__]
