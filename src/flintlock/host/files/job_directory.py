"""The directory of a cluster's own job, or program: `job` in the state directory of a per-job or application cluster.

    document.json      the job, as POST /jobs would get it
    files/0, 1, ...    its artifacts
    cluster.json       the processes and settings of the cluster, to start it again
    description.json   which job that is; written last: a directory without it is not complete
    end.json           how the job has ended, with its results; written once, before the HA data is removed

The directory decides the mode: every JobManager that is started on this state directory serves this job. It stays when
the cluster has ended; only its owner can read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from flintlock.host.cluster_spec import ClusterSpec
from flintlock.host.files.private_files import make_private_directory
from flintlock.host.files.whole_files import write_whole
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Conflict, Invalid
from flintlock.model.ids import JobId

_DIRECTORY: Final = "job"
_DOCUMENT: Final = "document.json"
_CLUSTER: Final = "cluster.json"
_DESCRIPTION: Final = "description.json"
_END: Final = "end.json"


class JobDescription(Struct, frozen=True, kw_only=True, rename="kebab"):
    """Which job a cluster is for. `files` are the names of its artifacts, in the order of their files."""

    job_id: JobId
    name: str = ""
    attached: bool = False  # a client waits for the result
    submitted_by: str = ""
    application: bool = False  # the job is a program, which submits others
    files: tuple[str, ...] = ()


class JobEnd(Struct, frozen=True, kw_only=True, rename="kebab"):
    """How the cluster has ended. `job` is what `flintlock run --json` prints; `jobs` are those of a program."""

    application_status: ApplicationStatus
    job: msgspec.Raw = msgspec.Raw(b"null")
    jobs: msgspec.Raw = msgspec.Raw(b"[]")


class JobDirectory:
    """The directory of the job of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.path: Final = state_dir / _DIRECTORY
        self.end_file: Final = self.path / _END

    def create(
        self, description: JobDescription, document: bytes, files: Mapping[str, bytes | Path], spec: ClusterSpec
    ) -> None:
        """Write the job. Raises Conflict if there is one, OSError."""
        make_private_directory(self.path.parent)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            raise Conflict(
                f"job {description.job_id} was run before, in {self.path.parent}:"
                " give it another id, or remove that directory if it has ended"
            ) from None
        (self.path / "files").mkdir()
        for number, name in enumerate(description.files):
            content = files[name]
            data = content.read_bytes() if isinstance(content, Path) else content
            write_whole(self._file(number), data, mode=0o600)
        write_whole(self.path / _DOCUMENT, document, mode=0o600)
        write_whole(self.path / _CLUSTER, msgspec.json.encode(spec), mode=0o600)
        write_whole(self.path / _DESCRIPTION, msgspec.json.encode(description), mode=0o600)

    def describe(self) -> JobDescription | None:
        """Return which job it is; None if the cluster is for none. Raises Invalid for a damaged directory."""
        try:
            content = (self.path / _DESCRIPTION).read_bytes()
        except FileNotFoundError:
            if self.path.exists():
                raise Invalid(f"{self.path} is not complete: run the job again") from None
            return None
        try:
            return msgspec.json.decode(content, type=JobDescription)
        except msgspec.MsgspecError as error:
            raise Invalid(f"{self.path / _DESCRIPTION} cannot be read: {error}") from error

    def document(self) -> bytes:
        """Return the job's document. Raises OSError."""
        return (self.path / _DOCUMENT).read_bytes()

    def files(self, description: JobDescription) -> dict[str, Path]:
        """Return the files of the job's artifacts."""
        return {name: self._file(number) for number, name in enumerate(description.files)}

    def cluster_spec(self) -> ClusterSpec | None:
        """Return the processes and settings of the job's cluster; None if there is none."""
        try:
            return msgspec.json.decode((self.path / _CLUSTER).read_bytes(), type=ClusterSpec)
        except (OSError, msgspec.MsgspecError):
            return None

    def read_end(self) -> JobEnd | None:
        """Return how the job has ended; None if it has not. Raises Invalid for a damaged record, OSError."""
        try:
            return msgspec.json.decode(self.end_file.read_bytes(), type=JobEnd)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise Invalid(f"{self.end_file} cannot be read: {error}") from error

    def write_end(self, end: JobEnd) -> None:
        """Record the end: it is on the disk when this returns. Raises OSError."""
        unfinished = self.end_file.with_name(f".{_END}.{os.getpid()}")
        unfinished.unlink(missing_ok=True)
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(end))
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.end_file)
        directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _file(self, number: int) -> Path:
        return self.path / "files" / str(number)
