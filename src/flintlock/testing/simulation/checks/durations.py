"""Whether users see durations that cannot be: the clock of a JobManager may be set back while a job runs.

A snapshot has times of the wall clock. What clients read of it over REST is made of it here, by the functions that make
the responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast

import msgspec

from flintlock.api.job_lines import overview_entry
from flintlock.model.jobs import JobSnapshot
from flintlock.rest.jobs.translate import execution_result, job_details
from flintlock.rest.metrics.job_metrics import job_values
from flintlock.rest.vertices.translate import details, task_managers, times, vertex_views

_Document: TypeAlias = "Mapping[str, _Document] | Sequence[_Document] | str | int | float | bool | None"

#: The fields of responses that are durations, or have durations in them.
_DURATIONS: Final = ("duration", "runtime", "uptime", "downtime")
_UNKNOWN: Final = -1  # not begun, or not known


def duration_problems(job: JobSnapshot, now_ms: int) -> list[str]:
    """Return the negative durations in what REST shows of a job while the clock of its JobManager shows `now_ms`."""
    views = vertex_views(job, now_ms)
    shown = {
        "details": job_details(job, now_ms),
        "overview": overview_entry(job.summary(), now_ms),
        "execution-result": execution_result(job),
        "metrics": job_values(job, now_ms),
        "vertices": [(details(view), times(view), task_managers(view)) for view in views],
    }
    document = msgspec.to_builtins(shown, str_keys=True)
    return [f"job {job.graph.job_id} shows {field} = {value}" for field, value in negative_durations(document)]


def negative_durations(document: _Document, path: str = "", *, inside: bool = False) -> Iterator[tuple[str, float]]:
    """Return the negative durations of a response, each with its path; -1 is none. `inside` is for what is in one."""
    if isinstance(document, Mapping):
        for name, value in cast("Mapping[str, _Document]", document).items():
            is_duration = inside or any(kind in name for kind in _DURATIONS)
            yield from negative_durations(value, f"{path}/{name}", inside=is_duration)
    elif isinstance(document, int | float):
        if inside and document < 0 and document != _UNKNOWN:
            yield path, document
    elif isinstance(document, Sequence) and not isinstance(document, str):
        for number, value in enumerate(document):
            yield from negative_durations(value, f"{path}/{number}", inside=inside)
