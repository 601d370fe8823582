"""The JobMaster's decisions: `step` takes the job and one event, and returns the new job and the effects to perform.

Equal inputs give equal results: time and randomness come in as a `StepContext`. After each event the job is *settled*:
regions whose inputs are available request slots, a job whose attempts have all ended ends, and the ResourceManager
gets a new declaration if the job's requirements have changed. So no handler has to consider what follows from it.

Late events (about an attempt that is not the region's latest, from a TaskManager that was given up, from a timer whose
reason is gone) change nothing. That is why a zombie's success has no effect.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster import adoption, failover, publication, scheduling
from flintlock.jobmaster.events import (
    CancelAnswered,
    CancelDue,
    CancelRequested,
    ClusterMessage,
    Declare,
    DeploymentDue,
    DeploymentTaken,
    DeploymentUndelivered,
    DispatcherCommand,
    EffectOutcome,
    FailureLabelled,
    JobEffect,
    JobEvent,
    JobStarted,
    Probed,
    ProbeDue,
    ProgressFound,
    PublicationDue,
    PublicationUndelivered,
    ReconcileTimedOut,
    Recorded,
    RecordHistory,
    RequirementsChanged,
    RestartDue,
    StartTimer,
    StepContext,
    Suspended,
    TimedOut,
    TimerFired,
)
from flintlock.jobmaster.execution_graph import ExecutionGraph, RegionState
from flintlock.jobmaster.reporting.history import history_of
from flintlock.jobmaster.transition import Transition, with_labels
from flintlock.model.ids import AttemptId
from flintlock.model.slots import DeployedTasks, NoResources, ResourceRequirements, SlotGrant, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    PublicationFailed,
    RegionPhase,
    RegionRecord,
    TaskCanceled,
    TaskFailed,
    TaskFinished,
    TaskProgress,
    TaskReport,
    TaskRunning,
)
from flintlock.model.times import elapsed_ms

E: Final = ExecutionState
J: Final = JobStatus

refusal_to_cancel = failover.refusal_to_cancel
unwanted_attempts = failover.unwanted_attempts


def step(job: ExecutionGraph, event: JobEvent, context: StepContext) -> tuple[ExecutionGraph, tuple[JobEffect, ...]]:
    """Return the job after the event and the effects to perform, in order. The same job object: nothing changed.

    Raises InvariantBroken, with the latest moves, if a handler attempts a move that `model.states` forbids.
    """
    if job.status.terminal:
        return _apply_after_end(job, event), ()
    transition = Transition(job, context)
    _apply(transition, event)
    _settle(transition)
    if transition.history_changed and not transition.job.status.terminal:  # the end of a job is archived with all of it
        transition.effects.insert(0, RecordHistory(history_of(transition.job)))
    if transition.job is not job:
        transition.job = structs.replace(transition.job, modified_ms=context.now_ms)
    return transition.job, tuple(transition.effects)


def _apply_after_end(job: ExecutionGraph, event: JobEvent) -> ExecutionGraph:
    """Return an ended job after an event: only labels on its failures still change it."""
    return with_labels(job, event.attempt, event.labels) if isinstance(event, FailureLabelled) else job


def _apply(transition: Transition, event: JobEvent) -> None:
    match event:
        case JobStarted() | CancelRequested() | RequirementsChanged() | Suspended():
            _apply_command(transition, event)
        case SlotGrant() | TaskManagerLost() | NoResources() | DeployedTasks() | TaskReport():
            if transition.job.status is not J.INITIALIZING:  # a job that has not started has no attempts to apply it to
                _apply_message(transition, event)
        case (
            DeploymentDue()
            | CancelDue()
            | ProbeDue()
            | PublicationDue()
            | RestartDue()
            | ReconcileTimedOut()
            | TimedOut()
        ):
            _apply_timer(transition, event)
        case _:
            _apply_outcome(transition, event)


def _apply_command(transition: Transition, command: DispatcherCommand) -> None:
    match command:
        case JobStarted():
            _start(transition)
        case CancelRequested(force):
            failover.cancel_job(transition, force=force)
        case RequirementsChanged(ranges, rescale, reverts):
            if reverts:
                transition.job = structs.replace(transition.job, rescale=None, required={})
            scheduling.require(transition, ranges)
            if rescale is not None:
                transition.job = structs.replace(transition.job, rescale=rescale)
                failover.restart_queries(transition)
        case Suspended():
            transition.move_job(J.SUSPENDED)


def _apply_message(transition: Transition, message: ClusterMessage) -> None:
    match message:
        case SlotGrant():
            _apply_grant(transition, message)
        case TaskManagerLost():
            failover.task_manager_lost(transition, message)
        case NoResources():
            failover.no_resources(transition, message)
        case DeployedTasks():
            failover.reconcile(transition, message)
        case TaskReport():
            _apply_report(transition, message)


def _apply_outcome(transition: Transition, outcome: EffectOutcome) -> None:
    match outcome:
        case Recorded(record):
            _apply_record(transition, record)
        case DeploymentTaken():
            _apply_deployment_taken(transition, outcome)
        case DeploymentUndelivered():
            _apply_deployment_undelivered(transition, outcome)
        case PublicationUndelivered():
            _fail_unpublished(transition, outcome.attempt, publication.publication_undelivered(transition, outcome))
        case CancelAnswered():
            failover.cancel_answered(transition, outcome)
        case Probed():
            adoption.probed(transition, outcome)
        case ProgressFound(gone_on):
            failover.progress_found(transition, gone_on=gone_on)
        case FailureLabelled(attempt, labels):
            transition.job = with_labels(transition.job, attempt, labels)
            transition.history_changed = True


def _apply_timer(transition: Transition, event: TimerFired) -> None:
    match event:
        case TimedOut():
            failover.timed_out(transition)
        case DeploymentDue(attempt):
            scheduling.deployment_due(transition, attempt)
        case CancelDue(attempt):
            failover.cancel_due(transition, attempt)
        case ProbeDue(attempt):
            adoption.probe_due(transition, attempt)
        case PublicationDue(attempt):
            publication.publication_due(transition, attempt)
        case RestartDue(attempt):
            failover.restart_due(transition, attempt)
        case ReconcileTimedOut(attempt):
            failover.reconcile_timed_out(transition, attempt)


def _start(transition: Transition) -> None:
    if transition.job.status is J.INITIALIZING and any(
        region.current.state is E.RECONCILING for region in transition.job.regions
    ):
        transition.move_job(J.RECONCILING)
    elif transition.job.status is J.INITIALIZING:
        transition.move_job(J.CREATED)
        transition.move_job(J.RUNNING)
    elif transition.job.status is not J.CANCELLING:
        return
    _start_job_timeout(transition)
    adoption.begin(transition)
    for region in transition.job.regions:
        if region.publishing and region.request is None:
            publication.request_publisher(transition, region)
    if transition.job.must_fail and transition.job.status is not J.CANCELLING:
        failover.fail_job(transition)


def _start_job_timeout(transition: Transition) -> None:
    """Start the timer of a job with a timeout. Time under earlier leaders counts, on the clock of the cluster."""
    timeout_s = transition.job.plan.timeout_s
    if timeout_s > 0:
        used_s = elapsed_ms(transition.job.timed_from_ms, transition.context.cluster_ms) / 1000
        transition.emit(StartTimer(max(timeout_s - used_s, 0.0), TimedOut()))


def _apply_grant(transition: Transition, grant: SlotGrant) -> None:
    """Use the slots. A grant for no open request is ignored; the next declaration returns its slots."""
    for region in transition.job.regions:
        if region.request is None or region.request.id != grant.request:
            continue
        if region.request.claim is not None:
            _apply_claimed_grant(transition, region, grant)
            return
        if region.grant is None:
            if region.publishing:
                publication.publish_at(transition, region, grant)
            else:
                scheduling.take_slots(transition, region, grant)
            return


def _apply_claimed_grant(transition: Transition, region: RegionState, grant: SlotGrant) -> None:
    """Use the slots of an attempt that an earlier JobMaster deployed."""
    if region.current.state is E.RECONCILING:
        adoption.adopt(transition, region, grant)
    elif region.grant != grant and not region.current.state.terminal:
        transition.update(adoption.with_claimed_grant(region, grant))  # a report had adopted it already


def _apply_record(transition: Transition, record: RegionRecord) -> None:
    region = transition.job.regions[record.region]
    if region.current.attempt != record.attempt:
        return
    match record.phase:
        case RegionPhase.DEPLOYED:
            scheduling.deployment_recorded(transition, region, record)
        case RegionPhase.ACCEPTED:
            publication.acceptance_recorded(transition, region)
        case RegionPhase.FINISHED:
            publication.finish_recorded(transition, region)


def _apply_deployment_taken(transition: Transition, event: DeploymentTaken) -> None:
    region = scheduling.deployment_taken(transition, event)
    if region is not None and region.current.state is E.CANCELING:
        failover.request_cancel(transition, region)  # the cancellation waited for the deployment to arrive


def _fail_unpublished(transition: Transition, attempt: AttemptId, failure: Failure | None) -> None:
    if failure is not None:
        failover.fail_publication(transition, transition.job.regions[attempt.region], failure)


def _apply_deployment_undelivered(transition: Transition, event: DeploymentUndelivered) -> None:
    failure = scheduling.deployment_undelivered(transition, event)
    region = transition.job.region_of(event.attempt)
    if region is None or region.grant is None or region.grant.instance != event.instance:
        return
    if failure is not None or region.current.state is E.CANCELING:
        failover.request_cancel(transition, region)  # it may have arrived, and only the acknowledgement was lost
    if failure is not None:
        failover.fail_attempt(transition, region, failure)


def _apply_report(transition: Transition, report: TaskReport) -> None:
    region = transition.job.region_of(report.attempt)
    if region is None or region.current.state.terminal:
        return
    match report.news:
        case FilesPublished() as news:
            publication.files_published(transition, region, news)
        case PublicationFailed() as news:
            failure = publication.publication_failed(transition, region, report.instance, news)
            _fail_unpublished(transition, report.attempt, failure)
        case news:
            # Any incarnation may report the end of a cancelled attempt: its TaskManager may have registered again.
            canceling = region.current.state is E.CANCELING
            if canceling or (region.grant is not None and region.grant.instance == report.instance):
                _apply_task_news(transition, adoption.adopt(transition, region), news)


def _apply_task_news(
    transition: Transition,
    region: RegionState,
    news: TaskRunning | TaskProgress | TaskFinished | TaskFailed | TaskCanceled,
) -> None:
    """Apply a report about the region's latest attempt."""
    state = region.current.state
    if state is E.SCHEDULED or region.committed:
        return  # not deployed yet, or its outcome is already decided
    region = _with_output(transition, region, news)
    match news:
        case TaskRunning():
            if state is E.DEPLOYING:
                transition.move(region, E.RUNNING)
        case TaskProgress(metrics=metrics, activity=activity, query=query, queries=queries):
            if state is E.DEPLOYING:
                region = transition.move(region, E.RUNNING)
            if state is not E.CANCELING:
                execution = structs.replace(
                    region.current,
                    metrics=metrics,
                    activity=activity,
                    query=query or region.current.query,
                    queries=queries or region.current.queries,
                )
                transition.update(region.with_current(execution))
        case TaskFinished():
            failure = publication.missing_output(region, news)
            if state is E.CANCELING:
                failover.end_canceled(transition, region)
            elif failure is not None:
                failover.fail_attempt(transition, region, failure)
            else:
                publication.accept(transition, region, news)
        case TaskFailed(failure=failure):
            failover.fail_attempt(transition, region, failure)
        case TaskCanceled():
            failover.fail_attempt(transition, region, _unrequested_end(region))


def _with_output(
    transition: Transition,
    region: RegionState,
    news: TaskRunning | TaskProgress | TaskFinished | TaskFailed | TaskCanceled,
) -> RegionState:
    """Keep the end of what the attempt printed, which the report of its end carries."""
    if not isinstance(news, TaskFinished | TaskFailed | TaskCanceled) or not news.output_tail:
        return region
    return transition.update(region.with_current(structs.replace(region.current, output_tail=news.output_tail)))


def _unrequested_end(region: RegionState) -> Failure:
    """Return the failure of an attempt that its TaskManager ended without a request."""
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {region.current.task_manager} ended the task without being asked",
        exception="TaskEnded",
    )


def _settle(transition: Transition) -> None:
    if transition.job.status in (J.RUNNING, J.RESTARTING, J.RECONCILING):
        if transition.job.pending is None:
            failover.try_interrupted_again(transition)
            for region in transition.job.regions:
                if region.current.state is E.CREATED and _inputs_available(transition.job, region):
                    scheduling.schedule(transition, region)
        else:
            failover.find_progress(transition)
    ending = _final_status(transition.job)
    if ending is not None:
        transition.move_job(ending)
    _declare_requirements(transition)


def _inputs_available(job: ExecutionGraph, region: RegionState) -> bool:
    return all(job.regions[upstream].finished for upstream in region.plan.upstream)


def _final_status(job: ExecutionGraph) -> JobStatus | None:
    """Return the state in which the job ends now; None if it does not end yet."""
    match job.status:
        case J.RUNNING:
            return J.FINISHED if all(region.finished for region in job.regions) else None
        case J.FAILING | J.CANCELLING:
            if not all(region.current.state.terminal for region in job.regions):
                return None
            unpublished = any(region.publication and region.publication.abandoned for region in job.regions)
            return J.CANCELED if job.status is J.CANCELLING and not unpublished else J.FAILED
        case _:
            return None


def _declare_requirements(transition: Transition) -> None:
    """Declare the job's requirements if they have changed. A suspended job withdraws nothing."""
    job = transition.job
    requests = tuple(region.request for region in job.regions if region.request is not None)
    if requests == job.declared or job.status is J.SUSPENDED:
        return
    transition.job = structs.replace(job, declared=requests)
    transition.emit(
        Declare(
            ResourceRequirements(
                job_id=job.plan.job_id,
                name=job.plan.graph.name,
                requests=requests,
                priority=job.plan.priority,
                submitted_ms=job.timestamps[J.INITIALIZING],
            )
        )
    )
