from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from flintlock.client.authoring.files.artifact_files import (
    ArtifactFile,
    absolute_place,
    described,
    jar_file,
    module_names,
    py_file,
    zip_folder,
)
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import ArtifactKind


def names(content: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.namelist()


def test_the_same_content_gives_the_same_zip(tmp_path: Path) -> None:
    for place, when in (("a", 1_000_000_000), ("b", 1_700_000_000)):
        folder = tmp_path / place / "lib"
        folder.mkdir(parents=True)
        for name in ("z.py", "a.py") if place == "a" else ("a.py", "z.py"):
            (folder / name).write_text(name)
            os.utime(folder / name, (when, when))

    assert zip_folder(tmp_path / "a" / "lib") == zip_folder(tmp_path / "b" / "lib")


def test_a_folder_with_modules_keeps_its_name_and_one_with_packages_does_not(tmp_path: Path) -> None:
    (tmp_path / "src" / "lib" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "lib" / "score.py").write_text("")
    (tmp_path / "src" / "lib" / "table.csv").write_text("")
    (tmp_path / "src" / "lib" / ".hidden").write_text("")
    (tmp_path / "src" / "lib" / "__pycache__" / "score.cpython-311.pyc").write_text("")

    assert names(zip_folder(tmp_path / "src" / "lib")) == ["lib/", "lib/score.py", "lib/table.csv"]
    assert names(zip_folder(tmp_path / "src")) == ["lib/", "lib/score.py", "lib/table.csv"]
    assert module_names([py_file(tmp_path / "src")]) == {"lib"}


def test_only_python_is_a_py_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "empty").mkdir()

    with pytest.raises(Refused, match=r"neither a folder nor one of \.py"):
        py_file(tmp_path / "notes.txt")
    with pytest.raises(Refused, match="is empty"):
        py_file(tmp_path / "empty")
    with pytest.raises(Refused, match="there is no file or folder"):
        py_file(tmp_path / "nope.py")


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("x = 1\n")

    assert described(py_file(tmp_path / "a.py")).blob == described(py_file(tmp_path / "b.py")).blob
    assert described(py_file(tmp_path / "a.py")).size == 6


def test_a_jar_is_sent_as_it_is_and_anything_else_is_refused_by_name(tmp_path: Path) -> None:
    jar, text, folder = tmp_path / "own.jar", tmp_path / "text.jar", tmp_path / "folder.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("a.txt", "a")
    text.write_text("no jar")
    folder.mkdir()

    assert jar_file(jar) == ArtifactFile(name="own.jar", content=jar.resolve(), kind=ArtifactKind.JAR)
    for path, expected in (
        (tmp_path / "none.jar", "there is no file"),
        (folder, "there is no file"),
        (text, "is not a jar"),
    ):
        with pytest.raises(Refused, match=expected) as caught:
            jar_file(path)
        assert str(path) in caught.value.public


def test_the_place_of_a_file_has_no_dots_and_keeps_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "releases" / "one" / "jobs").mkdir(parents=True)
    (tmp_path / "releases" / "one" / "jobs" / "a.py").touch()
    (tmp_path / "releases" / "one" / "b.py").touch()
    (tmp_path / "current").symlink_to(tmp_path / "releases" / "one" / "jobs")
    monkeypatch.chdir(tmp_path / "releases")

    assert absolute_place(Path("../current/a.py")) == f"{tmp_path}/current/a.py"
    assert absolute_place(Path("../current/../b.py")) == f"{tmp_path}/releases/../current/../b.py"
