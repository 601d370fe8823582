"""A job's exception history: its failures, oldest first, with what else failed before the job ran again.

An entry is a cause; failures that came while the job was already restarting or failing stand below it. The last
`web.exception-history-size` entries are kept, and as many concurrent failures in each.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from flintlock.jobmaster.execution_graph import ExecutionGraph
from flintlock.model.ids import AttemptId
from flintlock.model.jobs import ExceptionEntry


def with_failure(job: ExecutionGraph, entry: ExceptionEntry, *, concurrent: bool) -> ExecutionGraph:
    """Return the job with one more failure in its history; the oldest one leaves it when it is full."""
    size, entries = job.plan.history_size, job.exceptions
    if concurrent and entries:
        root = entries[-1]
        root = structs.replace(root, concurrent=(*root.concurrent, entry)[:size])
        return structs.replace(job, exceptions=(*entries[:-1], root))
    return structs.replace(
        job,
        exceptions=(*entries, entry)[-size:],
        exceptions_truncated=job.exceptions_truncated or len(entries) >= size,
    )


def with_labels(job: ExecutionGraph, attempt: AttemptId | None, labels: Mapping[str, str]) -> ExecutionGraph:
    """Return the job with labels on the failure of that attempt (None: of the job itself), if it is still there."""
    return structs.replace(job, exceptions=tuple(_labelled(entry, attempt, labels) for entry in job.exceptions))


def _labelled(entry: ExceptionEntry, attempt: AttemptId | None, labels: Mapping[str, str]) -> ExceptionEntry:
    concurrent = tuple(_labelled(other, attempt, labels) for other in entry.concurrent)
    own = (
        entry.region is None if attempt is None else (entry.region, entry.attempt) == (attempt.region, attempt.attempt)
    )
    return structs.replace(entry, concurrent=concurrent, labels={**entry.labels, **labels} if own else entry.labels)
