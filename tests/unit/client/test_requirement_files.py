"""Requirements as they are sent: in one file, with the local files that they name."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

import pytest

from flintlock.client.authoring.files.requirement_files import environment_files, requirement_files
from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.targets import read_target
from flintlock.client.authoring.yaml_form import read_yaml_job
from flintlock.model.errors import Invalid, Refused
from flintlock.model.jobgraph import ArtifactKind, EngineKind


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "own-1.0-py3-none-any.whl").write_bytes(b"wheel")
    (tmp_path / "dist" / "pins.txt").write_text("idna==3.7\n")
    (tmp_path / "dist" / "more.txt").write_text("six\n./own-1.0-py3-none-any.whl ; python_version > '3'\n")
    (tmp_path / "requirements.txt").write_text(
        "# what the job needs\n"
        "idna>=3  # a comment\n"
        "-c dist/pins.txt\n"
        "-r dist/more.txt\n"
        "--find-links dist\n"
        "--find-links https://example.org/wheels\n"
        "other @ https://example.org/other.whl\n"
        "\n"
    )
    return tmp_path


def refusal(text: str) -> str:
    Path("requirements.txt").write_text(text)
    with pytest.raises(Refused) as caught:
        requirement_files(Path("requirements.txt"))
    return caught.value.public


def test_requirements_become_one_file_and_the_local_files_that_they_name_are_sent(folder: Path) -> None:
    first, *others = requirement_files(Path("requirements.txt"))

    assert (first.name, first.kind) == ("requirements.txt", ArtifactKind.REQUIREMENTS)
    assert isinstance(first.content, bytes)
    assert first.content.decode().splitlines() == [
        "idna>=3",
        "-c pins.txt",
        "six",
        "./own-1.0-py3-none-any.whl; python_version > '3'",
        f"--find-links {folder}/dist",
        "--find-links https://example.org/wheels",
        "other @ https://example.org/other.whl",
    ]
    assert [(file.name, file.content, file.kind) for file in others] == [
        ("pins.txt", folder / "dist/pins.txt", ArtifactKind.REQUIREMENT_FILE),
        ("own-1.0-py3-none-any.whl", folder / "dist/own-1.0-py3-none-any.whl", ArtifactKind.REQUIREMENT_FILE),
    ]


def test_what_cannot_be_sent_is_named_with_its_line() -> None:
    assert refusal("six\n-e .\n") == "requirements.txt:2: the folder '.' cannot be sent: build a wheel and name it"
    assert refusal("./dist\n") == "requirements.txt:1: the folder './dist' cannot be sent: build a wheel and name it"
    assert refusal("dist/none-1.0-py3-none-any.whl") == (
        "requirements.txt:1: there is no file 'dist/none-1.0-py3-none-any.whl'"
    )
    assert refusal("-r none.txt") == "there is no file 'none.txt'"
    assert refusal("-r requirements.txt") == "'requirements.txt' requires itself"
    with pytest.raises(Refused, match="there is no file 'nowhere'"):
        environment_files(None, Path("nowhere"))
    with pytest.raises(Refused, match="is not a packed environment"):
        environment_files(None, Path("requirements.txt"))
    with pytest.raises(Refused, match="give either"):
        environment_files(Path("requirements.txt"), Path("requirements.txt"))


def test_a_job_names_its_environment_in_yaml_in_python_and_on_the_command_line() -> None:
    Path("job.yaml").write_text(
        "name: y\nrequirements: requirements.txt\nsteps:\n"
        "  one: {sql: SELECT 1 AS x}\n  shown: {result: {}, inputs: [one]}\n"
    )
    job = Job("p", requirements=Path("requirements.txt").resolve())
    job.result("shown", job.sql("one", "SELECT 1 AS x"))
    Path("script.py").write_text("print(1)\n")
    given = Overrides(requirements=Path("requirements.txt"))
    expected = {
        "requirements.txt": ArtifactKind.REQUIREMENTS,
        "pins.txt": ArtifactKind.REQUIREMENT_FILE,
        "own-1.0-py3-none-any.whl": ArtifactKind.REQUIREMENT_FILE,
    }

    for package in (read_yaml_job(Path("job.yaml")).package(), job.package(), read_target("script.py").package(given)):
        found = {one.name: one.kind for one in package.graph.artifacts if one.name != "script.py"}
        assert found == expected
        assert set(package.files) - {"script.py"} == set(expected)
        assert package.graph.engine is not EngineKind.DEDICATED  # an environment needs no driver of its own


def test_the_command_line_replaces_the_environment_of_the_file() -> None:
    with tarfile.open("env.tar.gz", "w:gz"):
        pass
    job = Job("p", requirements=Path("requirements.txt").resolve())
    job.result("shown", job.sql("one", "SELECT 1 AS x"))
    package = job.package(Overrides(pyenv=Path("env.tar.gz")))

    assert {one.name: one.kind for one in package.graph.artifacts} == {"env.tar.gz": ArtifactKind.ENVIRONMENT}


def test_problems_of_an_environment_are_located() -> None:
    Path("job.yaml").write_text(
        "name: y\npyenv: none.tar.gz\nsteps:\n  one: {sql: SELECT 1 AS x}\n  shown: {result: {}, inputs: [one]}\n"
    )
    with pytest.raises(Invalid, match=re.escape("job.yaml:2:8: job, field 'pyenv': there is no file 'none.tar.gz'")):
        read_yaml_job(Path("job.yaml"))
    with pytest.raises(Invalid, match="field 'requirements': there is no file"):
        Job("p", requirements="none.txt")
    Path("script.py").write_text("print(1)\n")
    with pytest.raises(Invalid, match="field 'requirements': there is no file"):
        read_target("script.py").package(Overrides(requirements=Path("none.txt")))
