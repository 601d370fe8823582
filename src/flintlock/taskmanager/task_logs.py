"""The captured output of attempts on this machine: a directory for each job, a file for each attempt.

All TaskManagers of a state directory share it, so any of them can read what another one captured. The files of a job
are removed once the cluster has forgotten the job; the leader says when.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.host.logs.stderr_spans import stderr_spans
from flintlock.model.errors import NotFound
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.tasks import LogChunk, LogQuery, TaskCanceled, TaskFailed, TaskFinished, TaskNews

#: How much of the end of an attempt's output is stored with its job, where it outlives the attempt's machine.
OUTPUT_TAIL_BYTES: Final = 8 << 10


def read_log(path: Path, query: LogQuery, *, running: bool) -> LogChunk:
    """Return a piece of an attempt's output; it is complete once the attempt's process is gone. Raises NotFound."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = max(size + query.offset, 0) if query.offset < 0 else min(query.offset, size)
            file.seek(offset)
            data = file.read(query.limit)
        # After the bytes: what is standard error is recorded before it is written.
        spans = stderr_spans(str(path), offset, offset + len(data))
        return LogChunk(data=data, offset=offset, size=size, complete=not running, stderr=spans)
    except FileNotFoundError:
        if running:
            return LogChunk(data=b"", offset=0, size=0, complete=False)
        raise NotFound(f"no output of attempt {query.attempt} is here") from None


def with_output_tail(news: TaskNews, path: Path) -> TaskNews:
    """Return a report of an attempt's end with the end of its output: the JobMaster stores it with the job."""
    if not isinstance(news, TaskFinished | TaskFailed | TaskCanceled):
        return news
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - OUTPUT_TAIL_BYTES))
            tail = file.read(OUTPUT_TAIL_BYTES)
    except OSError:
        return news
    return structs.replace(news, output_tail=tail) if tail else news


def logged_jobs(directory: Path) -> tuple[JobId, ...]:
    """Return the jobs whose output is in the directory; what else is there is not ours."""
    try:
        return tuple(JobId(path.name) for path in directory.iterdir() if is_job_id(path.name))
    except FileNotFoundError:
        return ()


def remove_logs(directory: Path, job_ids: Iterable[JobId]) -> None:
    """Remove the output of these jobs. Idempotent; what cannot be removed is left for the next time."""
    for job_id in job_ids:
        if is_job_id(job_id):
            shutil.rmtree(directory / job_id, ignore_errors=True)
