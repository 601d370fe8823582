"""Files that are sent with a job: what is read from disk, under which name, in which form.

A `.py` file, a zip and a wheel are sent as they are. A folder becomes a zip, always the same one for the same content:
sorted names, fixed times and permissions, so that an unchanged folder is one blob however often it is submitted.
Inside the zip a folder that has Python files itself keeps its name (`lib/score.py` is imported as `lib.score`, as it
is beside the job's own file); of a folder that has only packages, such as `src`, only the contents are sent.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.errors import Refused
from flintlock.model.ids import BlobKey
from flintlock.model.jobgraph import Artifact, ArtifactKind

Content: TypeAlias = bytes | Path
"""The content of an artifact: bytes, or a file that is read when it is sent."""

PY_SUFFIXES: Final = (".py", ".zip", ".whl", ".egg")
_ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)


class ArtifactFile(Struct, frozen=True, kw_only=True):
    """An artifact to be sent: its name in the job, and its content."""

    name: str
    content: Content
    kind: ArtifactKind = ArtifactKind.PY_FILE


def py_file(path: Path, *, module: bool = False) -> ArtifactFile:
    """Return the artifact of a Python file, zip, wheel or folder. Raises Refused for anything else.

    `module`: a folder is one that is imported by its name, whatever is in it.
    """
    if path.is_dir():
        return ArtifactFile(name=f"{path.resolve().name}.zip", content=zip_folder(path, named=module))
    if not path.exists():
        raise Refused(f"there is no file or folder {str(path)!r}")
    if path.suffix not in PY_SUFFIXES:
        raise Refused(f"{str(path)!r} is neither a folder nor one of {', '.join(PY_SUFFIXES)}")
    return ArtifactFile(name=path.name, content=path.resolve())


def jar_file(path: Path) -> ArtifactFile:
    """Return the artifact of a jar. Raises Refused for what is not there, or is no jar."""
    if not path.is_file():
        raise Refused(f"there is no file {str(path)!r}")
    if path.suffix != ".jar" or not zipfile.is_zipfile(path):
        raise Refused(f"{str(path)!r} is not a jar")
    return ArtifactFile(name=path.name, content=path.resolve(), kind=ArtifactKind.JAR)


def plain_file(path: Path) -> ArtifactFile:
    """Return the artifact of a file that user code opens by its name. Raises Refused for what is not there."""
    if not path.is_file():
        raise Refused(f"there is no file {str(path)!r}")
    return ArtifactFile(name=path.name, content=path.resolve(), kind=ArtifactKind.FILE)


def absolute_place(path: Path) -> str:
    """Return where a file or folder is, its links kept: a program is found by that path where it runs."""
    whole = os.path.abspath(path)  # noqa: PTH100 - without the dots of a path such as ../jobs/report.py
    same = os.path.exists(whole) and os.path.samefile(whole, path)  # noqa: PTH110, PTH121
    return whole if same else str(path.absolute())  # dots behind a link to a folder


def zip_folder(folder: Path, *, named: bool = False) -> bytes:
    """Return the folder as a zip: equal content gives equal bytes. Raises Refused if there is nothing in it.

    `named`: it keeps its name even without Python files of its own.
    """
    root = folder.resolve()
    prefix = f"{root.name}/" if named or any(root.glob("*.py")) else ""
    members = sorted(_members(root))
    if not members:
        raise Refused(f"the folder {str(folder)!r} is empty")
    names = [prefix + name for name in members]
    # Packages without an __init__.py are found in a zip only by the entries of their folders.
    folders = {f"{parent}/" for name in names for parent in PurePosixPath(name).parents if parent.name}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(folders):
            archive.writestr(zipfile.ZipInfo(name, date_time=_ZIP_TIME), b"")
        for name, member in zip(names, members, strict=True):
            entry = zipfile.ZipInfo(name, date_time=_ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, (root / member).read_bytes())
    return buffer.getvalue()


def described(file: ArtifactFile) -> Artifact:
    """Return the artifact's name, hash and size, as the job graph knows it."""
    if isinstance(file.content, bytes):
        digest, size = hashlib.sha256(file.content).hexdigest(), len(file.content)
    else:
        with file.content.open("rb") as stream:
            digest, size = hashlib.file_digest(stream, "sha256").hexdigest(), os.fstat(stream.fileno()).st_size
    return Artifact(name=file.name, blob=BlobKey(f"sha256-{digest}"), size=size, kind=file.kind)


def module_names(files: Iterable[ArtifactFile]) -> set[str]:
    """Return the top-level modules that these artifacts bring."""
    names: set[str] = set()
    for file in files:
        if file.name.endswith(".py"):
            names.add(file.name.removesuffix(".py"))
            continue
        source = io.BytesIO(file.content) if isinstance(file.content, bytes) else file.content
        with zipfile.ZipFile(source) as archive:
            names |= {name.partition("/")[0].removesuffix(".py") for name in archive.namelist()}
    return names


def _members(root: Path) -> Iterator[str]:
    """Yield the files below `root` that can matter to Python: neither hidden ones nor compiled leftovers."""
    for place, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and not name.endswith((".pyc", ".pyo")):
                yield Path(place, name).relative_to(root).as_posix()
