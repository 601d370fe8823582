"""Where a program is, for itself: in the folder that it was submitted from, if this host has that folder.

A script reads and writes beside itself (`dirname(__file__)`). So it gets the path that it has on the host from which it
was submitted, as with spark-submit, wherever the files there are those that were sent: the same script, the files that
go with it beside it, and no other version of a module. Then it is all the same which copy is executed. Otherwise it
runs from its copy in the directory of the task, where what it writes is refused (`task_directory`).

Rejected: the path of the original whatever is there. On another machine a path such as `/home/ubuntu/job.py` may well
be another script, and `dirname(__file__)` the folder of somebody else's files.
"""

from __future__ import annotations

import filecmp
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from flintlock.model.jobgraph import Artifact, ArtifactKind
from flintlock.model.operations import Program
from flintlock.spark.region.artifacts import Artifacts


class ScriptPlace(Struct, frozen=True, kw_only=True):
    """The file that is a program's `__file__` (of a module: its file or folder), and the first folder on `sys.path`."""

    script: Path
    problem: str = ""  # why this is not where it was submitted from; empty if it is

    @property
    def folder(self) -> Path:
        """The folder that the script is in, or in which a module is searched for."""
        return self.script.parent


def find_place(program: Program, sent: Iterable[Artifact], artifacts: Artifacts) -> ScriptPlace:
    """Return where the program is run from. `sent`: all files that were sent with the job. A module is unpacked."""
    problem = _problem(program, sent, artifacts)
    if not problem:
        return ScriptPlace(script=Path(program.path))
    if program.module:
        # Unpacked beside the archive: a package finds its data files, and frames have the paths of the sources.
        artifacts.unpack(program.file)
    return ScriptPlace(script=artifacts.path(program.file), problem=problem)


def _problem(program: Program, sent: Iterable[Artifact], artifacts: Artifacts) -> str:
    if not program.path:
        return "the job was submitted without the path of its script"
    script = Path(program.path)
    if not os.access(script, os.R_OK):
        return f"{program.path!r}, from which it was submitted, is not on this TaskManager's host, or not accessible"
    for artifact in sent:
        for found, content, required in _counterparts(artifact, program, artifacts):
            if not _exists(found):
                if required:
                    return f"{str(found)!r}, which was sent with the job, is not there on this TaskManager's host"
            elif not _equal(found, content):
                return f"{str(found)!r} is not, or no longer, the file that was sent with the job"
    return ""


def _counterparts(
    artifact: Artifact, program: Program, artifacts: Artifacts
) -> Iterator[tuple[Path, Path | bytes, bool]]:
    """Yield where each file of an artifact is in the program's folder, what was sent, and whether it has to be there.

    Modules may come from elsewhere: one that is not beside the script is found among what was sent.
    """
    if artifact.kind not in (ArtifactKind.FILE, ArtifactKind.PY_FILE):
        return
    script, own, sent = Path(program.path), artifact.name == program.file, artifacts.path(artifact.name)
    searched = artifact.kind is ArtifactKind.PY_FILE or (own and program.module)
    if searched and zipfile.is_zipfile(sent):
        with zipfile.ZipFile(sent) as archive:
            for member in archive.infolist():
                found = script.parent / member.filename
                if not member.is_dir() and (own or _exists(found)):
                    yield found, archive.read(member), own
    else:
        required = own or artifact.kind is ArtifactKind.FILE
        yield script if own else script.parent / artifact.name, sent, required


def _exists(file: Path) -> bool:
    return os.path.lexists(file)  # False where a Path raises: access is denied


def _equal(found: Path, sent: Path | bytes) -> bool:
    try:
        if isinstance(sent, bytes):
            return found.is_file() and found.stat().st_size == len(sent) and found.read_bytes() == sent
        return filecmp.cmp(found, sent, shallow=False)
    except OSError:
        return False
