"""A job's Python environment as it is sent: requirements with the local files that they name, or a packed environment.

Files of further requirements (`-r`) are written into one, relative to the file that names them, as pip reads them.
Constraints (`-c`), wheels and source archives that are named by a path are sent along. A folder is not: a wheel of it
is what can be installed elsewhere.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from flintlock.client.authoring.files.artifact_files import ArtifactFile
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import ArtifactKind

ENVIRONMENT_KINDS: Final = (ArtifactKind.REQUIREMENTS, ArtifactKind.REQUIREMENT_FILE, ArtifactKind.ENVIRONMENT)
"""The kinds of artifacts that make a Python environment."""

_OPTION: Final = re.compile(r"(-r|--requirement|-c|--constraint|-f|--find-links|-e|--editable)[\s=]+(.+)")
_ARCHIVES: Final = (".whl", ".tar.gz", ".zip", ".tar.bz2")


def environment_files(requirements: Path | None, pyenv: Path | None) -> list[ArtifactFile]:
    """Return the artifacts of a Python environment. Raises Refused for what cannot be sent, naming it."""
    if requirements is not None and pyenv is not None:
        raise Refused("give either requirements or a packed environment (pyenv)")
    if requirements is not None:
        return requirement_files(requirements)
    return [packed_environment(pyenv)] if pyenv is not None else []


def packed_environment(path: Path) -> ArtifactFile:
    """Return the artifact of an environment that venv-pack or conda-pack has packed. Raises Refused."""
    if not path.is_file():
        raise Refused(f"there is no file {str(path)!r}")
    if not tarfile.is_tarfile(path):
        raise Refused(f"{str(path)!r} is not a packed environment: give the tar.gz of venv-pack or conda-pack")
    return ArtifactFile(name=path.name, content=path.resolve(), kind=ArtifactKind.ENVIRONMENT)


def requirement_files(path: Path) -> list[ArtifactFile]:
    """Return the artifact of a file of requirements, and of each local file that it names. Raises Refused."""
    files: dict[str, Path] = {}
    text = "".join(f"{line}\n" for line in _lines(path, files, ()))
    sent = [
        ArtifactFile(name=name, content=file.resolve(), kind=ArtifactKind.REQUIREMENT_FILE)
        for name, file in files.items()
    ]
    return [ArtifactFile(name=path.name, content=text.encode(), kind=ArtifactKind.REQUIREMENTS), *sent]


def _lines(path: Path, files: dict[str, Path], outer: tuple[Path, ...]) -> Iterator[str]:
    """Yield the requirements of a file, and of those that it names; `files` collects what has to be sent."""
    if path.resolve() in outer:
        raise Refused(f"{str(path)!r} requires itself")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = f"there is no file {str(path)!r}" if isinstance(error, FileNotFoundError) else f"{path}: {error}"
        raise Refused(reason) from error
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#.*$", "", line).strip()
        place = f"{path}:{number}"
        match = _OPTION.fullmatch(text)
        option, value = (match[1], match[2].strip()) if match else ("", text)
        local = path.parent / value
        if option in {"-e", "--editable"} or (_is_path(value) and local.is_dir() and not option):
            raise Refused(f"{place}: the folder {value!r} cannot be sent: build a wheel and name it")
        if option in {"-r", "--requirement"}:
            yield from _lines(local, files, (*outer, path.resolve()))
        elif option in {"-c", "--constraint"}:
            yield f"-c {_sent(local, files, place)}"
        elif option in {"-f", "--find-links"}:
            yield f"--find-links {local.resolve() if local.exists() else value}"
        elif not option and _is_path(value.partition(";")[0].strip()):
            name, marker, condition = value.partition(";")
            yield f"./{_sent(path.parent / name.strip(), files, place)}{marker}{condition}"
        elif text:
            yield text


def _is_path(value: str) -> bool:
    return "://" not in value and " @ " not in value and ("/" in value or value.endswith(_ARCHIVES))


def _sent(file: Path, files: dict[str, Path], place: str) -> str:
    if not file.is_file():
        raise Refused(f"{place}: there is no file {str(file)!r}")
    if files.setdefault(file.name, file).resolve() != file.resolve():
        raise Refused(f"{place}: two different files are called {file.name!r}: rename one of them")
    return file.name
