"""Jars and packages as people name them: on the command line, in YAML and in Python."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from flintlock.cli.jobs.run import overrides_of
from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import AS_WRITTEN, Overrides, driver_note
from flintlock.client.authoring.targets import read_target
from flintlock.client.authoring.yaml_form import read_yaml_job
from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import ArtifactKind, EngineKind

YAML = """\
name: y
jars: [lib/own.jar]
packages: ["g:a:1"]
steps:
  one: {sql: "SELECT 1 AS x"}
  shown: {result: {}, inputs: [one]}
"""
PYTHON = """\
import flintlock as fl
import os
job = fl.Job("p", jars=["lib/own.jar"], packages=["g:a:1"])
job.result("shown", job.sql("one", "SELECT 1 AS x"))
reading = os.environ.get("SPARK_CONNECT_MODE_ENABLED", "")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    for jar in ("lib/own.jar", "other.jar"):
        with zipfile.ZipFile(tmp_path / jar, "w") as archive:
            archive.writestr("name.txt", jar)
    return tmp_path


def given(*jars: str, packages: tuple[str, ...] = (), engine: str | None = None) -> Overrides:
    return overrides_of(
        parallelism=None, params=(), name=None, labels=(), engine=engine, env=(), py_files=(), files=(), jars=jars,
        packages=packages, requirements=None, pyenv=None, defines=(),
    )  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [("job.yaml", YAML), ("job.py", PYTHON)])
def test_jars_are_found_beside_the_file_and_sent_with_the_job(name: str, text: str) -> None:
    Path(name).write_text(text)
    package = read_target(name if name.endswith("yaml") else f"{name}:job").package()

    assert [(one.name, one.kind) for one in package.graph.artifacts] == [("own.jar", ArtifactKind.JAR)]
    assert package.files["own.jar"] == Path("lib/own.jar").resolve()
    assert package.graph.packages == ("g:a:1",)
    assert package.graph.engine is EngineKind.DEDICATED
    assert package.spec.jars == ()  # they are among the artifacts


def test_the_command_line_adds_jars_and_packages_to_those_of_the_file() -> None:
    Path("job.yaml").write_text(YAML)
    overrides = given("other.jar", packages=("g:b:2, g:c:3", "g:a:1"))
    package = read_yaml_job(Path("job.yaml")).package(overrides)

    assert {one.name for one in package.graph.artifacts} == {"own.jar", "other.jar"}
    assert package.graph.packages == ("g:a:1", "g:b:2", "g:c:3")


def test_jars_are_separated_by_commas_or_repeated() -> None:
    assert given("a.jar, b.jar", "c.jar,").jars == (Path("a.jar"), Path("b.jar"), Path("c.jar"))


def test_a_jar_that_is_not_there_is_named_with_its_line() -> None:
    Path("job.yaml").write_text(YAML.replace("lib/own.jar", "lib/none.jar"))
    with pytest.raises(Invalid, match=r"job\.yaml:2:8: job, field 'jars': there is no file 'lib/none\.jar'"):
        read_yaml_job(Path("job.yaml"))
    with pytest.raises(Invalid, match=r"field 'jars': there is no file .*none\.jar"):
        Job("p", jars=["none.jar"])
    with pytest.raises(Invalid, match="must be a list of coordinates"):
        Job("p", packages="g:a:1")
    Path("script.py").write_text("print(1)\n")
    with pytest.raises(Invalid, match=r"field 'jars': there is no file 'none\.jar'"):
        read_target("script.py").package(given("none.jar"))


@pytest.mark.parametrize(
    ("overrides", "note"),
    [
        (AS_WRITTEN, None),
        (given("other.jar"), "jars need a Spark driver of its own: the job runs on a dedicated engine"),
        (given("other.jar", engine="auto"), "jars need a Spark driver of its own: the job runs on a dedicated engine"),
        (given("other.jar", engine="dedicated"), None),
        (given(packages=("g:a:1",)), "packages need a Spark driver of its own: the job runs on a dedicated engine"),
    ],
)
def test_a_program_that_is_given_a_driver_says_why(overrides: Overrides, note: str | None) -> None:
    Path("script.py").write_text("print(1)\n")
    package = read_target("script.py").package(overrides)

    assert driver_note(package) == note
    assert package.graph.engine is (EngineKind.AUTO if overrides == AS_WRITTEN else EngineKind.DEDICATED)


@pytest.mark.parametrize(
    ("name", "arguments", "mode"),
    [
        ("deps_plain", "", "1"),
        ("deps_jars", 'jars=["lib/own.jar"]', ""),
        ("deps_dedicated", 'engine="dedicated"', ""),
        ("deps_shared", 'engine="shared"', "1"),
    ],
)
def test_a_job_file_that_asks_for_a_driver_itself_is_read_with_classic_pyspark(
    name: str, arguments: str, mode: str
) -> None:
    text = PYTHON.replace('jars=["lib/own.jar"], packages=["g:a:1"]', arguments)
    Path(f"{name}.py").write_text(text)
    Path(f"{name}_package").mkdir()
    Path(f"{name}_package", "__init__.py").touch()
    Path(f"{name}_package", "jobs.py").write_text(text.replace("lib/own.jar", "../lib/own.jar"))

    read_target(f"{name}.py:job")
    read_target(f"{name}_package.jobs:job")

    assert sys.modules[name].reading == mode
    assert sys.modules[f"{name}_package.jobs"].reading == mode


@pytest.mark.parametrize(
    ("overrides", "needs"),
    [
        (AS_WRITTEN, False),
        (given("a.jar"), True),
        (given(packages=("g:a:1",)), True),
        (given("a.jar", engine="shared"), False),
        (given(engine="dedicated"), True),
        (Overrides(config={"spark.jars": "/a.jar"}), True),
    ],
)
def test_what_the_command_line_sets_decides_how_a_job_is_read(overrides: Overrides, needs: bool) -> None:
    assert overrides.needs_driver is needs
