from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path

import pytest

from flintlock.client.authoring.files.sibling_modules import added_folders
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.model.errors import Invalid, Refused
from flintlock.model.jobgraph import ArtifactKind, EngineKind
from flintlock.model.operations import Program

GRAPH = """\
import flintlock as fl
import helper_of_target
job = fl.Job(helper_of_target.NAME)
job.result("r", job.sql("one", "SELECT 1 AS x"))
def build(): return job
def broken(): raise ValueError("no luck")
other = 3
if __name__ == "__main__":
    raise SystemExit("never")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper_of_target.py").write_text("NAME = 'from a helper'\n")
    (tmp_path / "graph.py").write_text(GRAPH)
    return tmp_path


def refusal(target: str, *args: str) -> str:
    with pytest.raises(Refused) as caught:
        read_target(target, args)
    return caught.value.public


def test_a_graph_is_imported_with_its_folder_on_the_path_and_not_as_main() -> None:
    path = list(sys.path)

    assert read_target("graph.py:job").name == "from a helper"
    assert read_target("graph.py:build").name == "from a helper"
    assert sys.path == path


def test_a_name_that_is_no_job_is_refused_with_the_nearest_one() -> None:
    assert refusal("graph.py:jbo") == "graph.py: has no 'jbo'; did you mean 'job'?"
    assert refusal("graph.py:other") == "graph.py: 'other' is int, not a flintlock.Job; its jobs are job"


def test_an_error_in_the_users_file_shows_the_users_frames_and_none_of_ours() -> None:
    Path("wrong.py").write_text("def inner():\n    return 1 / 0\ninner()\n")

    message = refusal("wrong.py:job")

    assert "wrong.py: an error occurred while reading it" in message
    assert 'wrong.py", line 2, in inner' in message
    assert "ZeroDivisionError: division by zero" in message
    assert "flintlock/client" not in message
    assert "importlib" not in message


def test_an_error_in_a_graph_keeps_its_message() -> None:
    Path("mistake.py").write_text("import flintlock as fl\njob = fl.Job('j')\njob.sql('a', '')\n")

    with pytest.raises(Invalid, match=r"mistake.py:3: step 'a', field 'sql': the query is empty"):
        read_target("mistake.py:job")


def test_other_ends_of_the_users_file() -> None:
    Path("leaves.py").write_text("import sys; sys.exit(4)\n")
    Path("syntax.py").write_text("x = = 1\n")

    assert "ended with exit code 4 while reading it" in refusal("leaves.py:job")
    assert "syntax.py" in refusal("syntax.py:job")
    assert "SyntaxError" in refusal("syntax.py")
    assert "ValueError: no luck" in refusal("graph.py:broken")


def test_a_program_becomes_a_job_of_one_step() -> None:
    Path("2 plain-script.py").write_text("print('hello')\n")
    package = read_target("2 plain-script.py", ["--day", "x"]).package(
        Overrides(engine=EngineKind.DEDICATED, name="renamed")
    )

    assert package.graph.name == "renamed"
    assert package.graph.engine is EngineKind.DEDICATED
    (vertex,) = package.graph.vertices
    assert vertex.name == "program_2_plain_script"
    assert vertex.operation == Program(
        file="2 plain-script.py", args=("--day", "x"), path=str(Path.cwd() / "2 plain-script.py")
    )
    with pytest.raises(Invalid, match="has no parameter 'x'; it has none"):
        read_target("2 plain-script.py").package(Overrides(params={"x": "1"}))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SparkSession.builder.master('local').appName('daily revenue').getOrCreate()", "daily revenue"),
        ("a = SparkSession.builder.appName('first')\nSparkSession.builder.appName('second')", "first"),
        ("conf = SparkConf().setAppName('old style')", "old style"),
        ("SparkSession.builder.appName(name).getOrCreate()", "script"),
        ("SparkSession.builder.appName('  ').appName('a\\tb').getOrCreate()", "script"),
    ],
)
def test_a_job_has_the_name_of_its_application_unless_one_is_given(folder: Path, text: str, name: str) -> None:
    (folder / "script.py").write_text(text + "\n")
    package = read_target("script.py").package()
    assert package.graph.name == name
    assert [vertex.name for vertex in package.graph.vertices] == ["script"]
    assert read_target("script.py").package(Overrides(name="mine")).graph.name == "mine"
    (folder / "imported.py").write_text("SparkSession.builder.appName('not this one')\n")
    (folder / "module.py").write_text(f"import imported\n{text.replace('script', 'module')}\n")
    expected = "module" if name == "script" else name
    assert read_target("module", as_module=True).package().graph.name == expected


def test_a_program_gets_environment_variables(folder: Path) -> None:
    Path("variables.py").write_text("print(1)\n")
    given = Overrides(env={"LEVEL": "debug"})
    program = read_target("variables.py").package(given).graph.vertices[0].operation
    assert isinstance(program, Program)
    assert program.env == {"LEVEL": "debug"}

    Path("job.yaml").write_text("name: j\nsteps: {p: {program: {file: variables.py, env: {LEVEL: info, N: 1}}}}\n")
    program = read_target("job.yaml").package(given).graph.vertices[0].operation
    assert isinstance(program, Program)
    assert program.env == {"LEVEL": "debug", "N": "1"}

    Path("graph.yaml").write_text("name: j\nsteps: {n: {sql: SELECT 1}, r: {result: {}, inputs: [n]}}\n")
    with pytest.raises(Invalid, match="only a program has environment variables"):
        read_target("graph.yaml").package(given)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a-b", "'a-b' cannot be the name of an environment variable"),
        ("1A", "'1A' cannot be the name"),
        ("FLINTLOCK_STATE_DIR", "'FLINTLOCK_STATE_DIR' is Flintlock's own"),
        ("PYSPARK_GATEWAY_PORT", "is Flintlock's own"),
    ],
)
def test_names_that_cannot_be_environment_variables_are_refused(folder: Path, name: str, problem: str) -> None:
    Path("variables.py").write_text("print(1)\n")
    with pytest.raises(Invalid, match=problem):
        read_target("variables.py").package(Overrides(env={name: "x"}))


def test_a_graph_is_not_run_as_a_program_by_mistake() -> None:
    Path("starts.py").write_text("from flintlock import run as go\n\n\ndef f(job):\n    go(job)\n")
    Path("runs.py").write_text("import flintlock as fl\nfl.run(None)\n")
    Path("other_run.py").write_text("import subprocess\nsubprocess.run(['true'])\n")

    assert refusal("starts.py").startswith("starts.py:5: calls flintlock.run")
    assert refusal("runs.py").startswith("runs.py:2: calls flintlock.run")
    assert read_target("other_run.py").name == "other_run"


def test_what_is_not_a_target_is_refused_with_what_would_be() -> None:
    Path("data.csv").write_text("")

    assert "there is no file 'grpah.py'; did you mean 'graph.py'?" in refusal("grpah.py:job")
    assert "give job.yaml or job.json, file.py:name" in refusal("data.csv")
    assert "is a folder" in refusal(".")
    assert "takes no arguments of its own; set parameters with --param" in refusal("graph.py:job", "x")


def test_a_file_may_be_called_as_a_module_that_exists() -> None:
    Path("json.py").write_text(GRAPH)

    assert read_target("json.py:job").name == "from a helper"
    import json

    assert hasattr(json, "dumps")


def test_a_graph_can_have_a_dedicated_engine() -> None:
    packed = read_target("graph.py:job").package(Overrides(engine=EngineKind.DEDICATED))

    assert packed.spec.engine is EngineKind.DEDICATED


def test_a_job_carries_the_directory_that_it_was_submitted_from(folder: Path) -> None:
    (folder / "script.py").write_text("print(1)\n")
    assert read_target("script.py").package().graph.directory == str(folder)
    assert read_target("graph.py:job").package().graph.directory == str(folder)


def test_the_directory_of_a_document_is_where_its_relative_paths_start(folder: Path) -> None:
    document = (
        "name: j\ndirectory: data\nsteps:\n"
        "  a: {source: {format: csv, path: in}}\n"
        "  b: {sink: {format: csv, path: out}, inputs: [a]}\n"
    )
    (folder / "j.yaml").write_text(document)
    package = read_target("j.yaml").package()
    assert package.graph.directory == str(folder / "data")
    assert package.graph.vertex("b").operation.target == str(folder / "data" / "out")


def test_modules_beside_a_program_that_it_imports_travel_with_it(folder: Path) -> None:
    (folder / "script.py").write_text("import json, first\nfrom package.inner import x\n")
    (folder / "first.py").write_text("import second\n")
    (folder / "second.py").write_text("import first\n")
    (folder / "unused.py").write_text("")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner.py").write_text("x = 1\n")

    package = read_target("script.py").package()
    assert sorted(package.files) == ["first.py", "package.zip", "script.py", "second.py"]
    named = read_target("script.py").package(Overrides(py_files=(Path("first.py"),)))
    assert sorted(named.files) == sorted(package.files)


def test_folders_without_an_init_file_and_those_that_a_script_adds_travel_with_it(folder: Path) -> None:
    files = {
        "jobs/script.py": (
            "import os, sys\nfrom pathlib import Path\n"
            "HERE = os.path.dirname(os.path.abspath(__file__))\n"
            "sys.path.insert(0, os.path.join(HERE, 'lib'))\n"
            "sys.path.append(str(Path(__file__).resolve().parents[1] / 'shared'))\n"
            "from utils.deep.helpers import x\nimport common, tables, json, empty\n"
        ),
        "jobs/utils/deep/helpers.py": "import numpy",
        "jobs/lib/common.py": "import other",
        "jobs/lib/other.py": "",
        "jobs/json/old.py": "",  # Python prefers its own module
        "jobs/empty/data.csv": "",
        "shared/tables/__init__.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    package = read_target("jobs/script.py").package()

    assert sorted(package.files) == ["common.py", "other.py", "script.py", "tables.zip", "utils.zip"]
    archive = package.files["utils.zip"]
    assert isinstance(archive, bytes)
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        assert "utils/deep/helpers.py" in members.namelist()


@pytest.mark.parametrize(
    ("expression", "folder_name"),
    [
        ("dirname(__file__) + '/lib'", None),
        ("'/opt/lib'", None),
        ("again", None),
        ("join(dirname(dirname(__file__)), 'lib')", "lib"),
        ("str(Path(__file__).parent.parent.joinpath('lib'))", "lib"),
        ("Path(__file__).absolute().parent / '..' / 'lib'", "lib"),
        ("Path(__file__).parents[99]", None),
    ],
)
def test_folders_that_a_script_adds_are_found_by_its_own_place(
    tmp_path: Path, expression: str, folder_name: str | None
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "jobs").mkdir()
    tree = ast.parse(f"import sys\nagain = again\nsys.path.insert(0, {expression})\n")
    expected = () if folder_name is None else (tmp_path / folder_name,)
    assert added_folders(tmp_path / "jobs" / "script.py", tree) == expected


def test_files_that_a_program_reads_travel_with_it(folder: Path) -> None:
    (folder / "script.py").write_text("print(1)\n")
    (folder / "settings.json").write_text("{}")
    program = read_target("script.py")
    package = program.package(Overrides(files=(Path("settings.json"),)))
    assert {file.name: file.kind for file in package.graph.artifacts} == {
        "script.py": ArtifactKind.FILE, "settings.json": ArtifactKind.FILE,
    }  # fmt: skip
    with pytest.raises(Invalid, match=r"there is no file 'gone\.json'"):
        program.package(Overrides(files=(Path("gone.json"),)))


def test_a_program_whose_sibling_needs_a_driver_is_given_one(folder: Path) -> None:
    (folder / "script.py").write_text("import context_of_script\n")
    (folder / "context_of_script.py").write_text("from pyspark import SparkContext\n")
    assert read_target("script.py").package().graph.engine is EngineKind.DEDICATED


def test_a_job_in_a_module_of_a_package_travels_with_its_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "shop" / "jobs").mkdir(parents=True)
    for name in ("shop", "shop/jobs"):
        (folder / name / "__init__.py").write_text("")
    (folder / "shop" / "words.py").write_text("def big(frame): return frame\n")
    (folder / "shop" / "jobs" / "daily.py").write_text(
        "import flintlock as fl\nfrom shop.words import big\njob = fl.Job('daily')\n"
        "@job.step\ndef numbers(spark): return big(spark.range(3))\njob.result('r', numbers)\n"
    )
    package = read_target("shop.jobs.daily:job").package()
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        monkeypatch.delitem(sys.modules, name)

    assert package.spec.name == "daily"
    assert "shop.zip" in package.files
    assert "there is no module 'shop.jobs.dayly'" in refusal("shop.jobs.dayly:job")


def test_documents_may_be_json_and_on_stdin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = b'{"name": "j", "steps": {"a": {"sql": "SELECT 1"},\n\t"r": {"result": {}, "inputs": ["a"]}}}'
    (folder / "j.json").write_bytes(document)
    assert read_target("j.json").package().graph.name == "j"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(document.replace(b'"a"]', b'"b"]'))))
    with pytest.raises(Invalid, match=r"stdin:2:.*there is no step 'b'"):
        read_target("-").package()


def test_the_queries_of_a_file_are_a_job_with_their_results(folder: Path) -> None:
    (folder / "one.sql").write_text("-- rows\nSELECT :day AS day;\n")
    (folder / "two.sql").write_text("SELECT ';';\nSELECT 2")
    (folder / "none.sql").write_text("-- nothing\n")

    one = read_target("one.sql").package(Overrides(params={"day": "3"}))
    assert (one.graph.name, [vertex.name for vertex in one.graph.vertices]) == ("one", ["query", "result"])
    assert one.graph.params == {"day": 3}
    two = read_target("two.sql").package().graph
    assert sorted(vertex.name for vertex in two.vertices) == ["query_1", "query_2", "result_1", "result_2"]
    with pytest.raises(Refused, match=r"none\.sql has no query"):
        read_target("none.sql").package()
