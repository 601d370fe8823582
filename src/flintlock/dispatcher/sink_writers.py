"""Which job writes to which file sink of a streaming query: of two live jobs, one gets it.

Spark numbers the batches of a query, and a file sink skips each number that is in its log. Two queries on one sink plan
the same numbers with different rows: those of the later one are dropped without an error. So a job that may run has its
file sinks for itself:

    from    the reservation of its id, or, put back from the quarantine, from before that is stored
    until   how it ended is durable, or nothing is left of a submission that may have been stored: where the leader dies
            before, the next one runs the job. That its JobMaster is done is not enough
    also    those of the job whose place it has taken, until it has committed a batch: if it fails before that, the
            former graph runs again. That is never refused: what it writes to was kept for it

What is decided here is decided without a pause before the job is registered; so of the jobs in the store that have not
ended, no two have one sink, and a new leader need not compare those that it recovers. Those of a store of an older
version may have one: all of them are recovered and run, as they did before.

Rejected: the claims of the JobMasters (`jobmaster/target_claims.py`), which are made when an attempt is deployed. The
job would be stored and shown, and would fail, perhaps hours later, instead of being refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.config.options import RESTORE_REWIND_SINKS
from flintlock.dispatcher.core import JobPhase, id_of_former_again
from flintlock.dispatcher.job import DispatchedJob
from flintlock.model.errors import Conflict, Unavailable
from flintlock.model.files.targets import comparable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph, JobVertex
from flintlock.model.operations import Guarantee


class SinkWriters:
    """The writers of file sinks in one term."""

    def __init__(self, jobs: Mapping[JobId, DispatchedJob], recovered: asyncio.Event) -> None:
        self._jobs: Final = jobs
        self._recovered: Final = recovered  # set once the jobs of earlier terms are among them
        self._returning: Final[dict[JobId, tuple[JobGraph, ...]]] = {}  # put back from the quarantine, unregistered yet
        self._replaced: Final[dict[asyncio.Task[None], DispatchedJob]] = {}  # being removed; their ids are others' now

    def check(self, graph: JobGraph) -> None:
        """Raise Conflict if another job writes to a file sink of a graph, Unavailable while that is not known.

        The job whose place it takes ends before it starts, and is none of these. The caller registers the job without
        a pause.
        """
        if not _sinks_of(graph):
            return
        if not self._recovered.is_set():
            raise Unavailable("which jobs write to its sinks is not known while jobs are being recovered; ask again")
        jobs = [job for job in (*self._jobs.values(), *self._replaced.values()) if not job.ended]
        if any(_is_way_back(graph, job) for job in jobs):
            return
        check_not_written(graph, chain.from_iterable(self._returning.values()))
        for job in jobs:
            if job.job_id not in (graph.job_id, graph.upgrade_of):
                _check_job(graph, job)

    def replace(self, removed: DispatchedJob | None) -> None:
        """Keep the sinks of a submission that is being removed while another job has its id."""
        if removed is not None and removed.task is not None and not removed.task.done():
            self._replaced[removed.task] = removed
            removed.task.add_done_callback(lambda task: self._replaced.pop(task, None))

    @contextmanager
    def returning(self, graph: JobGraph | None, former: JobGraph | None = None) -> Generator[None]:
        """Keep the file sinks for a job that is put back, until it is registered. Raises as `check`.

        Those, too, of the job whose place it has taken, if that may run again.
        """
        if graph is None:  # it cannot be read, and will not run
            yield
            return
        kept = (graph,) if former is None else (graph, former)
        for each in kept:
            self.check(each)
        self._returning[graph.job_id] = kept
        try:
            yield
        finally:
            del self._returning[graph.job_id]


def _check_job(graph: JobGraph, job: DispatchedJob) -> None:
    """Raise Conflict if a job that has not ended writes to a sink of a graph, Unavailable if that is over soon."""
    try:
        check_not_written(graph, [job.stored.graph])
    except Conflict as error:
        if job.phase is JobPhase.DISCARDING:
            raise Unavailable(
                f"a submission of job {job.job_id} with the same sink may have been stored, and is being removed; ask"
                " again"
            ) from error
        if job.ending:
            raise Unavailable(f"the end of job {job.job_id}, with the same sink, is being stored; ask again") from error
        raise
    former = _may_go_back_to(job)
    if former is not None and _sinks_of(graph) & _sinks_of(former):
        raise Conflict(
            f"job {former.job_id} has the same sink, and runs again if job {job.job_id}, which takes its place, fails"
            " before its first batch: wait for that, or choose another path"
        )


def _may_go_back_to(job: DispatchedJob) -> JobGraph | None:
    """Return the graph that runs again if the job fails; None if there is none, or if it has committed a batch."""
    upgrade = job.stored.upgrade
    if upgrade is None:
        return None
    with suppress(Exception):  # a JobMaster that does not answer: it may
        attempts = job.snapshot().executions
        if any(each.query is not None and (each.query.batches or each.query.gone_on) for each in attempts):
            return None
    return upgrade.former


def _is_way_back(graph: JobGraph, job: DispatchedJob) -> bool:
    """Return whether a graph is what runs again because a job has failed that took its place."""
    upgrade = job.stored.upgrade
    return (
        upgrade is not None
        and graph.job_id == id_of_former_again(job.job_id)
        and _sinks_of(graph) <= _sinks_of(upgrade.former)
    )


def check_not_written(graph: JobGraph, others: Iterable[JobGraph]) -> None:
    """Raise Conflict if another job writes to a file sink of a graph.

    What batch jobs write counts only where sinks are taken back to a savepoint: it would be moved away.
    """
    rewinds = Configuration(graph.config).get(RESTORE_REWIND_SINKS)
    own = _sinks_of(graph)
    for other in others:
        if other.job_id in (graph.job_id, graph.upgrade_of):
            continue
        for vertex in other.vertices:
            target = vertex.operation.target if rewinds and not vertex.has_output else _sink_of(vertex)
            if target is None or comparable(target) not in own:
                continue
            if rewinds:
                raise Conflict(f"job {other.job_id} writes to {target}: stop it before the sink is taken back")
            raise Conflict(
                f"job {other.job_id} writes to {target}: of two streaming queries that write to one path, Spark drops"
                " the batches of one silently. Stop that job first, or choose another path"
            )


def _sinks_of(graph: JobGraph) -> frozenset[str]:
    return frozenset(comparable(target) for vertex in graph.vertices if (target := _sink_of(vertex)) is not None)


def _sink_of(vertex: JobVertex) -> str | None:
    """Return the path of a file sink of a streaming query, which has a log of Spark's."""
    return vertex.operation.target if vertex.guarantee is Guarantee.SINK_LOG else None
