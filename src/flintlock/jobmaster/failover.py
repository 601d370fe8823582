"""Failure, restart, cancellation, and the loss of a TaskManager.

Failover is by region. Regions are joined only by blocking exchanges, and nothing downstream starts before its inputs
are recorded as finished, so a failed region has no running consumers and its producers' results are still there: it
alone is restarted. If a result is gone all the same (MISSING_INPUT), its producer computes just that result again,
under a new name, and publishes nothing a second time.

Infrastructure failures (a lost TaskManager, engine or blocking result) do not count against the restart strategy: after
each of the first `restart.infrastructure-attempts` the region restarts without delay. Further ones count like others.
One loss counts once, though it ends several attempts of a job: those of several regions, or one that was sent to a
TaskManager whose engine had just died.

Before a region is restarted, and before the job ends, a cancelled attempt must have ended. That is confirmed by any
report that it has, or by the death of its TaskManager (`adoption.is_dead`); for one that an earlier JobMaster had sent
(see `adoption`) also by the time after which its lease has ended. A TaskManager that refuses the cancellation's
connection but sends heartbeats finds the attempt among the unwanted ones.

A job that takes the place of another streaming job fails rather than restarts before it has a batch of its own: the
other one runs again. If that is not known, all of its attempts are ended, and then its files say it (`find_progress`).

Ending a job (FAILING or CANCELLING) ends its attempts first: those without a TaskManager immediately, the others when
their TaskManager reports it or is lost. A committed region (see `execution_graph`) completes instead, unless a user
ends its publication by force.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster import adoption
from flintlock.jobmaster.events import CancelAnswered, CancelDue, FindProgress, RestartDue, SendCommand, StartTimer
from flintlock.jobmaster.execution_graph import UNCONFIRMED, ExecutionGraph, PendingDecision, RegionState
from flintlock.jobmaster.publication import forced_end, request_publisher
from flintlock.jobmaster.restart import INFRASTRUCTURE, infrastructure_delay_s, is_retryable, restart_delay
from flintlock.jobmaster.transition import Transition
from flintlock.model.commands import CancelTask
from flintlock.model.failures.job_timeout import timeout_failure
from flintlock.model.ids import AttemptId, StepName
from flintlock.model.slots import DeployedTasks, NoResources, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import ENGINE_DIED, TASK_MANAGER_DIED, Failure, FailureKind

E: Final = ExecutionState
J: Final = JobStatus
_CANCEL_AGAIN_S: Final = 1.0
#: How many lost incarnations of TaskManagers are remembered; reports of an older one are no longer under way.
_REMEMBERED_LOSSES: Final = 16
_ENDING: Final = (J.FAILING, J.CANCELLING)


def fail_attempt(transition: Transition, region: RegionState, failure: Failure) -> None:
    """Fail the region's latest attempt: restart it as the strategy says, or fail the job."""
    if region.current.state is E.CANCELING:
        end_canceled(transition, region)
        return
    if failure.exception in (ENGINE_DIED, TASK_MANAGER_DIED) and region.grant is not None:
        failure = structs.replace(failure, lost_instance=region.grant.instance)
    region = _end(transition, region, E.FAILED, failure)
    if transition.job.status in _ENDING:
        return
    if _is_to_be_decided(transition.job, failure):
        _await_decision(transition, region)
        return
    delay_s = _delay_s(transition, failure)
    if delay_s is None:
        fail_job(transition)
        return
    _redo(transition, failure.missing)
    transition.update(structs.replace(region, restart_pending=True))
    if transition.job.status is J.RECONCILING:
        transition.move_job(J.RUNNING)  # regions that are still RECONCILING stay so
    if transition.job.status is not J.RESTARTING:
        transition.move_job(J.RESTARTING)
    transition.emit(StartTimer(delay_s, RestartDue(transition.job.attempt_id(region))))


def fail_publication(transition: Transition, region: RegionState, failure: Failure) -> None:
    """Fail the job: files of an accepted attempt cannot be published, and no other attempt may replace it."""
    _end(transition, region, E.FAILED, failure)
    if transition.job.status not in _ENDING:
        fail_job(transition)


def fail_job(transition: Transition) -> None:
    """End the job's other attempts; it is FAILED when the last one has ended."""
    transition.move_job(J.FAILING)
    _cancel_all(transition)


def restart_due(transition: Transition, attempt: AttemptId) -> None:
    """Give the region its next attempt, unless the job is ending by now."""
    region = transition.job.region_of(attempt)
    if region is None or not region.restart_pending or transition.job.status is not J.RESTARTING:
        return
    if transition.job.pending is not None:  # the decision starts another timer
        return
    transition.next_attempt(region)
    if not any(other.restart_pending for other in transition.job.regions):
        transition.move_job(J.RUNNING)


def refusal_to_cancel(job: ExecutionGraph, *, force: bool = False) -> str | None:
    """Return why the job can no longer be cancelled; None if it can, or if it is already being cancelled.

    `force` ends publications, too.
    """
    if job.status in (J.CANCELLING, J.CANCELED):
        return None
    if job.status.terminal:
        return f"is {job.status} and can no longer be cancelled"
    unended = [region for region in job.regions if _has_work_left(job, region)]
    if not all(region.committed for region in unended):
        return None
    if any(region.publishing for region in unended):
        return None if force else "is publishing its output and can no longer be cancelled"
    return "has done its work and can no longer be cancelled"


def _has_work_left(job: ExecutionGraph, region: RegionState) -> bool:
    """Whether the region has not finished, and its attempt runs or another one follows it (`try_interrupted_again`)."""
    if job.status is J.FAILING:
        return not region.current.state.terminal
    return region.restart_pending or region.current.state is not E.FINISHED


def cancel_job(transition: Transition, *, force: bool = False) -> None:
    """End all attempts; the job is CANCELED when the last one has ended.

    `force` also ends those that are publishing, and gives up those that an earlier cancel has not ended.
    """
    if transition.job.status.terminal:
        return
    cancelled_before = transition.job.status is J.CANCELLING
    if not cancelled_before:
        transition.move_job(J.CANCELLING)
        _cancel_all(transition)
    if force:
        for region in transition.job.regions:
            if region.publishing:
                _end_publication(transition, region)
            elif cancelled_before and region.current.state is E.CANCELING:
                _give_up_attempt(transition, region)


def restart_queries(transition: Transition) -> None:
    """End the attempts that run, without a failure: the next ones follow, as after every cancelled one.

    What a streaming query has begun is completed by its next attempt.
    """
    if transition.job.status.terminal or transition.job.status in _ENDING:
        return
    if transition.job.status is J.RECONCILING:  # no attempt of an earlier leader is waited for any more
        transition.move_job(J.RUNNING)
    for region in transition.job.regions:
        running = region.current.state.on_a_task_manager and region.current.state is not E.CANCELING
        if running and not region.committed and not region.restart_pending:
            _begin_to_cancel(transition, region)


def cancel_due(transition: Transition, attempt: AttemptId) -> None:
    """Send the cancellation again until the attempt's end is confirmed."""
    region = transition.job.region_of(attempt)
    if region is not None and region.current.state is E.CANCELING:
        request_cancel(transition, region)
        transition.emit(StartTimer(_CANCEL_AGAIN_S, CancelDue(attempt)))


def try_interrupted_again(transition: Transition) -> None:
    """Give regions whose attempt was cancelled without a failure, or failed under an earlier leader, the next one."""
    for region in transition.job.regions:
        state = region.current.state
        if state is E.CANCELED or (state is E.FAILED and not region.restart_pending):
            transition.next_attempt(region)


def cancel_answered(transition: Transition, event: CancelAnswered) -> None:
    """Count refused connections; a TaskManager that is gone has no attempts any more."""
    region = transition.job.region_of(event.attempt)
    if region is None or region.current.state is not E.CANCELING:
        return
    refusals = region.current.refusals + 1 if event.unreachable else 0
    if refusals != region.current.refusals:
        region = transition.update(region.with_current(structs.replace(region.current, refusals=refusals)))
    if adoption.is_dead(transition, region):
        end_canceled(transition, region)


def reconcile_timed_out(transition: Transition, attempt: AttemptId) -> None:
    """Stop waiting for a report about an attempt that an earlier JobMaster had sent."""
    region = transition.job.region_of(attempt)
    if region is not None and region.grant is not None and region.grant.request == UNCONFIRMED:
        _attempt_missing(transition, region, f"TaskManager {region.grant.task_manager} has not registered again")


def request_cancel(transition: Transition, region: RegionState) -> None:
    """Send a cancellation to the TaskManager of the region's latest attempt."""
    if region.grant is not None:
        transition.emit(SendCommand(region.grant.address, CancelTask(attempt=transition.job.attempt_id(region))))


def end_canceled(transition: Transition, region: RegionState) -> None:
    """End the region's latest attempt as CANCELED."""
    _end(transition, region, E.CANCELED, None)


def task_manager_lost(transition: Transition, lost: TaskManagerLost) -> None:
    """Fail the attempts that were at that TaskManager; accepted ones are published elsewhere."""
    for index in range(len(transition.job.regions)):
        region = transition.job.regions[index]  # read again: the failure of one region may have cancelled the others
        if region.grant is None or region.grant.instance != lost.instance:
            continue
        if region.publishing:
            request_publisher(transition, region)
        elif region.current.state is E.RECONCILING:
            adoption.give_up(transition, region)  # it ended with its TaskManager, or never arrived
        elif region.current.state is E.SCHEDULED:
            transition.update(structs.replace(region, grant=None))  # never sent: the request stays open
        else:
            fail_attempt(transition, region, _loss_failure(lost))


def no_resources(transition: Transition, message: NoResources) -> None:
    """Fail the region whose request can never be served, and the job with it. For a claim: the attempt is gone."""
    for region in transition.job.regions:
        if region.request is not None and region.request.id == message.request and region.request.claim is not None:
            _attempt_missing(transition, region, message.reason)
            return
        waiting = region.current.state is E.SCHEDULED and region.grant is None
        if waiting and region.request is not None and region.request.id == message.request:
            failure = Failure(kind=FailureKind.NO_RESOURCES, message=message.reason, exception="NoResourceAvailable")
            fail_attempt(transition, region, failure)
            return


def _attempt_missing(transition: Transition, region: RegionState, reason: str) -> None:
    """Handle that an attempt of an earlier JobMaster is gone. A report may have adopted it before."""
    if region.current.state is E.RECONCILING:
        adoption.give_up(transition, region)
    elif region.publishing:
        request_publisher(
            transition, region
        )  # this term's ResourceManager does not know that TaskManager, and reports no loss
    elif not region.current.state.terminal and not region.committed:
        fail_attempt(
            transition, region, Failure(kind=FailureKind.TASK_MANAGER_LOST, message=reason, exception=TASK_MANAGER_DIED)
        )


def timed_out(transition: Transition) -> None:
    """Fail a job that has reached its timeout. What is accepted is still published first."""
    if transition.job.status.terminal or transition.job.status in _ENDING:
        return
    transition.note_failure(None, timeout_failure(transition.job.plan.timeout_s))
    fail_job(transition)


def reconcile(transition: Transition, deployed: DeployedTasks) -> None:
    """Fail attempts that their TaskManager no longer has.

    A heartbeat proves that only if it was made after the TaskManager had the attempt: one that was made before may
    arrive later, even twice.
    """
    present = frozenset(deployed.attempts)
    for index in range(len(transition.job.regions)):
        region = transition.job.regions[index]
        if region.grant is None or region.grant.instance != deployed.instance:
            continue
        region = adoption.heard_of(transition, region)
        if transition.job.attempt_id(region) in present:
            region = adoption.confirm(transition, region)  # before the heartbeat's response renews the attempt's lease
            if region.current.listed_after is None:
                listed = structs.replace(region.current, listed_after=deployed.heartbeat)
                transition.update(region.with_current(listed))
        elif _must_be_listed(region, deployed.heartbeat):
            message = f"TaskManager {deployed.task_manager} no longer has the task and did not report how it ended"
            failure = Failure(kind=FailureKind.TASK_MANAGER_LOST, message=message, exception="TaskLost")
            fail_attempt(transition, region, failure)


def unwanted_attempts(job: ExecutionGraph, deployed: DeployedTasks) -> tuple[AttemptId, ...]:
    """Return the attempts of a TaskManager that are not current, have ended, or are to be cancelled."""
    regions = {attempt: job.region_of(attempt) for attempt in deployed.attempts}
    return tuple(
        attempt
        for attempt, region in regions.items()
        if region is None or region.current.state.terminal or region.current.state is E.CANCELING
    )


def _must_be_listed(region: RegionState, heartbeat: int) -> bool:
    """Whether that heartbeat of its TaskManager lists the region's latest attempt, if the TaskManager still has it."""
    execution = region.current
    if region.committed or execution.in_flight or execution.listed_after is None:
        return False
    on_task_manager = execution.state is E.DEPLOYING or execution.state.accepted_by_task_manager
    return on_task_manager and heartbeat > execution.listed_after


def _loss_failure(lost: TaskManagerLost) -> Failure:
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {lost.task_manager} is lost: {lost.reason}",
        exception=TASK_MANAGER_DIED,
    )


def _redo(transition: Transition, missing: tuple[StepName, ...]) -> None:
    """Restart the producers of missing results, for nothing but these results."""
    for region in transition.job.regions:
        if region.finished and not set(missing).isdisjoint(region.plan.materialises):
            transition.next_attempt(structs.replace(region, redo=True))


def _delay_s(transition: Transition, failure: Failure) -> float | None:
    """Return the delay before the restart, or None to give up."""
    if not is_retryable(failure):
        return None
    if failure.lost_instance is not None:
        charged = transition.job.charged_losses
        if failure.lost_instance in charged:
            return 0.0
        latest = (*charged, failure.lost_instance)[-_REMEMBERED_LOSSES:]
        transition.job = structs.replace(transition.job, charged_losses=latest)
    used = transition.job.infrastructure_restarts
    if failure.kind in INFRASTRUCTURE and used < transition.job.plan.infrastructure_attempts:
        transition.job = structs.replace(transition.job, infrastructure_restarts=used + 1)
        return infrastructure_delay_s(failure.kind, used)
    return _delay_by_strategy_s(transition)


def _delay_by_strategy_s(transition: Transition) -> float | None:
    history, delay_s = restart_delay(
        transition.job.plan.strategy,
        transition.job.restarts,
        now_ms=transition.context.cluster_ms,
        random=transition.context.random,
    )
    transition.job = structs.replace(transition.job, restarts=history)
    return delay_s


def find_progress(transition: Transition) -> None:
    """End what runs of a job that is to be decided about; once nothing does, have its files read."""
    pending = transition.job.pending
    if pending is None or pending.asked:
        return
    for region in transition.job.regions:
        if region.current.state.waiting:
            end_canceled(transition, region)
        elif region.current.state.on_a_task_manager and not region.committed:
            _begin_to_cancel(transition, region)
    if all(region.current.state.terminal for region in transition.job.regions):
        transition.job = structs.replace(transition.job, pending=PendingDecision(asked=True))
        transition.emit(FindProgress())


def progress_found(transition: Transition, *, gone_on: bool) -> None:
    """Restart a job that was to be decided about, if it has gone on; else the job runs again whose place it takes."""
    if transition.job.pending is None or transition.job.status is not J.RESTARTING:
        return
    transition.job = structs.replace(transition.job, pending=None, gone_on=gone_on)
    delay_s = _delay_by_strategy_s(transition) if gone_on else None
    if delay_s is None:
        fail_job(transition)
        return
    for region in transition.job.regions:
        if region.restart_pending:
            transition.emit(StartTimer(delay_s, RestartDue(transition.job.attempt_id(region))))


def _is_to_be_decided(job: ExecutionGraph, failure: Failure) -> bool:
    """Return whether a failure restarts the job only if a query of it has a batch of its own, which is not known yet.

    What another query has done last is known when that has ended: it reports a batch some time after it has begun it.
    """
    if not job.plan.upgrades or not is_retryable(failure):
        return False
    return _is_conclusive(job, failure) and not _has_gone_on(job)


def _await_decision(transition: Transition, region: RegionState) -> None:
    """Decide later whether the job restarts: `find_progress` continues after each event."""
    transition.update(structs.replace(region, restart_pending=True))
    if transition.job.status is not J.RESTARTING:
        transition.move_job(J.RESTARTING)
    transition.job = structs.replace(transition.job, pending=PendingDecision())


def _is_conclusive(job: ExecutionGraph, failure: Failure) -> bool:
    """Return whether an attempt that has failed so has said what it had done; of a lost runner, the next one says it.

    Runners that are lost again and again are the fault of what they run.
    """
    if failure.kind is not FailureKind.RUNNER_LOST:
        return failure.kind not in INFRASTRUCTURE
    failures = [execution.failure for region in job.regions for execution in region.executions]
    return sum(each is not None and each.kind is FailureKind.RUNNER_LOST for each in failures) > 1


def _has_gone_on(job: ExecutionGraph) -> bool:
    """Return whether a query of the job has a batch of its own, as far as it is known, or may have one.

    Not known is what an attempt has done that an earlier JobMaster had sent, until it reports its progress, and what a
    query wrote last that has finished, because it was stopped.
    """
    if job.gone_on or any(region.finished for region in job.regions):
        return True
    for region in job.regions:
        queries = [execution.query for execution in region.executions if execution.query is not None]
        adopted = any(E.RECONCILING in execution.timestamps for execution in region.executions)
        if region.attempts_omitted or adopted or any(query.batches or query.gone_on for query in queries):
            return True
        if len({query.restored for query in queries}) > 1:  # an attempt continues after another batch than the first
            return True
    return False


def _cancel_all(transition: Transition) -> None:
    for region in transition.job.regions:
        if region.restart_pending:
            transition.update(structs.replace(region, restart_pending=False))
        elif region.current.state.on_a_task_manager and not region.committed:
            _begin_to_cancel(transition, region)
        elif region.current.state.waiting:
            end_canceled(transition, region)


def _end_publication(transition: Transition, region: RegionState) -> None:
    """End a publication before it is complete, with a report of what it leaves behind.

    The publisher is asked to stop, once: one that cannot be reached fails at the first file that cleanup has removed.
    """
    request_cancel(transition, region)
    region = transition.move(region, E.CANCELING)
    _end(transition, region, E.CANCELED, forced_end(region))


def _give_up_attempt(transition: Transition, region: RegionState) -> None:
    """End an attempt whose end no TaskManager has confirmed, with a report of where it may still run."""
    where = "an unknown TaskManager" if region.grant is None else f"TaskManager {region.grant.task_manager}"
    failure = Failure(
        kind=FailureKind.RUNNER_LOST,
        message=f"the attempt was given up by force: {where} has not confirmed its end. Its processes may still run"
        " there, and write into their staging directories",
        exception="AttemptGivenUp",
    )
    _end(transition, region, E.CANCELED, failure)


def _begin_to_cancel(transition: Transition, region: RegionState) -> None:
    region = transition.move(region, E.CANCELING)
    # A cancellation must not overtake its deployment: it is sent after that is acknowledged, or by CancelDue.
    if not region.current.in_flight:
        request_cancel(transition, region)
    transition.emit(StartTimer(_CANCEL_AGAIN_S, CancelDue(transition.job.attempt_id(region))))


def _end(transition: Transition, region: RegionState, state: ExecutionState, failure: Failure | None) -> RegionState:
    """End the region's latest attempt and return its slots."""
    if failure is not None:
        transition.note_failure(region, failure)
    region = transition.move(region, state, failure=failure, in_flight=False, activity="")
    return transition.update(structs.replace(region, request=None, grant=None))
