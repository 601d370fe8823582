"""Streaming jobs in the JobMaster: restarts by default, one query at a time, and what remains of checkpoints."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.unit.jobmaster.job_harness import JobHarness, failure, graph_of, sink, source
from tests.unit.jobmaster.test_restart import NoRestart

from flintlock.config.configuration import Configuration
from flintlock.jobmaster.events import FindProgress, ProgressFound, RequirementsChanged, SendDeploy
from flintlock.jobmaster.execution_graph import initial_state, plan_of
from flintlock.jobmaster.reporting.history import history_of
from flintlock.jobmaster.reporting.snapshot import scratch_of, snapshot_of
from flintlock.jobmaster.restart import ExponentialDelay, FixedDelay, restart_strategy
from flintlock.model.access.confinement import deployment_problem, removal_problem
from flintlock.model.ids import AttemptId, JobId, RegionId, TaskManagerId, TriggerId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobRescaling, ParallelismRange, StoredJob
from flintlock.model.states import JobStatus
from flintlock.model.streaming.checkpoints import BatchFigures, QueryProgress, StateRescale
from flintlock.model.streaming.query_figures import QueryFigures
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.model.tasks import (
    DeployTask,
    FailureKind,
    RemoveFiles,
    TaskFailed,
    TaskMetrics,
    TaskProgress,
    TaskRunning,
)

STREAM = structs.replace(
    graph_of(source("a"), structs.replace(sink("out", "a"), query=StreamQuery(uid="out"))), job_type=JobType.STREAMING
)
RETENTION = "execution.checkpointing.externalized-checkpoint-retention"


def scratch(status: JobStatus, *, retention: str | None = None, sent: bool = True) -> tuple[str, ...]:
    """Return what cleanup removes of a streaming job that has ended so."""
    config = {} if retention is None else {RETENTION: retention}
    plan = plan_of(structs.replace(STREAM, config=config), Configuration(), "/work", "/checkpoints/")
    job = initial_state(plan, StoredJob(graph=plan.graph, submitted_ms=1), (), 1)
    if sent:
        (region,) = job.regions
        current = structs.replace(region.current, task_manager=TaskManagerId("tm-1"))
        job = structs.replace(job, regions=(region.with_current(current),))
    return tuple(path for path in scratch_of(structs.replace(job, status=status)) if path.startswith("/checkpoints"))


def test_a_streaming_job_restarts_by_exponential_delay_unless_told_otherwise() -> None:
    """As Flink's do; a batch job without a strategy fails."""
    assert isinstance(restart_strategy(Configuration(), JobType.STREAMING), ExponentialDelay)
    assert restart_strategy(Configuration(), JobType.BATCH) == NoRestart()
    chosen = Configuration({"restart-strategy.type": "fixed-delay"})
    assert isinstance(restart_strategy(chosen, JobType.STREAMING), FixedDelay)
    assert restart_strategy(Configuration({"restart-strategy.type": "none"}), JobType.STREAMING) == NoRestart()
    assert isinstance(plan_of(STREAM, Configuration(), "/work").strategy, ExponentialDelay)


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (None, {JobStatus.FAILED}),
        ("DELETE_ON_CANCELLATION", {JobStatus.FAILED}),
        ("RETAIN_ON_CANCELLATION", {JobStatus.FAILED, JobStatus.CANCELED}),
        ("NO_EXTERNALIZED_CHECKPOINTS", set[JobStatus]()),
    ],
)
def test_checkpoints_of_an_ended_job_are_kept_or_removed_as_configured(
    retention: str | None, kept: set[JobStatus]
) -> None:
    """By default those of a failed job are kept: its user needs them."""
    for status in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED):
        expected = () if status in kept else (f"/checkpoints/{STREAM.job_id}",)
        assert scratch(status, retention=retention) == expected


def test_a_job_that_never_ran_has_no_checkpoints() -> None:
    """Nothing has to be removed."""
    assert scratch(JobStatus.CANCELED, sent=False) == ()


def test_only_streaming_jobs_have_a_checkpoint_directory() -> None:
    """It is named by the job, so that a TaskManager can judge orders by their paths."""
    batch = structs.replace(STREAM, job_type=JobType.BATCH)

    assert plan_of(STREAM, Configuration(), "/w", "/c/").checkpoint_dir == f"/c/{STREAM.job_id}"
    assert plan_of(batch, Configuration(), "/w", "/c").checkpoint_dir == ""


def test_a_deployment_names_no_checkpoints_of_another_job() -> None:
    """A TaskManager refuses it before anything is touched; its own are removed when the job ends."""
    plan = plan_of(STREAM, Configuration(), "/work", "/checkpoints")
    order = DeployTask(
        attempt=AttemptId(job_id=STREAM.job_id, region=RegionId(0), attempt=0),
        graph=STREAM,
        region=plan.regions[0],
        slots=(0,),
        checkpoint_dir=plan.checkpoint_dir,
    )
    foreign = structs.replace(order, checkpoint_dir=f"/checkpoints/{JobId('f' * 32)}")

    assert deployment_problem(order) is None
    assert "is not the checkpoint directory of job" in (deployment_problem(foreign) or "")
    assert removal_problem(RemoveFiles(job_id=STREAM.job_id, directories=(plan.checkpoint_dir,))) is None


def test_what_a_query_has_committed_is_part_of_its_attempt() -> None:
    """A report that says nothing about it, as one of the engine's progress, does not forget it."""
    harness = JobHarness(STREAM)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    harness.taken()
    harness.report(TaskRunning())
    progress = QueryProgress(checkpoint="/c", batches=(BatchFigures(batch=3, started_ms=1, duration_ms=2),))

    figures = (QueryFigures(name="out", batch=3),)

    harness.report(TaskProgress(metrics=TaskMetrics(), activity="streaming", query=progress, queries=figures))
    harness.report(TaskProgress(metrics=TaskMetrics(read_records=1), activity="streaming"))

    (execution,) = snapshot_of(harness.job).executions
    assert (execution.query, execution.queries) == (progress, figures)
    assert execution.metrics.read_records == 1


def test_the_last_batch_of_an_ended_attempt_survives_a_change_of_leader() -> None:
    """In a record that does not grow with the batches; offsets, which may be long, are left out."""
    harness = JobHarness(STREAM)
    harness.start()
    harness.grant("0-0")
    harness.recorded()
    harness.taken()
    batches = tuple(BatchFigures(batch=n, started_ms=n, duration_ms=2, offsets=("x" * 1000,)) for n in range(10))
    progress = QueryProgress(checkpoint="/c", restored=4, batches=batches)
    harness.report(TaskProgress(metrics=TaskMetrics(), query=progress, queries=(QueryFigures(name="out"),)))
    harness.report(TaskFailed(failure=failure()))

    stored = history_of(harness.job)
    again = JobHarness(STREAM, history=stored)

    assert stored.attempts[0].queries == (), "the figures were for watching it"
    known = again.job.regions[0].executions[0].query
    assert known is not None
    assert (known.restored, [batch.batch for batch in known.batches]) == (4, [9])
    assert len(msgspec.msgpack.encode(stored)) < 2000


RESCALE = StateRescale(trigger_id=TriggerId("1" * 32), partitions=4)


def orders(job: JobHarness) -> list[DeployTask]:
    """Return the deployments that were sent."""
    return [effect.order for effect in job.of(SendDeploy)]


def test_a_rescale_restarts_the_query_without_a_failure_and_its_attempts_are_sent_with_it() -> None:
    """The next attempt follows only when the former one has ended; so does the attempt after the next failure."""
    job = JobHarness(STREAM)
    job.start()
    job.run_region()
    job.apply(RequirementsChanged({RegionId(0): ParallelismRange(upper=4)}, RESCALE))
    assert (job.status, job.cancelled) == (JobStatus.RUNNING, [(0, 0)])
    assert [order.rescale for order in orders(job)] == [None]

    job.canceled()
    job.run_region()

    assert [order.rescale for order in orders(job)] == [None, RESCALE]
    assert (job.status, job.attempt()) == (JobStatus.RUNNING, 1)
    assert job.job.restarts.restarts == 0, "it is no failure"
    assert job.job.exceptions == ()
    job.fail()
    job.restart()
    job.run_region()
    assert orders(job)[-1].rescale == RESCALE


def test_an_attempt_is_told_whether_an_earlier_one_has_committed_a_batch() -> None:
    """Where it runs there may be nothing of it: it would start from the beginning."""
    job = JobHarness(STREAM)
    job.start()
    job.run_region()
    job.fail()
    job.restart()
    job.run_region()
    batch = BatchFigures(batch=0, started_ms=1, duration_ms=2)
    job.report(TaskProgress(metrics=TaskMetrics(), query=QueryProgress(checkpoint="/c", batches=(batch,))))
    job.fail()
    job.restart()
    job.run_region()

    assert [order.continues for order in orders(job)] == [False, False, True]


def test_a_rescale_that_has_failed_leaves_nothing_of_it() -> None:
    """What the job may use is what it was, and later attempts are not asked for other partitions."""
    job = JobHarness(STREAM)
    job.start()
    job.run_region()
    job.apply(RequirementsChanged({RegionId(0): ParallelismRange(upper=4)}, RESCALE))
    job.canceled()
    job.run_region()
    job.apply(RequirementsChanged({}, None, reverts=True))
    assert job.cancelled == [(0, 0)], "the query goes on"
    job.fail()
    job.restart()
    job.run_region()

    assert orders(job)[-1].rescale is None
    assert job.job.required == {}


def test_a_new_leader_sends_what_was_stored_unless_that_has_failed() -> None:
    plan = plan_of(STREAM, Configuration(), "/work", "/checkpoints/")
    going = JobRescaling(trigger_id=RESCALE.trigger_id, partitions=4)
    job = StoredJob(graph=plan.graph, submitted_ms=1, rescaling=going)
    failed = structs.replace(job, rescaling=structs.replace(going, completed=True, failure="the disk is full"))

    assert initial_state(plan, job, (), 1).rescale == RESCALE
    assert initial_state(plan, failed, (), 1).rescale is None


def test_a_new_leader_that_rescales_does_not_wait_for_the_attempts_that_it_ends() -> None:
    """The job is not RECONCILING any more: it would be for ever, and never end."""
    former = JobHarness(STREAM)
    former.start()
    former.run_region()
    job = former.again()
    job.start()
    assert job.status is JobStatus.RECONCILING
    job.apply(RequirementsChanged({}, RESCALE))

    assert job.status is JobStatus.RUNNING
    job.canceled()
    job.run_region()
    job.finish()
    assert job.status is JobStatus.FINISHED


@pytest.mark.parametrize("upper", [None, 1, 8])
def test_a_query_takes_one_slot_whatever_it_may_use(upper: int | None) -> None:
    """It does not end: others would wait for the slots for ever."""
    job = JobHarness(structs.replace(STREAM, parallelism=upper))
    job.start()
    (request,) = job.job.declared
    assert (request.slots, request.at_most) == (1, None)
    job.apply(RequirementsChanged({RegionId(0): ParallelismRange(lower=1, upper=5)}))
    (request,) = job.job.declared
    assert (request.slots, request.at_most) == (1, None)


def test_a_query_requests_slots_that_it_does_not_return_and_so_does_its_next_jobmaster() -> None:
    job = JobHarness(STREAM)
    job.start()
    job.run_region()
    assert [request.endless for request in job.job.declared] == [True]
    again = job.again()
    again.start()
    (request,) = again.job.declared
    assert (request.claim is not None, request.endless) == (True, True)


def test_a_query_of_what_is_available_returns_its_slots() -> None:
    once = StreamQuery(uid="out", trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW))
    read, written = STREAM.vertices
    job = JobHarness(structs.replace(STREAM, vertices=(read, structs.replace(written, query=once))))
    job.start()
    assert [request.endless for request in job.job.declared] == [False]


def test_a_rescale_of_a_job_that_ends_restarts_nothing() -> None:
    job = JobHarness(STREAM)
    job.start()
    job.run_region()
    job.cancel()
    job.apply(RequirementsChanged({}, RESCALE))

    assert job.cancelled == [(0, 0)]
    job.canceled()
    assert job.status is JobStatus.CANCELED


UPGRADE = structs.replace(STREAM, config={"execution.upgrade-of": "9" * 32})


def test_an_upgrade_that_fails_before_its_first_batch_is_not_restarted() -> None:
    """The job whose place it takes runs again. What the job did not cause is repeated as always."""
    job = JobHarness(UPGRADE)
    job.start()
    job.run_region()
    job.fail(FailureKind.ENGINE_LOST)
    job.restart()
    job.run_region()
    assert job.status is JobStatus.RUNNING
    job.fail(FailureKind.USER_CODE)
    job.apply(ProgressFound(gone_on=False))

    assert job.status is JobStatus.FAILED


def two_queries() -> JobHarness:
    """An upgrade with two queries, which run."""
    queries = [structs.replace(sink(name, "a"), query=StreamQuery(uid=name)) for name in ("out", "more")]
    job = JobHarness(
        structs.replace(graph_of(source("a"), *queries), job_type=JobType.STREAMING, config=UPGRADE.config)
    )
    job.start()
    job.run_region(0)
    job.run_region(1)
    return job


def test_an_upgrade_is_decided_about_when_none_of_its_queries_runs_any_more() -> None:
    """What another query writes last is seen in no report: its files are read when it has ended."""
    job = two_queries()
    job.fail(FailureKind.USER_CODE, 0)
    assert job.cancelled == [(1, 0)]
    assert job.of(FindProgress) == []
    job.canceled(1)
    assert len(job.of(FindProgress)) == 1
    assert (job.status, job.deployed) == (JobStatus.RESTARTING, [(0, 0), (1, 0)])

    job.apply(ProgressFound(gone_on=True))
    job.run_region(1)
    job.restart()
    job.run_region(0)
    assert (job.status, job.deployed[2:]) == (JobStatus.RUNNING, [(1, 1), (0, 1)])
    job.fail(FailureKind.USER_CODE, 0)
    assert (len(job.of(FindProgress)), job.cancelled) == (1, [(1, 0)]), "it is known now"


def test_an_upgrade_without_a_batch_fails_when_its_other_queries_have_ended() -> None:
    job = two_queries()
    job.fail(FailureKind.USER_CODE, 0)
    job.canceled(1)
    job.apply(ProgressFound(gone_on=False))

    assert job.status is JobStatus.FAILED


def test_an_upgrade_with_batches_fails_where_its_strategy_says_so() -> None:
    none = {**UPGRADE.config, "restart-strategy.type": "none"}
    job = JobHarness(structs.replace(UPGRADE, config=none))
    job.start()
    job.run_region()
    job.fail(FailureKind.USER_CODE)
    job.apply(ProgressFound(gone_on=True))

    assert job.status is JobStatus.FAILED


def test_an_upgrade_that_is_decided_about_starts_nothing_and_can_be_cancelled() -> None:
    """A restart delay that ends meanwhile, of a query that was lost before, changes nothing."""
    job = two_queries()
    job.fail(FailureKind.ENGINE_LOST, 1)
    job.fail(FailureKind.USER_CODE, 0)
    job.restart()
    assert (job.wanted, len(job.of(FindProgress))) == ([], 1)
    job.cancel()
    assert job.status is JobStatus.CANCELED
    job.apply(ProgressFound(gone_on=True))
    assert job.status is JobStatus.CANCELED


def test_a_query_that_waits_for_slots_waits_for_the_decision_too() -> None:
    job = two_queries()
    job.fail(FailureKind.ENGINE_LOST, 1)
    job.restart()
    assert job.wanted == ["0-0", "1-1"]
    job.fail(FailureKind.USER_CODE, 0)
    assert job.wanted == []
    job.apply(ProgressFound(gone_on=True))
    job.restart()
    assert job.wanted == ["0-1", "1-2"]


def test_an_upgrade_that_has_committed_a_batch_restarts_as_every_streaming_job() -> None:
    job = JobHarness(UPGRADE)
    job.start()
    job.run_region()
    batches = (BatchFigures(batch=7, started_ms=1, duration_ms=1),)
    job.report(TaskProgress(metrics=TaskMetrics(), query=QueryProgress(checkpoint="/c", restored=6, batches=batches)))
    job.fail(FailureKind.USER_CODE)

    assert job.status is JobStatus.RESTARTING


def test_an_upgrade_of_which_a_query_has_finished_may_have_committed_a_batch() -> None:
    """A query that is stopped reports no progress after its last batch: the others restart rather than fail."""
    job = two_queries()
    job.finish(0)
    job.fail(FailureKind.USER_CODE, 1)

    assert job.status is JobStatus.RESTARTING


def test_an_upgrade_that_a_new_leader_has_adopted_may_have_committed_a_batch() -> None:
    """Its progress is not known yet: it restarts rather than fails."""
    job = JobHarness(UPGRADE)
    job.start()
    job.run_region()
    second = job.again()
    second.start()
    second.report(TaskRunning())
    second.fail(FailureKind.USER_CODE)

    assert second.status is JobStatus.RESTARTING


def test_an_upgrade_whose_first_runner_is_lost_restarts_once() -> None:
    """A lost runner has not said whether it had a batch; if the next one is lost, too, that is the fault of the job."""
    job = JobHarness(UPGRADE)
    job.start()
    job.run_region()
    job.fail(FailureKind.RUNNER_LOST)
    assert job.status is JobStatus.RESTARTING
    job.restart()
    job.run_region()
    job.fail(FailureKind.RUNNER_LOST)
    job.apply(ProgressFound(gone_on=False))

    assert job.status is JobStatus.FAILED


@pytest.mark.parametrize("reported", [{"gone_on": True, "restored": 6}, {"restored": 7}])
def test_an_upgrade_whose_batch_is_not_among_the_reported_ones_has_gone_on(reported: dict[str, Any]) -> None:
    """In the sink, and not committed; or committed by an attempt that was lost, after which the next one continues."""
    job = JobHarness(UPGRADE)
    job.start()
    job.run_region()
    job.report(TaskProgress(metrics=TaskMetrics(), query=QueryProgress(checkpoint="/c", restored=6)))
    job.fail(FailureKind.ENGINE_LOST)
    job.restart()
    job.run_region()
    job.report(TaskProgress(metrics=TaskMetrics(), query=QueryProgress(checkpoint="/c", **reported)))
    job.fail(FailureKind.USER_CODE)

    assert job.status is JobStatus.RESTARTING
