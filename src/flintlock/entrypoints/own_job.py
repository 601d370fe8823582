"""The job of a per-job cluster, or the program of an application, in its state directory (`host.job_directory`)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import structs

from flintlock.config.configuration import Configuration
from flintlock.config.options import PER_JOB_RESULT_TIMEOUT, RUNNER_USER
from flintlock.dispatcher.cluster_job import ClusterEnd, ClusterJob, ProgramJobs
from flintlock.dispatcher.leadership.leader_process import ApplicationLeaderProcessFactory
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.entrypoints.components import SESSION, DeploymentMode
from flintlock.entrypoints.process import ProcessSettings
from flintlock.host.files.job_directory import JobDescription, JobDirectory, JobEnd
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Invalid
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, JobGraph
from flintlock.model.tasks import ResultRows
from flintlock.rest.jobs import translate
from flintlock.rest.jobs.submission import graph_of_document

_CHUNK: Final = 1 << 20
_DETACHED_S: Final = 3.0


class BlobStorage(Protocol):
    """Where the artifacts of the job are put."""

    async def put(self, stream: AsyncIterator[bytes]) -> tuple[BlobKey, int]:
        """Store content durably; return its key and size."""
        ...


class EndStorage(Protocol):
    """Where the record of a job's end is kept, beside the file with it: a part of a Platform."""

    async def keep_end(self, file: Path) -> None:
        """Keep this file where a JobManager that is started again finds it. Raises OSError."""
        ...

    async def find_end(self, file: Path) -> None:
        """Put the record that an earlier start has kept into this file; leave no file if none has. Raises OSError."""
        ...


def deployment_mode(settings: ProcessSettings, blobs: BlobStorage, ends: EndStorage) -> DeploymentMode:
    """Return the mode of the cluster: per-job or application if its state directory has a job, else session.

    Raises Invalid for a job that cannot be run, before this JobManager contends for leadership.
    """
    directory = JobDirectory(settings.state_dir)
    description = directory.describe()
    if description is None:
        return SESSION
    if description.application and settings.configuration.get(RUNNER_USER):
        raise Invalid(
            f"{RUNNER_USER.key}: the program of an application submits jobs with the cluster's secret, which that user"
            " must not read; run it on a session cluster, with a token of its own"
        )
    application = ClusterJob(
        source=DirectoryJobSource(directory, description, blobs),
        record=FileJobEndRecord(directory, ends),
        result_timeout_s=result_timeout_s(settings.configuration, description),
        program_jobs=ProgramJobs(description.job_id) if description.application else None,
    )

    def leader_processes(services: DispatcherServices, open_term: TermOpener) -> ApplicationLeaderProcessFactory:
        return ApplicationLeaderProcessFactory(services, open_term, application)

    name = "application" if description.application else "per-job"
    return DeploymentMode(
        name=name,
        leader_processes=leader_processes,
        removes_ha_data=True,
        application=description.job_id if description.application else None,
    )


def result_timeout_s(configuration: Configuration, description: JobDescription) -> float:
    """Return how long the cluster serves after its end is recorded, unless a client shuts it down before.

    Also without a client that waits: one that has just cancelled the job, or follows it, is to see its end.
    """
    return configuration.get(PER_JOB_RESULT_TIMEOUT) if description.attached else _DETACHED_S


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

    def __init__(self, directory: JobDirectory, ends: EndStorage) -> None:
        self._directory: Final = directory
        self._ends: Final = ends

    async def read(self) -> ApplicationStatus | None:
        """Read the file, once it is found."""
        if not self._directory.end_file.exists():
            await self._ends.find_end(self._directory.end_file)
        end = await asyncio.to_thread(self._directory.read_end)
        return None if end is None else end.application_status

    async def write(self, end: ClusterEnd) -> None:
        """Write the file."""
        await asyncio.to_thread(self._write, end)
        await self._ends.keep_end(self._directory.end_file)

    def _write(self, end: ClusterEnd) -> None:
        attempts = translate.attempts(end.snapshot)
        document = {
            "jobid": attempts.jobid,
            "name": attempts.name,
            "status": attempts.status,
            "failure": attempts.failure,
            "failures": attempts.failures,
            "results": {rows.name: _table(rows) for rows in end.results},
        }
        jobs = [{"jobid": job.job_id, "name": job.name, "status": job.status} for job in end.jobs]
        self._directory.write_end(
            JobEnd(
                application_status=end.status,
                job=msgspec.Raw(msgspec.json.encode(document)),
                jobs=msgspec.Raw(msgspec.json.encode(jobs)),
            )
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
