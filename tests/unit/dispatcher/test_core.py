"""Decisions of the Dispatcher, without any of its doing."""

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import CODE, VERSIONS, A, B, C, graph, record

from flintlock.dispatcher import core
from flintlock.dispatcher.core import CleanupResource, JobPhase
from flintlock.dispatcher.snapshots import initial_snapshot, recorded_snapshot
from flintlock.model.access.confinement import removal_problem
from flintlock.model.commands import RescaleJob
from flintlock.model.errors import Conflict, Invalid, InvariantBroken, KeyReused, Refused
from flintlock.model.ids import JobId, StepName, VertexId
from flintlock.model.jobgraph import Artifact, ArtifactKind, JobGraph, JobType, Versions
from flintlock.model.jobs import JobOutcome, JobResult, JobSubmission, ParallelismRange, StoredJob
from flintlock.model.operations import Function
from flintlock.model.states import JobStatus
from flintlock.model.tasks import RemoveFiles

ENDED = JobResult(job_id=A, name="job", status=JobStatus.FINISHED, start_ms=1, end_ms=2)


def pickled(client: Versions | None) -> JobGraph:
    """A graph with a pickled function in it."""
    plain = graph()
    source, top = plain.vertices
    step = structs.replace(
        source, name=StepName("priced"), operation=Function(pickle="priced.pkl"), inputs=(StepName("rows"),)
    )
    return structs.replace(
        plain,
        vertices=(source, step, structs.replace(top, inputs=(StepName("priced"),))),
        artifacts=(Artifact(name="priced.pkl", blob=CODE, kind=ArtifactKind.PICKLE),),
        client=client,
    )


def test_every_phase_leads_to_an_end() -> None:
    def ends(phase: JobPhase) -> bool:
        return not core.PHASE_MOVES[phase] or all(ends(after) for after in core.PHASE_MOVES[phase])

    assert all(ends(phase) for phase in JobPhase)


def test_illegal_move_is_a_broken_invariant() -> None:
    with pytest.raises(InvariantBroken, match="CLEANING to RUNNING"):
        core.moved(JobPhase.CLEANING, JobPhase.RUNNING)


@pytest.mark.parametrize(
    ("phase", "terminated"),
    [
        (None, None),
        (JobPhase.DISCARDING, None),
        (JobPhase.RESERVED, False),
        (JobPhase.INITIALIZING, False),
        (JobPhase.RUNNING, False),
        (JobPhase.ENDING, False),
        (JobPhase.CLEANING, True),
    ],
)
def test_duplicates(phase: JobPhase | None, terminated: bool | None) -> None:
    refusal = core.duplicate(A, phase)

    assert (None if refusal is None else refusal.globally_terminated) is terminated


def test_key_stands_for_one_graph() -> None:
    assert core.repeated("k", A, "digest", "digest") == A
    with pytest.raises(KeyReused, match="'k'"):
        core.repeated("k", A, "digest", "another")


def test_accepted_graph_is_in_topological_order() -> None:
    turned = structs.replace(graph(), vertices=graph().vertices[::-1])

    assert core.accepted_graph(JobSubmission(graph=turned), VERSIONS, {}) == graph()


def test_parallelism_overrides_are_by_vertex_id_and_the_jobs_own_take_precedence() -> None:
    rows, top = (vertex.id for vertex in graph().vertices)
    own = {"pipeline.jobvertex-parallelism-overrides": f"{top}:3"}
    sent = JobSubmission(graph=structs.replace(graph(), config=own))

    accepted = core.accepted_graph(sent, VERSIONS, {rows: 3, top: 2, "unknown": 9})

    assert [vertex.parallelism for vertex in accepted.vertices] == [3, 3]


def test_overrides_that_steps_of_one_region_do_not_agree_on_are_refused() -> None:
    rows, top = (vertex.id for vertex in graph().vertices)
    with pytest.raises(Invalid, match="must agree on a parallelism"):
        core.accepted_graph(JobSubmission(graph=graph()), VERSIONS, {rows: 1, top: 2})


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(1, 2, None), (0, 2, "not from 0 to 2"), (3, 2, "not from 3 to 2"), (1, 1 << 20, "not from 1 to 1048576")],
)
def test_requirements_are_checked_against_the_graph(lower: int, upper: int, expected: str | None) -> None:
    limits = ParallelismRange(lower=lower, upper=upper)
    wanted = RescaleJob(job_id=A, vertices={graph().vertices[0].id: limits})

    problems = core.requirement_problems(graph(), wanted)

    assert problems == () if expected is None else expected in problems[0]


def test_requirements_of_steps_that_are_not_there_or_do_not_agree_are_refused() -> None:
    rows, top = (vertex.id for vertex in graph().vertices)
    one, two = ParallelismRange(upper=1), ParallelismRange(upper=2)
    wanted = RescaleJob(job_id=A, vertices={rows: one, top: two, VertexId("absent"): one})

    problems = core.requirement_problems(graph(), wanted)

    assert ["absent" in problems[0], "must agree" in problems[1]] == [True, True]


def test_every_problem_is_reported_at_once() -> None:
    bad = structs.replace(
        pickled(None), job_id=JobId("A-job"), name=" ", config={"parallelism.default": "many", "rest.port": "80"}
    )

    with pytest.raises(Invalid) as refused:
        core.accepted_graph(JobSubmission(graph=bad), VERSIONS, {})

    reported = "\n".join(refused.value.problems)
    assert len(refused.value.problems) == 5
    assert "needs a name" in reported
    assert "'A-job' is not 32 lower-case hexadecimal digits" in reported
    assert "field 'config.parallelism.default': 'many' is not a whole number" in reported
    assert "field 'config.rest.port': is an option of the cluster" in reported
    assert "does not say which versions pickled it" in reported


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (VERSIONS, []),
        (structs.replace(VERSIONS, python="3.11.2", pyspark="4.3.7", flintlock="0.1.9"), []),
        (structs.replace(VERSIONS, python="3.12.1"), ["Python 3.12.1", "Python 3.11.9"]),
        (structs.replace(VERSIONS, python="3.1"), ["Python 3.1,", "Python 3.11.9"]),
        (structs.replace(VERSIONS, pyspark="4.0.0"), ["PySpark 4.0.0", "PySpark 4.3.0"]),
        (structs.replace(VERSIONS, flintlock="0.2.0"), ["Flintlock 0.2.0", "Flintlock 0.1.0"]),
    ],
)
def test_versions_of_pickled_functions_must_be_compatible(client: Versions, expected: list[str]) -> None:
    problems = core.version_problems(pickled(client), VERSIONS)

    assert len(problems) == bool(expected)
    assert all(text in str(problem) for problem in problems for text in (*expected, "'priced'"))


def test_graph_without_pickled_functions_is_compatible_with_every_client() -> None:
    strange = structs.replace(graph(), client=Versions(flintlock="9", python="2.7", pyspark="1.6"))

    assert core.version_problems(strange, VERSIONS) == []


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.FAILED])
def test_cancel_of_a_job_that_ended_otherwise_is_a_conflict(status: JobStatus) -> None:
    with pytest.raises(Conflict, match=status):
        core.check_cancel_of_ended(A, status)


def test_cancel_of_a_canceled_job_is_fine() -> None:
    core.check_cancel_of_ended(A, JobStatus.CANCELED)


def test_blobs_and_files_are_removed_only_where_there_are_any() -> None:
    assert core.cleanup_plan(blobs=(), scratch=()) == (CleanupResource.GRAPH, CleanupResource.PROGRESS)
    assert core.cleanup_plan(blobs=(CODE,), scratch=("work",), archived=False) == tuple(CleanupResource)


def test_result_of_a_job_that_has_not_ended_is_a_broken_invariant() -> None:
    running = initial_snapshot(StoredJob(graph=graph(), submitted_ms=1))
    with pytest.raises(InvariantBroken, match="INITIALIZING"):
        core.result_of(JobOutcome(snapshot=running))


def test_result_keeps_what_cleanup_needs() -> None:
    ended = structs.replace(recorded_snapshot(ENDED), graph=graph(blobs=[CODE, CODE]))

    result = core.result_of(JobOutcome(snapshot=ended, scratch=("work",)))

    assert result == structs.replace(ENDED, scratch=("work",), blobs=(CODE,))


def test_directories_of_a_job_without_a_jobmaster_are_found_in_its_progress() -> None:
    work = f"/work/{A}"
    progress = (record(A, staging=("x", "y"), materialised=f"{work}/clean/0"), record(A, staging=("y", work)))

    assert core.recorded_scratch(progress) == ("x", "y", work)


def test_task_managers_accept_the_recorded_directories_of_a_job_for_removal() -> None:
    staging = f"/out/.flintlock-{A}-0-0"
    progress = (record(A, staging=(staging,), materialised=f"/work/{A}/clean/0"),)

    assert removal_problem(RemoveFiles(job_id=A, directories=core.recorded_scratch(progress))) is None


def test_graphs_with_a_dirty_result_are_not_recovered() -> None:
    assert core.graphs_to_recover((B, A, C), (ENDED,)) == (B, C)
    core.check_recovery((B, C), (ENDED,))
    with pytest.raises(InvariantBroken, match=A):
        core.check_recovery((B, A), (ENDED,))


def test_ended_jobs_are_swept_often_enough() -> None:
    assert core.expiry_period_s(0) == 1
    assert core.expiry_period_s(600) == 60
    assert core.expiry_period_s(7 * 86400) == 3600


def test_checkpoints_that_each_host_has_of_its_own_are_refused() -> None:
    """A restart elsewhere would start over. One host is enough for everything, and a chosen directory is believed."""
    streaming = JobGraph(job_id=A, name="job", job_type=JobType.STREAMING, vertices=())
    two = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.1:7001"]
    with pytest.raises(Refused, match=r"TaskManagers are on 10\.0\.0\.1, 10\.0\.0\.2, and .* in /state/checkpoints"):
        core.check_shared_checkpoints(streaming, "/state/checkpoints", two)

    core.check_shared_checkpoints(streaming, "/state/checkpoints", two[::2])
    core.check_shared_checkpoints(streaming, "", two)
    core.check_shared_checkpoints(structs.replace(streaming, job_type=JobType.BATCH), "/state/checkpoints", two)
