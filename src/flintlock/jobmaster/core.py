"""What a JobMaster decides: `step` takes the job and one event, and gives the job as it is then and what to do.

Equal inputs give equal answers: time and chance come in with the event. After each event the job is *settled*:
regions whose inputs are there ask for slots, a job whose attempts have all ended ends, and the ResourceManager is
told if what the job wants has changed. So no handler has to think of what follows from what it did.

Late words (of an attempt that is not the region's latest, of a TaskManager that was given up, of a timer whose reason
is gone) change nothing. That is what makes a zombie's success worthless.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster import adoption, failover, history, publication, scheduling
from flintlock.jobmaster.events import (
    After,
    Answer,
    CancelAnswered,
    CancelDue,
    CancelRequested,
    Declare,
    DeploymentDue,
    DeploymentTaken,
    DeploymentUndelivered,
    Due,
    JobEffect,
    JobEvent,
    Labelled,
    Moment,
    Probed,
    ProbeDue,
    PublicationDue,
    PublicationUndelivered,
    ReconcileTimedOut,
    Recorded,
    Required,
    RestartDue,
    Started,
    Suspended,
    TimedOut,
    Wish,
    Word,
)
from flintlock.jobmaster.execution_graph import ExecutionGraph, RegionState
from flintlock.jobmaster.turn import Turn
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

E: Final = ExecutionState
J: Final = JobStatus

refusal_to_cancel = failover.refusal_to_cancel
unwanted = failover.unwanted


def step(job: ExecutionGraph, event: JobEvent, moment: Moment) -> tuple[ExecutionGraph, tuple[JobEffect, ...]]:
    """Return the job after the event, and what is to be done, in order. The same job object: nothing changed.

    Raises InvariantBroken, with the story so far, if a move is asked for that the law forbids.
    """
    if job.status.terminal:
        return _after_the_end(job, event), ()
    turn = Turn(job, moment)
    _hear(turn, event)
    _settle(turn)
    if turn.job is not job:
        turn.job = structs.replace(turn.job, modified_ms=moment.now_ms)
    return turn.job, tuple(turn.effects)


def _after_the_end(job: ExecutionGraph, event: JobEvent) -> ExecutionGraph:
    """What an ended job still takes in: words about why it ended."""
    return history.with_labels(job, event.attempt, event.labels) if isinstance(event, Labelled) else job


def _hear(turn: Turn, event: JobEvent) -> None:
    match event:
        case Started() | CancelRequested() | Required() | Suspended():
            _hear_wish(turn, event)
        case SlotGrant() | TaskManagerLost() | NoResources() | DeployedTasks() | TaskReport():
            if turn.job.status is not J.INITIALIZING:  # who has not begun can promise nothing
                _hear_word(turn, event)
        case (
            DeploymentDue()
            | CancelDue()
            | ProbeDue()
            | PublicationDue()
            | RestartDue()
            | ReconcileTimedOut()
            | TimedOut()
        ):
            _come_due(turn, event)
        case _:
            _hear_answer(turn, event)


def _hear_wish(turn: Turn, wish: Wish) -> None:
    match wish:
        case Started():
            _start(turn)
        case CancelRequested():
            failover.cancel_job(turn)
        case Required(ranges):
            scheduling.require(turn, ranges)
        case Suspended():
            turn.move_job(J.SUSPENDED)


def _hear_word(turn: Turn, word: Word) -> None:
    match word:
        case SlotGrant():
            _granted(turn, word)
        case TaskManagerLost():
            failover.task_manager_lost(turn, word)
        case NoResources():
            failover.no_resources(turn, word)
        case DeployedTasks():
            failover.reconcile(turn, word)
        case TaskReport():
            _reported(turn, word)


def _hear_answer(turn: Turn, answer: Answer) -> None:
    match answer:
        case Recorded(record):
            _recorded(turn, record)
        case DeploymentTaken():
            _taken(turn, answer)
        case DeploymentUndelivered():
            _undelivered(turn, answer)
        case PublicationUndelivered():
            _unpublished(turn, answer.attempt, publication.publication_undelivered(turn, answer))
        case CancelAnswered():
            failover.cancel_answered(turn, answer)
        case Probed():
            adoption.probed(turn, answer)
        case Labelled(attempt, labels):
            turn.job = history.with_labels(turn.job, attempt, labels)


def _come_due(turn: Turn, event: Due) -> None:
    match event:
        case TimedOut():
            failover.timed_out(turn)
        case DeploymentDue(attempt):
            scheduling.deployment_due(turn, attempt)
        case CancelDue(attempt):
            failover.cancel_due(turn, attempt)
        case ProbeDue(attempt):
            adoption.probe_due(turn, attempt)
        case PublicationDue(attempt):
            publication.publication_due(turn, attempt)
        case RestartDue(attempt):
            failover.restart_due(turn, attempt)
        case ReconcileTimedOut(attempt):
            failover.given_up(turn, attempt)


def _start(turn: Turn) -> None:
    if turn.job.status is J.INITIALIZING and any(life.current.state is E.RECONCILING for life in turn.job.regions):
        turn.move_job(J.RECONCILING)
    elif turn.job.status is J.INITIALIZING:
        turn.move_job(J.CREATED)
        turn.move_job(J.RUNNING)
    elif turn.job.status is not J.CANCELLING:
        return
    _limit_time(turn)
    adoption.begin(turn)
    for life in turn.job.regions:
        if life.publishing and life.request is None:
            publication.request_publisher(turn, life)


def _limit_time(turn: Turn) -> None:
    """Set the timer of a job that has only so much time; what it used before this leader came counts."""
    timeout_s = turn.job.plan.timeout_s
    if timeout_s > 0:
        used_s = (turn.moment.now_ms - turn.job.timestamps[J.INITIALIZING]) / 1000
        turn.do(After(max(timeout_s - used_s, 0.0), TimedOut()))


def _granted(turn: Turn, grant: SlotGrant) -> None:
    """Use the slots; those that answer no open request are ignored, and the next declaration gives them back."""
    for life in turn.job.regions:
        if life.request is None or life.request.id != grant.request:
            continue
        if life.request.claim is not None:
            _claimed(turn, life, grant)
            return
        if life.grant is None:
            if life.publishing:
                publication.publish_there(turn, life, grant)
            else:
                scheduling.take_slots(turn, life, grant)
            return


def _claimed(turn: Turn, life: RegionState, grant: SlotGrant) -> None:
    """Keep the slots of an attempt that was sent before this JobMaster came."""
    if life.current.state is E.RECONCILING:
        adoption.adopt(turn, life, grant)
    elif life.grant != grant and not life.current.state.terminal:
        turn.put(structs.replace(life, grant=grant))  # it has told of itself before


def _recorded(turn: Turn, record: RegionRecord) -> None:
    life = turn.job.regions[record.region]
    if life.current.attempt != record.attempt:
        return
    match record.phase:
        case RegionPhase.DEPLOYED:
            scheduling.deployment_recorded(turn, life, record)
        case RegionPhase.ACCEPTED:
            publication.acceptance_recorded(turn, life)
        case RegionPhase.FINISHED:
            publication.finish_recorded(turn, life)


def _taken(turn: Turn, event: DeploymentTaken) -> None:
    life = scheduling.deployment_taken(turn, event)
    if life is not None and life.current.state is E.CANCELING:
        failover.ask_to_end(turn, life)  # it waited for the deployment to arrive first


def _unpublished(turn: Turn, attempt: AttemptId, failure: Failure | None) -> None:
    if failure is not None:
        failover.fail_publication(turn, turn.job.regions[attempt.region], failure)


def _undelivered(turn: Turn, event: DeploymentUndelivered) -> None:
    failure = scheduling.deployment_undelivered(turn, event)
    life = turn.job.current_life(event.attempt)
    if life is None or life.grant is None or life.grant.instance != event.instance:
        return
    if failure is not None or life.current.state is E.CANCELING:
        failover.ask_to_end(turn, life)  # it may have arrived, and only the answer was lost
    if failure is not None:
        failover.fail_attempt(turn, life, failure)


def _reported(turn: Turn, report: TaskReport) -> None:
    life = turn.job.current_life(report.attempt)
    if life is None or life.current.state.terminal:
        return
    match report.news:
        case FilesPublished() as news:
            publication.files_published(turn, life, news)
        case PublicationFailed() as news:
            failure = publication.publication_failed(turn, life, report.instance, news)
            _unpublished(turn, report.attempt, failure)
        case news:
            # That a cancelled attempt is over is true whoever says so: its TaskManager may have a new life by now.
            canceling = life.current.state is E.CANCELING
            if canceling or (life.grant is not None and life.grant.instance == report.instance):
                _task_told(turn, adoption.adopt(turn, life), news)


def _task_told(
    turn: Turn,
    life: RegionState,
    news: TaskRunning | TaskProgress | TaskFinished | TaskFailed | TaskCanceled,
) -> None:
    """Hear the region's latest attempt."""
    state = life.current.state
    if state is E.SCHEDULED or life.committed:
        return  # nobody can know anything of it yet, or what it had to say was said
    match news:
        case TaskRunning():
            if state is E.DEPLOYING:
                turn.move(life, E.RUNNING)
        case TaskProgress(metrics=metrics, activity=activity):
            if state is E.DEPLOYING:
                life = turn.move(life, E.RUNNING)
            if state is not E.CANCELING:
                turn.put(life.with_current(structs.replace(life.current, metrics=metrics, activity=activity)))
        case TaskFinished():
            failure = publication.missing_output(life, news)
            if state is E.CANCELING:
                failover.end_canceled(turn, life)
            elif failure is not None:
                failover.fail_attempt(turn, life, failure)
            else:
                publication.accept(turn, life, news)
        case TaskFailed(failure=failure):
            failover.fail_attempt(turn, life, failure)
        case TaskCanceled():
            failover.fail_attempt(turn, life, _ended_unasked(life))


def _ended_unasked(life: RegionState) -> Failure:
    """Return the failure of an attempt that its TaskManager ended without being told to."""
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {life.current.task_manager} ended the task without being asked",
        exception="TaskEnded",
    )


def _settle(turn: Turn) -> None:
    if turn.job.status in (J.RUNNING, J.RESTARTING, J.RECONCILING):
        failover.try_interrupted_again(turn)
        for life in turn.job.regions:
            if life.current.state is E.CREATED and _inputs_are_there(turn.job, life):
                scheduling.schedule(turn, life)
    ending = _ending(turn.job)
    if ending is not None:
        turn.move_job(ending)
    _declare(turn)


def _inputs_are_there(job: ExecutionGraph, life: RegionState) -> bool:
    return all(job.regions[upstream].finished for upstream in life.region.upstream)


def _ending(job: ExecutionGraph) -> JobStatus | None:
    """Return the state in which the job ends now, if it does."""
    match job.status:
        case J.RUNNING:
            return J.FINISHED if all(life.finished for life in job.regions) else None
        case J.FAILING | J.CANCELLING:
            if not all(life.current.state.terminal for life in job.regions):
                return None
            unpublished = any(life.publication and life.publication.abandoned for life in job.regions)
            return J.CANCELED if job.status is J.CANCELLING and not unpublished else J.FAILED
        case _:
            return None


def _declare(turn: Turn) -> None:
    """Tell the ResourceManager what is wanted, if that has changed. Who is suspended takes nothing back."""
    job = turn.job
    wanted = tuple(life.request for life in job.regions if life.request is not None)
    if wanted == job.declared or job.status is J.SUSPENDED:
        return
    turn.job = structs.replace(job, declared=wanted)
    turn.do(
        Declare(
            ResourceRequirements(
                job_id=job.plan.job_id, name=job.plan.graph.name, requests=wanted, priority=job.plan.priority
            )
        )
    )
