"""Where a program is for itself: in its own folder, where that is on this host as it was submitted."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from msgspec import structs

from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.model.operations import Program
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.programs.script_place import ScriptPlace, find_place


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A folder with a script, modules beside it that it imports, and a package."""
    made = tmp_path / "home"
    files = {
        "etl.py": "import helper\nfrom shop import rates\n",
        "helper.py": "X = 1\n",
        "shop/__init__.py": "",
        "shop/rates.py": "RATE = 7\n",
        "conf.yaml": "a: 1\n",
    }
    for name, text in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    monkeypatch.chdir(made)
    search = list(sys.path)
    yield made
    sys.path[:] = search


def place_of(package: JobPackage, folder: Path, *, path: str | None = None) -> ScriptPlace:
    """Install the job as a runner on this host does, and return where its program is."""
    program = package.graph.vertices[0].operation
    assert isinstance(program, Program)
    blobs, scratch = folder.parent / "blobs", folder.parent / "scratch"
    contents: dict[str, str] = {}
    for directory in (blobs, scratch):
        directory.mkdir()
    for name, content in package.files.items():
        (blobs / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        contents[name] = str(blobs / name)
    artifacts = Artifacts(scratch)
    artifacts.install(package.graph, contents)
    program = program if path is None else structs.replace(program, path=path)
    return find_place(program, package.graph.artifacts, artifacts)


def test_a_program_is_where_it_was_submitted_from_if_the_files_there_are_those_that_were_sent(folder: Path) -> None:
    package = read_target("etl.py").package(Overrides(files=(Path("conf.yaml"),)))
    assert sorted(package.files) == ["conf.yaml", "etl.py", "helper.py", "shop.zip"]

    place = place_of(package, folder)

    assert place == ScriptPlace(script=folder / "etl.py")
    assert place.folder == folder


def test_a_script_is_where_its_link_is(folder: Path) -> None:
    (folder / "current").mkdir()
    (folder / "current" / "link.py").symlink_to(folder / "helper.py")
    place = place_of(read_target("current/link.py").package(), folder)
    assert place == ScriptPlace(script=folder / "current" / "link.py")


def test_the_program_of_a_document_is_beside_it(folder: Path) -> None:
    (folder / "job.yaml").write_text("name: j\nsteps: {p: {program: {file: helper.py}}}\n")
    assert place_of(read_target("job.yaml").package(), folder) == ScriptPlace(script=folder / "helper.py")


def test_a_module_is_searched_for_in_the_folder_of_its_package(folder: Path) -> None:
    place = place_of(read_target("shop.rates", as_module=True).package(), folder)
    assert place == ScriptPlace(script=folder / "shop")
    assert place.folder == folder


def test_modules_from_elsewhere_do_not_have_to_be_beside_the_script(folder: Path) -> None:
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "tools.py").write_text("")
    package = read_target("etl.py").package(Overrides(py_files=(folder.parent / "other" / "tools.py",)))
    assert place_of(package, folder).problem == ""


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("etl.py", "import helper, shop  # changed\n", "etl.py' is not, or no longer, the file that was sent"),
        ("helper.py", "X = 2\n", "helper.py' is not, or no longer, the file that was sent"),
        ("shop/rates.py", "RATE = 8\n", "rates.py' is not, or no longer, the file that was sent"),
        ("conf.yaml", "a: 2\n", "conf.yaml' is not, or no longer, the file that was sent"),
        ("conf.yaml", None, "conf.yaml', which was sent with the job, is not there on this TaskManager's host"),
        ("etl.py", None, "etl.py', from which it was submitted, is not on this TaskManager's host"),
    ],
)
def test_a_program_runs_from_its_copy_where_its_folder_is_another_one(
    folder: Path, name: str, text: str | None, problem: str
) -> None:
    package = read_target("etl.py").package(Overrides(files=(Path("conf.yaml"),)))
    # As the client has read it: content of files is read when it is sent.
    package = structs.replace(
        package,
        files={
            file: content if isinstance(content, bytes) else content.read_bytes()
            for file, content in package.files.items()
        },
    )
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)

    place = place_of(package, folder)

    assert place.script == folder.parent / "scratch" / "etl.py"
    assert problem in place.problem


def test_a_module_runs_from_its_copy_where_a_file_of_its_package_is_missing(folder: Path) -> None:
    package = read_target("shop.rates", as_module=True).package()
    (folder / "shop" / "__init__.py").unlink()

    place = place_of(package, folder)

    assert place.folder == folder.parent / "scratch"
    assert (place.folder / "shop" / "rates.py").is_file()
    assert "__init__.py', which was sent with the job, is not there" in place.problem


def test_a_job_that_was_submitted_without_a_path_runs_from_its_copy(folder: Path) -> None:
    place = place_of(read_target("etl.py").package(AS_WRITTEN), folder, path="")
    assert place.problem == "the job was submitted without the path of its script"
