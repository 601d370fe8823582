"""The job of a per-job cluster, from and to the files of its state directory (`host.job_directory`)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import structs

from flintlock.config.options import PER_JOB_RESULT_TIMEOUT
from flintlock.dispatcher.leadership.leader_process import ApplicationLeaderProcessFactory
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.dispatcher.single_job import ClusterJob
from flintlock.entrypoints.components import SESSION, DeploymentMode
from flintlock.entrypoints.process import ProcessSettings
from flintlock.host.job_directory import JobDescription, JobDirectory, JobEnd
from flintlock.model.application import STATUS_OF_JOB, ApplicationStatus
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, JobGraph
from flintlock.model.jobs import JobSnapshot
from flintlock.model.tasks import ResultRows
from flintlock.rest.jobs import translate
from flintlock.rest.jobs.submission import graph_of_document

_CHUNK: Final = 1 << 20


class BlobStorage(Protocol):
    """Where the artifacts of the job are put."""

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store content durably; return its key and size."""
        ...


def deployment_mode(settings: ProcessSettings, blobs: BlobStorage) -> DeploymentMode:
    """Return the mode of the cluster: per-job if its state directory has a job, else session.

    Raises Invalid for a job that cannot be run, before this JobManager contends for leadership.
    """
    directory = JobDirectory(settings.state_dir)
    description = directory.describe()
    if description is None:
        return SESSION
    application = ClusterJob(
        source=DirectoryJobSource(directory, description, blobs),
        record=FileJobEndRecord(directory),
        result_timeout_s=settings.configuration.get(PER_JOB_RESULT_TIMEOUT) if description.attached else 0.0,
    )

    def leader_processes(services: DispatcherServices, open_term: TermOpener) -> ApplicationLeaderProcessFactory:
        return ApplicationLeaderProcessFactory(services, open_term, application)

    return DeploymentMode(name="per-job", leader_processes=leader_processes, removes_ha_data=True)


class DirectoryJobSource:
    """A JobSource. The job is read and checked when this is made. Raises Invalid, OSError."""

    def __init__(self, directory: JobDirectory, description: JobDescription, blobs: BlobStorage) -> None:
        self._files: Final = directory.files(description)
        self._blobs: Final = blobs
        artifacts = {name: _artifact(name, path) for name, path in self._files.items()}
        graph = graph_of_document(directory.document(), artifacts, description.job_id)
        self._graph: Final = structs.replace(graph, submitted_by=description.submitted_by)

    @property
    def job_id(self) -> JobId:
        """The id in the description."""
        return self._graph.job_id

    async def load(self) -> JobGraph:
        """Put the artifacts into the blob storage."""
        for path in self._files.values():
            await self._blobs.put(_pieces(path))
        return self._graph


class FileJobEndRecord:
    """A JobEndRecord: the file `end.json`."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory: Final = directory

    async def read(self) -> ApplicationStatus | None:
        """Read the file."""
        end = await asyncio.to_thread(self._directory.read_end)
        return None if end is None else end.application_status

    async def write(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Write the file."""
        await asyncio.to_thread(self._write, snapshot, results)

    def _write(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        attempts = translate.attempts(snapshot)
        document = {
            "jobid": attempts.jobid,
            "name": attempts.name,
            "status": attempts.status,
            "failure": attempts.failure,
            "failures": attempts.failures,
            "results": {rows.name: _table(rows) for rows in results},
        }
        self._directory.write_end(
            JobEnd(application_status=STATUS_OF_JOB[snapshot.status], job=msgspec.Raw(msgspec.json.encode(document)))
        )


def _table(rows: ResultRows) -> Mapping[str, object]:
    columns_and_rows = msgspec.json.decode(rows.json, type=dict[str, msgspec.Raw])
    return {"name": rows.name, "truncated": rows.truncated, **columns_and_rows}


def _artifact(name: str, path: Path) -> Artifact:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return Artifact(name=name, blob=BlobKey(f"sha256-{digest.hexdigest()}"), size=path.stat().st_size)


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece
