"""The captured output of attempts on this machine: a directory for each job, a file for each attempt.

All TaskManagers of a state directory share it, so any of them can read what another one captured. The files of a job
are removed once the cluster has forgotten the job; the leader says when.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.host.logs.stderr_spans import stderr_spans
from flintlock.model.errors import NotFound
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.tasks import LogChunk, LogQuery, TaskCanceled, TaskFailed, TaskFinished, TaskNews

#: How much of the end of an attempt's output is stored with its job, where it outlives the attempt's machine.
OUTPUT_TAIL_BYTES: Final = 8 << 10

LISTED_AT_ONCE: Final = 50_000
"""The jobs of one listing of a directory of logs: some megabytes."""


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


class LoggedJobPages:
    """Pages of the jobs whose output is in a directory, in the order of their ids; what else is there is not ours.

    A page costs what it contains: the directory of a million jobs is listed once for many pages of a walk, and only
    a part of it is held between them. Methods may be called by several threads at once.
    """

    def __init__(self, directory: Path, listed_at_once: int = LISTED_AT_ONCE) -> None:
        self._directory: Final = directory
        self._listed_at_once: Final = listed_at_once
        self._listed: _Listed | None = None  # written by `page`; None: no walk is under way

    def page(self, after: str, limit: int) -> tuple[JobId, ...]:
        """Return the first jobs behind `after`. The first page of a walk lists the directory anew."""
        listed = self._listed if after else None
        if listed is None or not listed.covers(after, limit):
            listed = self._list(after)
        first = bisect_right(listed.job_ids, after)
        found = listed.job_ids[first : first + limit]
        self._listed = None if listed.is_last and first + limit >= len(listed.job_ids) else listed
        return tuple(found)

    def _list(self, after: str) -> _Listed:
        try:
            with os.scandir(self._directory) as entries:
                behind = (JobId(each.name) for each in entries if each.name > after and is_job_id(each.name))
                found = nsmallest(self._listed_at_once, behind)
        except FileNotFoundError:
            found = []
        return _Listed(after, found, is_last=len(found) < self._listed_at_once)


@dataclass(frozen=True)
class _Listed:
    """The first jobs behind one, by id, as they were listed."""

    after: str
    job_ids: list[JobId]
    is_last: bool  # there were no more

    def covers(self, after: str, limit: int) -> bool:
        """Return whether a page is a part of it."""
        return self.after <= after and (self.is_last or bisect_right(self.job_ids, after) + limit <= len(self.job_ids))


def remove_logs(directory: Path, job_ids: Iterable[JobId]) -> None:
    """Remove the output of these jobs. Idempotent; what cannot be removed is left for the next time."""
    for job_id in job_ids:
        if is_job_id(job_id):
            shutil.rmtree(directory / job_id, ignore_errors=True)
