"""What the Dispatcher decides: equal inputs give equal answers; no task, clock, store or randomness.

The phases of a job in the Dispatcher are the table `PHASE_MOVES`. A phase is not the job's status: the JobMaster owns
that until the result is durable. A phase is what the Dispatcher itself still has to do for the job, and so decides
whether a second submission is a duplicate, whether the job is visible, and what a cancel means.

Rejected: showing a terminal status as soon as the JobMaster has reached it. After a crash before the result is written,
a client that had seen the job end would see it run again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import structs

from flintlock.config.configuration import Configuration, Scope, config_problems
from flintlock.config.options import (
    OPTIONS,
    PARALLELISM_OVERRIDES,
    RESTORE_CLAIM_MODE,
    RESTORE_PATH,
    RESTORE_REWIND_SINKS,
    UPGRADE_OF,
)
from flintlock.ha.store_rules import duplicate_job
from flintlock.model.application import STATUS_OF_JOB, ApplicationStatus, is_program_key
from flintlock.model.checking.graphcheck import MAX_PARALLELISM, in_order, invalid_job, problems_of
from flintlock.model.checking.problems import MAX_MESSAGE, Problem, abbreviated, reported
from flintlock.model.commands import RescaleJob
from flintlock.model.errors import Conflict, DuplicateJob, InvariantBroken, KeyReused, Refused
from flintlock.model.ids import BlobKey, JobId, TriggerId, is_job_id
from flintlock.model.jobgraph import JobGraph, JobType, Versions, vertex_id
from flintlock.model.jobs import (
    ExceptionEntry,
    ExecutionInfo,
    JobOutcome,
    JobResult,
    JobSnapshot,
    JobSubmission,
    JobSummary,
    KeptResults,
    ParallelismRange,
    RetentionReading,
    StoredJob,
)
from flintlock.model.operations import Function
from flintlock.model.regions import is_endless, region_outputs, regions_of, shared_steps, values_of_region
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import RegionRecord
from flintlock.model.times import elapsed_ms


class JobPhase(StrEnum):
    """What the Dispatcher still has to do for a registered job."""

    RESERVED = "RESERVED"  # the id is taken, nothing is durable: clients do not see the job
    DISCARDING = "DISCARDING"  # it could not be stored: what may be left of it is removed
    INITIALIZING = "INITIALIZING"  # durable and visible; it has no JobMaster yet
    RUNNING = "RUNNING"  # it has a JobMaster
    ENDING = "ENDING"  # its JobMaster is done; how it ended is not durable yet
    CLEANING = "CLEANING"  # how it ended is durable; what it used is removed


#: Every legal move. A submission begins RESERVED, a recovered job INITIALIZING, a dirty result CLEANING.
PHASE_MOVES: Final[Mapping[JobPhase, frozenset[JobPhase]]] = {
    JobPhase.RESERVED: frozenset({JobPhase.DISCARDING, JobPhase.INITIALIZING}),
    JobPhase.DISCARDING: frozenset(),
    JobPhase.INITIALIZING: frozenset({JobPhase.RUNNING, JobPhase.ENDING}),
    JobPhase.RUNNING: frozenset({JobPhase.ENDING}),
    JobPhase.ENDING: frozenset({JobPhase.CLEANING}),
    JobPhase.CLEANING: frozenset(),
}

#: Phases in which clients see the job through its registration.
VISIBLE: Final = frozenset({JobPhase.INITIALIZING, JobPhase.RUNNING, JobPhase.ENDING, JobPhase.CLEANING})


def moved(old: JobPhase, new: JobPhase) -> JobPhase:
    """Return `new`. Raises InvariantBroken if a job cannot move there from `old`."""
    if new not in PHASE_MOVES[old]:
        raise InvariantBroken(f"a job cannot move from {old} to {new} in the Dispatcher")
    return new


# Submission


def duplicate(job_id: JobId, phase: JobPhase | None) -> DuplicateJob | None:
    """Return why this id cannot be submitted, given its phase now; None if it can, as far as is known here.

    Whether a job of that id has ended is checked by the transaction that stores the graph. An id whose failed
    submission is still being removed is free: the next submission of it waits for the removal.
    """
    if phase is JobPhase.CLEANING:
        return duplicate_job(job_id, ended=True)
    if phase is None or phase is JobPhase.DISCARDING:
        return None
    return duplicate_job(job_id, ended=False)


def foreign(job_id: JobId, only_job: JobId) -> Conflict | None:
    """Return the refusal of a job that a cluster does not run, which is for one job only."""
    if job_id == only_job:
        return None
    return Conflict(
        f"this cluster runs job {only_job} and ends with it, and accepts no other job: submit to a session cluster"
    )


def after_program(job_id: JobId, program: JobId, *, program_ended: bool) -> Conflict | None:
    """Return the refusal of a job that comes after the end of the application whose cluster this is."""
    if not program_ended or job_id == program:
        return None
    return Conflict(f"the program of this application, job {program}, has ended: its cluster accepts no other job")


def application_status(program: JobSnapshot, jobs: Iterable[JobSummary]) -> ApplicationStatus:
    """Return how an application has ended: as its program, unless a job failed that the program left running.

    What became of a job that ended before it, the program could see: it has decided itself what that means.
    """
    left = (job for job in jobs if job.status is JobStatus.FAILED and job.end_ms >= program.end_ms)
    if program.status is JobStatus.FINISHED and next(left, None) is not None:
        return ApplicationStatus.FAILED
    return STATUS_OF_JOB[program.status]


def submission_digest(key: str, message: JobSubmission) -> str:
    """Return what a submission that is repeated under a key must agree in.

    The n-th submission of a program that runs again is its n-th job if it has the same name: times, paths and pickled
    functions may differ from run to run.
    """
    return f"name:{message.graph.name}" if is_program_key(key) else message.digest


def repeated(key: str, known: JobId, known_digest: str, digest: str) -> JobId:
    """Return the job that an idempotency key made. Raises KeyReused if it made it from another graph."""
    if known_digest != digest:
        raise KeyReused(f"the idempotency key {key!r} was used for another graph: it made job {known}")
    return known


def accepted_graph(submission: JobSubmission, cluster: Versions, overrides: Mapping[str, int]) -> JobGraph:
    """Return the graph as it is run: with the parallelism that configuration imposes, steps in topological order.

    `overrides` are the cluster's; the job's own come before them. Raises Invalid with every problem found.
    """
    graph = submission.graph
    problems = [
        *_id_problems(graph),
        *(
            Problem(field=f"config.{key}", message=message)
            for key, message in config_problems(graph.config, OPTIONS, Scope.JOB)
        ),
        *version_problems(graph, cluster),
    ]
    checked = graph if problems else with_overrides(graph, overrides)
    lines = reported((*problems_of(checked), *problems))
    if lines:
        raise invalid_job(graph.name, lines)
    return in_order(checked)


def with_overrides(graph: JobGraph, cluster: Mapping[str, int]) -> JobGraph:
    """Return the graph with the parallelism of steps that configuration names by their ids. Other ids are ignored."""
    overrides = {**cluster, **Configuration(graph.config).get(PARALLELISM_OVERRIDES)}
    if not overrides:
        return graph
    return structs.replace(
        graph,
        vertices=tuple(
            structs.replace(vertex, parallelism=overrides.get(vertex.id, vertex.parallelism))
            for vertex in graph.vertices
        ),
    )


def expanded(graph: JobGraph, command: RescaleJob) -> RescaleJob:
    """Return the command with a range for each step that it concerns."""
    if command.parallelism is None:
        return command
    limits = ParallelismRange(lower=1, upper=command.parallelism)
    return structs.replace(command, vertices={**{v.id: limits for v in graph.vertices}, **command.vertices})


def requirement_problems(graph: JobGraph, wanted: RescaleJob) -> tuple[str, ...]:
    """Return what is wrong with a change of what a job may use."""
    names = {vertex.id: vertex.name for vertex in graph.vertices}
    unknown = (vertex for vertex in wanted.vertices if vertex not in names)
    problems = [f"there is no step {abbreviated(vertex)!r} in this job" for vertex in unknown]
    for vertex, limits in wanted.vertices.items():
        if not 1 <= limits.lower <= limits.upper <= MAX_PARALLELISM:
            problems.append(
                f"step {names.get(vertex, vertex)!r}: the parallelism must go from at least 1 to at most "
                f"{MAX_PARALLELISM}, not from {limits.lower} to {limits.upper}"
            )
    by_step = {vertex.name: wanted.vertices[vertex.id] for vertex in graph.vertices if vertex.id in wanted.vertices}
    regions = regions_of(graph)
    shared = shared_steps(regions)
    for region in regions:
        ranges = values_of_region(region, shared, by_step)
        if len({(limits.lower, limits.upper) for limits in ranges.values()}) > 1:
            problems.append(f"the steps {', '.join(ranges)} run as one task: they must agree on a parallelism")
    return reported(abbreviated(problem, MAX_MESSAGE) for problem in problems)


def rescale_outcomes(
    graph: JobGraph, executions: Iterable[ExecutionInfo], trigger_id: TriggerId
) -> tuple[str, ...] | None:
    """Return for which queries a rescale has failed, and why; None while one has not reported what came of it.

    Each query is rescaled by itself: where it has failed for some, the last problem names those that it changed.
    """
    regions = regions_of(graph)
    latest = {execution.region: execution for execution in executions}  # in the order of their attempts
    failures: list[str] = []
    changed: list[str] = []
    for region in regions:
        execution = latest.get(region.id)
        if execution is None:
            return None
        name = region_outputs(graph, region)[0].name
        outcome = execution.query.rescaled if execution.query is not None else None
        if outcome is not None and outcome.trigger_id != trigger_id:
            outcome = None
        if execution.state not in (ExecutionState.RUNNING, ExecutionState.FINISHED):
            return None
        if outcome is not None:
            if outcome.failure:
                failures.append(f"query {name!r} continues with {outcome.partitions} partitions: {outcome.failure}")
            elif outcome.partitions:
                changed.append(f"query {name!r} has {outcome.partitions} partitions now")
        elif execution.state is ExecutionState.RUNNING:
            return None
        elif is_endless(graph, region):
            failures.append(f"query {name!r} was stopped before its state was repartitioned")
    return (*failures, *changed) if failures else ()


def version_problems(graph: JobGraph, cluster: Versions) -> list[Problem]:
    """Return where the versions that pickled the graph's functions are incompatible with the cluster's.

    A pickle holds bytecode and class layouts, so both sides agree up to the minor version. A graph without pickled
    functions is compatible with every version.
    """
    pickled = next(
        (v.name for v in graph.vertices if isinstance(v.operation, Function) and v.operation.pickle is not None),
        None,
    )
    if pickled is None:
        return []
    client = graph.client
    if client is None:
        message = f"step {pickled!r} has a pickled function, but the job does not say which versions pickled it"
        return [Problem(field="client", message=message)]
    return [
        Problem(
            field="client",
            message=f"step {pickled!r} was pickled with {mismatch.product} {mismatch.own}, and the cluster runs "
            f"{mismatch.product} {mismatch.other}: the two must agree up to the minor version",
        )
        for mismatch in client.mismatches(cluster)
    ]


def _id_problems(graph: JobGraph) -> Iterable[Problem]:
    if not is_job_id(graph.job_id):
        yield Problem(field="jobId", message=f"{graph.job_id!r} is not 32 lower-case hexadecimal digits")


# Cancel


def check_cancel_of_ended(job_id: JobId, status: JobStatus) -> None:
    """Accept the cancel of a job that is CANCELED already; raise Conflict for one that ended otherwise."""
    if status is not JobStatus.CANCELED:
        raise Conflict(f"job {job_id} is {status}: it has ended and cannot be cancelled")


# End and cleanup


class CleanupResource(StrEnum):
    """What cleanup removes of a job, each independently of the others; and the archive, which it completes first."""

    ARCHIVE = "archive"
    GRAPH = "graph"
    PROGRESS = "progress"
    BLOBS = "blobs"
    FILES = "files"


#: What is removed only after something else. Graph and progress are what the archive is made of, and progress has the
#: rows of results. Blobs are unlinked after the pointer to them was removed in a fenced transaction, so that a leader
#: with an outdated token unlinks nothing. The others are removed concurrently.
REMOVED_AFTER: Final[Mapping[CleanupResource, CleanupResource]] = {
    CleanupResource.GRAPH: CleanupResource.ARCHIVE,
    CleanupResource.PROGRESS: CleanupResource.ARCHIVE,
    CleanupResource.BLOBS: CleanupResource.GRAPH,
}


def cleanup_plan(
    *,
    blobs: Collection[str],
    scratch: Collection[str],
    archived: bool = True,
    quarantined: bool = False,
    kept: bool = False,
) -> tuple[CleanupResource, ...]:
    """Return what the global cleanup of a job removes. A suspended job keeps all of it for the next leader.

    A job that is not known to be archived is archived first. A quarantined one keeps what it uses; one whose results
    are kept keeps its progress.
    """
    stored = (CleanupResource.GRAPH,) if quarantined or kept else (CleanupResource.GRAPH, CleanupResource.PROGRESS)
    stored = stored if archived else (CleanupResource.ARCHIVE, *stored)
    if quarantined:
        return stored
    return stored + ((CleanupResource.BLOBS,) if blobs else ()) + ((CleanupResource.FILES,) if scratch else ())


def result_of(outcome: JobOutcome, kept: KeptResults | None = None) -> JobResult:
    """Return the entry for the JobResultStore. Raises InvariantBroken if the job has not ended."""
    snapshot = outcome.snapshot
    if not snapshot.status.globally_terminal:
        raise InvariantBroken(f"the JobMaster of job {snapshot.graph.job_id} ended while the job is {snapshot.status}")
    return JobResult(
        job_id=snapshot.graph.job_id,
        name=snapshot.graph.name,
        status=snapshot.status,
        start_ms=snapshot.timestamps.get(JobStatus.INITIALIZING, 0),
        end_ms=snapshot.end_ms,
        scratch=outcome.scratch,
        blobs=blobs_of(snapshot.graph),
        ended_at_ms=snapshot.ended_at_ms,
        kept=kept,
        cause=_cause(snapshot),
    )


def _cause(snapshot: JobSnapshot) -> ExceptionEntry | None:
    """Return why a job has failed, as briefly as a result says it."""
    if snapshot.status is not JobStatus.FAILED or not snapshot.exceptions:
        return None
    last = snapshot.exceptions[-1]
    failure = structs.replace(last.failure, stack_trace="", jvm_stack_trace=None)
    return structs.replace(last, failure=failure, concurrent=())


def may_be_unrestored(graph: JobGraph, progress: Iterable[RegionRecord]) -> bool:
    """Return whether a job begins from a savepoint, and has not run yet as far as its progress says.

    Before an attempt is deployed it is recorded, and before that the job is restored: what is on storage that cannot be
    read now need not be asked for a job that runs.
    """
    return bool(graph.config.get(RESTORE_PATH.key)) and all(record.reused_from for record in progress)


def keeping_checkpoints(outcome: JobOutcome) -> JobOutcome:
    """Return the outcome of a streaming job with its checkpoints left out of what is removed."""
    own = f"/{outcome.snapshot.graph.job_id}"
    return structs.replace(outcome, scratch=tuple(path for path in outcome.scratch if not path.endswith(own)))


def blobs_of(graph: JobGraph) -> tuple[BlobKey, ...]:
    """Return the blobs that a job needs, each once."""
    return tuple(dict.fromkeys(artifact.blob for artifact in graph.artifacts))


def blobs_of_job(job: StoredJob) -> tuple[BlobKey, ...]:
    """Return the blobs that a stored job needs, each once: also those of the job whose place it takes."""
    former = () if job.upgrade is None else blobs_of(job.upgrade.former)
    return tuple(dict.fromkeys((*blobs_of(job.graph), *former)))


def check_shared_checkpoints(graph: JobGraph, unshared: str, addresses: Iterable[str]) -> None:
    """Raise Refused if a streaming job could not find its checkpoint again, because TaskManagers are on several hosts.

    `unshared`: the directory of checkpoints, if it is one of the JobManager's machine that was not chosen.
    """
    hosts = sorted({address.rpartition(":")[0] for address in addresses})
    if graph.job_type is JobType.STREAMING and unshared and len(hosts) > 1:
        raise Refused(
            f"TaskManagers are on {', '.join(hosts)}, and checkpoints of streaming jobs would be in {unshared} of each:"
            " a query that is restarted on another host would start from the beginning. Set state.checkpoints.dir to a"
            " directory that all of them share"
        )


#: What a configuration says of how a job began, and not of how it runs.
_OF_THE_BEGINNING: Final = frozenset({UPGRADE_OF.key, RESTORE_REWIND_SINKS.key})


def id_of_former_again(failed: JobId) -> JobId:
    """Return the id under which the graph runs again whose place a job has taken that has failed."""
    return JobId(vertex_id(failed, "the job before the upgrade"))


def former_again(failed: JobGraph, former: JobGraph, savepoint: str) -> JobGraph:
    """Return the graph of a job that was upgraded, to run again from a savepoint.

    Its id follows from the failed job's, so that it is submitted once. Its sinks are not taken back: the failed job has
    put nothing into them, and has not ended yet.
    """
    job_id = id_of_former_again(JobId(failed.job_id))
    begun = {key: value for key, value in former.config.items() if key not in _OF_THE_BEGINNING}
    restored = {RESTORE_PATH.key: savepoint, RESTORE_CLAIM_MODE.key: failed.config[RESTORE_CLAIM_MODE.key]}
    return structs.replace(
        former,
        job_id=job_id,
        config={**begun, **restored},
        client_timeout_s=None,
        vertices=tuple(structs.replace(vertex, id=vertex_id(job_id, vertex.name)) for vertex in former.vertices),
        rerun_of=former.job_id,
    )


def recorded_scratch(progress: Iterable[RegionRecord]) -> tuple[str, ...]:
    """Return the directories recorded for a job without a JobMaster: staging, and the one of its blocking results."""
    return tuple(
        dict.fromkeys(directory for record in progress for directory in (*record.staging, *_work_directories(record)))
    )


def _work_directories(record: RegionRecord) -> Iterable[str]:
    """Return the directories of the job that its blocking results are in. Those of other jobs, which it reads, stay."""
    for path in () if record.outcome is None else record.outcome.materialised.values():
        head, found, _ = path.partition(f"/{record.job_id}/")
        if found:
            yield f"{head}/{record.job_id}"


# Recovery


def graphs_to_recover(stored: Iterable[JobId], dirty: Iterable[JobResult]) -> tuple[JobId, ...]:
    """Return the jobs to run again: the stored ones without a dirty result."""
    ended = {result.job_id for result in dirty}
    return tuple(job_id for job_id in stored if job_id not in ended)


def check_recovery(recovered: Iterable[JobId], dirty: Iterable[JobResult]) -> None:
    """Raise InvariantBroken if a job was recovered both as one to run and as ended."""
    both = {result.job_id for result in dirty}.intersection(recovered)
    if both:
        raise InvariantBroken(f"jobs recovered together with their dirty results: {', '.join(sorted(both))}")


# Retention

#: A wall clock that differs by more than this from the time that has passed has jumped.
JUMP_S: Final = 2.0


def first_retention_ms(recorded: RetentionReading | None, wall_ms: int, newest_end_ms: int | None) -> int:
    """Return where the retention clock of a term begins: where it was recorded last; at first, at the wall clock.

    A wall clock later than the newest end of a job may be ahead: then that end counts.
    """
    if recorded is not None:
        return recorded.clock_ms
    return wall_ms if newest_end_ms is None else min(wall_ms, newest_end_ms)


def timed_on_cluster(job: StoredJob, *, cluster_ms: int, wall_ms: int) -> StoredJob:
    """Return a job whose timeout counts on the retention clock, also one that an older version stored.

    For that one, what has passed by the wall clock is counted. The two clocks cannot be compared: either may be days
    ahead.
    """
    if job.submitted_at_ms:
        return job
    return structs.replace(job, submitted_at_ms=max(1, cluster_ms - elapsed_ms(job.submitted_ms, wall_ms)))


def wall_clock_jump_s(*, passed_s: float, before_ms: int, now_ms: int) -> float:
    """Return by how much the wall clock has jumped while `passed_s` passed; 0 if it has not."""
    jump_s = (now_ms - before_ms) / 1000 - passed_s
    return round(jump_s, 3) if abs(jump_s) > JUMP_S else 0.0


def wall_clock_went_back(recorded: RetentionReading, wall_ms: int) -> bool:
    """Return whether the wall clock shows less than when the retention clock was recorded."""
    return wall_ms < recorded.wall_ms - JUMP_S * 1000


def expired_before_ms(clock_ms: int, retention_s: float) -> int:
    """Return the time, on the retention clock, before which jobs must have ended to be expired."""
    return clock_ms - round(retention_s * 1000)


def expiry_period_s(retention_s: float) -> float:
    """Return the pause between two sweeps of ended jobs: a tenth of their retention, at most an hour."""
    return min(3600.0, max(1.0, retention_s / 10))
