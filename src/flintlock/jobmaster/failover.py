"""Failure, restart, cancellation, and the loss of a TaskManager.

Failover is by region. Regions are joined only by blocking exchanges, and nothing downstream starts before its inputs
are recorded as finished, so a failed region has no running consumers and its producers' results are still there: it
alone is tried again. If a result is gone all the same (MISSING_INPUT), its producer makes just that result again, under
a new name, and publishes nothing a second time.

Losses that the job did not cause (TaskManager, engine, a result that is gone) do not count against its restart
strategy: it is helped over `restart.infrastructure-attempts` of them, at once. Further ones are failures like others.

Before a region is tried again, and before the job ends, an attempt that was told to stop has to have ended. That is
confirmed by any word that it is over, or by nothing listening there any more (`DEAD_AFTER_REFUSALS` times, a second
apart); for one that an earlier JobMaster had sent (see `adoption`) also by the time after which its lease has ended.

Ending a job (FAILING or CANCELLING) ends its attempts first: those that hold no TaskManager at once, the others when
their TaskManager says so or is lost. A committed region (see `execution_graph`) is waited for instead.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster import adoption
from flintlock.jobmaster.events import After, CancelAnswered, CancelDue, RestartDue, SendCancel
from flintlock.jobmaster.execution_graph import UNGRANTED, ExecutionGraph, RegionState
from flintlock.jobmaster.publication import request_publisher
from flintlock.jobmaster.restart import INFRASTRUCTURE, NEVER_RETRIED, restart_delay
from flintlock.jobmaster.turn import Turn
from flintlock.model.ids import AttemptId, StepName
from flintlock.model.slots import DeployedTasks, NoResources, TaskManagerLost
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import CancelTask, Failure, FailureKind

E: Final = ExecutionState
J: Final = JobStatus
_CANCEL_AGAIN_S: Final = 1.0
_LOST_AFTER_UNSEEN: Final = 2
_ENDING: Final = (J.FAILING, J.CANCELLING)


def fail_attempt(turn: Turn, life: RegionState, failure: Failure) -> None:
    """The region's latest attempt has failed: try again by the strategy, or fail the job."""
    if life.current.state is E.CANCELING:
        end_canceled(turn, life)
        return
    life = _end(turn, life, E.FAILED, failure)
    if turn.job.status in _ENDING:
        return
    delay_s = _delay_s(turn, failure)
    if delay_s is None:
        fail_job(turn)
        return
    _redo(turn, failure.missing)
    turn.put(structs.replace(life, restart_pending=True))
    if turn.job.status is J.RECONCILING:
        turn.move_job(J.RUNNING)  # what is still to be reconciled goes on being so
    if turn.job.status is not J.RESTARTING:
        turn.move_job(J.RESTARTING)
    turn.do(After(delay_s, RestartDue(turn.job.attempt_id(life))))


def fail_publication(turn: Turn, life: RegionState, failure: Failure) -> None:
    """Files of an accepted attempt cannot be published: no other attempt may take its place, so the job fails."""
    _end(turn, life, E.FAILED, failure)
    if turn.job.status not in _ENDING:
        fail_job(turn)


def fail_job(turn: Turn) -> None:
    """End the job's other attempts; it is FAILED when the last one has ended."""
    turn.move_job(J.FAILING)
    _cancel_all(turn)


def restart_due(turn: Turn, attempt: AttemptId) -> None:
    """Give the region its next attempt, unless the job has come to its end meanwhile."""
    life = turn.job.current_life(attempt)
    if life is None or not life.restart_pending or turn.job.status is not J.RESTARTING:
        return
    turn.next_attempt(life)
    if not any(other.restart_pending for other in turn.job.regions):
        turn.move_job(J.RUNNING)


def refusal_to_cancel(job: ExecutionGraph) -> str | None:
    """Return why the job can no longer be cancelled; None if it can, or if it is already on that way."""
    if job.status in (J.CANCELLING, J.CANCELED):
        return None
    if job.status.terminal:
        return f"is {job.status} and can no longer be cancelled"
    unended = [life for life in job.regions if life.restart_pending or not life.current.state.terminal]
    if not all(life.committed for life in unended):
        return None
    if any(life.publishing for life in unended):
        return "is publishing its output and can no longer be cancelled"
    return "has done its work and can no longer be cancelled"


def cancel_job(turn: Turn) -> None:
    """End all attempts; the job is CANCELED when the last one has ended."""
    if turn.job.status.terminal or turn.job.status is J.CANCELLING:
        return
    turn.move_job(J.CANCELLING)
    _cancel_all(turn)


def cancel_due(turn: Turn, attempt: AttemptId) -> None:
    """Ask again for the end of an attempt that has not been confirmed."""
    life = turn.job.current_life(attempt)
    if life is not None and life.current.state is E.CANCELING:
        ask_to_end(turn, life)
        turn.do(After(_CANCEL_AGAIN_S, CancelDue(attempt)))


def try_interrupted_again(turn: Turn) -> None:
    """Give regions whose attempt ended without a failure of theirs the next one."""
    for life in turn.job.regions:
        if life.current.state is E.CANCELED:
            turn.next_attempt(life)


def cancel_answered(turn: Turn, event: CancelAnswered) -> None:
    """Count how often nothing listened there; a TaskManager that is gone has ended its attempts."""
    life = turn.job.current_life(event.attempt)
    if life is None or life.current.state is not E.CANCELING:
        return
    refusals = life.current.refusals + 1 if event.unreachable else 0
    if refusals != life.current.refusals:
        life = turn.put(life.with_current(structs.replace(life.current, refusals=refusals)))
    if refusals >= adoption.DEAD_AFTER_REFUSALS:
        end_canceled(turn, life)


def given_up(turn: Turn, attempt: AttemptId) -> None:
    """Wait no longer for word of an attempt that an earlier JobMaster had sent."""
    life = turn.job.current_life(attempt)
    if life is not None and life.grant is not None and life.grant.request == UNGRANTED:
        _not_there(turn, life, f"TaskManager {life.grant.task_manager} has not come back")


def ask_to_end(turn: Turn, life: RegionState) -> None:
    """Tell the TaskManager of the region's latest attempt to end it."""
    if life.grant is not None:
        turn.do(SendCancel(life.grant.address, CancelTask(attempt=turn.job.attempt_id(life))))


def end_canceled(turn: Turn, life: RegionState) -> None:
    """The region's latest attempt has ended as it was told to."""
    _end(turn, life, E.CANCELED, None)


def task_manager_lost(turn: Turn, lost: TaskManagerLost) -> None:
    """Whatever was at that TaskManager is over; what was accepted is published elsewhere."""
    for region in range(len(turn.job.regions)):
        life = turn.job.regions[region]  # as it is by now: the failure of one may have begun to cancel the others
        if life.grant is None or life.grant.instance != lost.instance:
            continue
        if life.publishing:
            request_publisher(turn, life)
        elif life.current.state is E.RECONCILING:
            adoption.give_up(turn, life)  # it went with its TaskManager, or never arrived
        elif life.current.state is E.SCHEDULED:
            turn.put(structs.replace(life, grant=None))  # never sent: the request is still open, and stays
        else:
            fail_attempt(turn, life, _loss(lost))


def no_resources(turn: Turn, word: NoResources) -> None:
    """Nobody can ever serve the region's request: it fails, and the job with it. A claim only finds nothing there."""
    for life in turn.job.regions:
        if life.request is not None and life.request.id == word.request and life.request.claim is not None:
            _not_there(turn, life, word.reason)
            return
        waits = life.current.state is E.SCHEDULED and life.grant is None
        if waits and life.request is not None and life.request.id == word.request:
            failure = Failure(kind=FailureKind.NO_RESOURCES, message=word.reason, exception="NoResourceAvailable")
            fail_attempt(turn, life, failure)
            return


def _not_there(turn: Turn, life: RegionState, reason: str) -> None:
    """An attempt of an earlier JobMaster is where it was no more. It may have told of itself once, and been heard."""
    if life.current.state is E.RECONCILING:
        adoption.give_up(turn, life)
    elif life.publishing:
        request_publisher(turn, life)  # no ResourceManager of this term knows that TaskManager, so none tells its loss
    elif not life.current.state.terminal and not life.committed:
        fail_attempt(
            turn, life, Failure(kind=FailureKind.TASK_MANAGER_LOST, message=reason, exception="TaskManagerLost")
        )


def timed_out(turn: Turn) -> None:
    """End a job that has used up its time. What is accepted is still published first."""
    if turn.job.status.terminal or turn.job.status in _ENDING:
        return
    message = f"the job has not ended within {turn.job.plan.timeout_s:g} s of its submission (job.timeout)"
    turn.note_failure(None, Failure(kind=FailureKind.TIMEOUT, message=message, exception="JobTimeout"))
    fail_job(turn)


def reconcile(turn: Turn, held: DeployedTasks) -> None:
    """Give up attempts that their TaskManager no longer has.

    A heartbeat may have left before the deployment arrived. The one after it cannot have: so two in a row count.
    """
    there = frozenset(held.attempts)
    for region in range(len(turn.job.regions)):
        life = turn.job.regions[region]
        if life.grant is None or life.grant.instance != held.instance:
            continue
        if turn.job.attempt_id(life) in there:
            life = adoption.confirm(turn, life)  # before the heartbeat is answered, which renews the attempt's lease
        if not _should_be_there(life):
            continue
        unseen = 0 if turn.job.attempt_id(life) in there else life.current.unseen + 1
        if unseen != life.current.unseen:
            life = turn.put(life.with_current(structs.replace(life.current, unseen=unseen)))
        if unseen >= _LOST_AFTER_UNSEEN:
            message = f"TaskManager {held.task_manager} no longer has the task, and never told how it ended"
            failure = Failure(kind=FailureKind.TASK_MANAGER_LOST, message=message, exception="TaskLost")
            fail_attempt(turn, life, failure)


def unwanted(job: ExecutionGraph, held: DeployedTasks) -> tuple[AttemptId, ...]:
    """Return which attempts that a TaskManager holds nobody waits for."""
    lives = {attempt: job.current_life(attempt) for attempt in held.attempts}
    return tuple(attempt for attempt, life in lives.items() if life is None or life.current.state.terminal)


def _should_be_there(life: RegionState) -> bool:
    """Whether the region's latest attempt was taken by its TaskManager, and has not told its end."""
    execution = life.current
    if life.committed or execution.in_flight:
        return False
    if execution.state is E.DEPLOYING:
        return execution.deployments == 0  # else it waits to be sent again
    return execution.state.accepted_by_task_manager


def _loss(lost: TaskManagerLost) -> Failure:
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {lost.task_manager} is lost: {lost.reason}",
        exception="TaskManagerLost",
    )


def _redo(turn: Turn, missing: tuple[StepName, ...]) -> None:
    """Run the producers of results that are gone again, for nothing but these results."""
    for life in turn.job.regions:
        if life.finished and not set(missing).isdisjoint(life.region.materialises):
            turn.next_attempt(structs.replace(life, redo=True))


def _delay_s(turn: Turn, failure: Failure) -> float | None:
    """Return how long to wait before trying again, or None to give up."""
    if failure.kind in NEVER_RETRIED:
        return None
    helped = turn.job.infrastructure_restarts
    if failure.kind in INFRASTRUCTURE and helped < turn.job.plan.infrastructure_attempts:
        turn.job = structs.replace(turn.job, infrastructure_restarts=helped + 1)
        return 0.0
    history, delay_s = restart_delay(
        turn.job.plan.strategy,
        turn.job.restarts,
        now_ms=turn.moment.now_ms,
        chance=turn.moment.chance,
    )
    turn.job = structs.replace(turn.job, restarts=history)
    return delay_s


def _cancel_all(turn: Turn) -> None:
    for life in turn.job.regions:
        if life.restart_pending:
            turn.put(structs.replace(life, restart_pending=False))
        elif life.current.state.on_a_task_manager and not life.committed:
            _begin_to_cancel(turn, life)
        elif life.current.state.waiting:
            end_canceled(turn, life)


def _begin_to_cancel(turn: Turn, life: RegionState) -> None:
    life = turn.move(life, E.CANCELING)
    # A cancellation must not overtake its deployment: it follows the answer to that, or its own repetition.
    if not life.current.in_flight:
        ask_to_end(turn, life)
    turn.do(After(_CANCEL_AGAIN_S, CancelDue(turn.job.attempt_id(life))))


def _end(turn: Turn, life: RegionState, state: ExecutionState, failure: Failure | None) -> RegionState:
    """Put the region with its latest attempt ended, and its slots given back."""
    if failure is not None:
        turn.note_failure(life, failure)
    life = turn.move(life, state, failure=failure, in_flight=False, activity="")
    return turn.put(structs.replace(life, request=None, grant=None))
