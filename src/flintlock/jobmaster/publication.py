"""From a task's own word that it is done to a finished region: acceptance, publication, and what if that fails.

An attempt is accepted by deciding so and recording it; from the decision on (the record may be durable before the
store answers) there is no way back, only forward: the files are moved, by the TaskManager that wrote them or by
another, as often as it takes. A region without files to publish goes from its attempt's word to FINISHED at once.

Where publishing fails it is tried again at the same TaskManager, after growing waits. A TaskManager that is lost
meanwhile is replaced by any other with a slot. There is one way out: when the same reason comes `SAME_REASON_LIMIT`
times in a row, which takes two minutes, the job fails with that reason (FailureKind.PUBLICATION). Its target then
holds a part of the files and no success marker, and the message says how many. It is never reported as finished.
Rejected: trying for ever in silence; somebody has to hear that a target cannot be written.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import (
    After,
    PublicationDue,
    PublicationUndelivered,
    Record,
    SendPublish,
)
from flintlock.jobmaster.execution_graph import Publication, RegionState, file_count
from flintlock.jobmaster.scheduling import record_of
from flintlock.jobmaster.turn import Turn
from flintlock.model.ids import AttemptId, InstanceId, RequestId
from flintlock.model.slots import SlotGrant, SlotRequest
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    PublicationFailed,
    PublishFiles,
    RegionPhase,
    TaskFinished,
)

E: Final = ExecutionState
SAME_REASON_LIMIT: Final = 10
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_UNREACHABLE_WAIT_S: Final = 1.0


def missing_output(life: RegionState, outcome: TaskFinished) -> Failure | None:
    """Return what is wrong with an outcome that does not hold what its region owes to others."""
    missing = [step for step in life.region.materialises if step not in outcome.materialised]
    if not missing:
        return None
    return Failure(
        kind=FailureKind.INTERNAL,
        message=f"the task finished without saying where the result of step {missing[0]!r} is",
        exception="IncompleteOutcome",
    )


def accept(turn: Turn, life: RegionState, outcome: TaskFinished) -> None:
    """Let this attempt, and no other, be the one that counts for its region."""
    if life.current.state is not E.RUNNING:
        life = turn.move(life, E.RUNNING)  # its word that it runs was overtaken by its word that it is done
    execution = structs.replace(
        life.current,
        metrics=outcome.metrics,
        outputs=outcome.outputs,
        activity="publishing" if outcome.sinks else "",
    )
    if life.redo and life.outcome is not None:
        # The rest was accepted, and published, before.
        outcome = structs.replace(life.outcome, materialised=outcome.materialised, sinks=())
    life = structs.replace(life.with_current(execution), outcome=outcome, redo=False)
    if not outcome.sinks:
        _finish(turn, life)
        return
    life = turn.put(
        structs.replace(life, phase=RegionPhase.ACCEPTED, publication=Publication(total=file_count(outcome)))
    )
    turn.do(Record(record_of(turn, life, RegionPhase.ACCEPTED)))


def acceptance_recorded(turn: Turn, life: RegionState) -> None:
    """From now on files may be moved."""
    if life.publication is not None and life.publishing:
        _publish(turn, structs.replace(life, publication=structs.replace(life.publication, durable=True)))


def finish_recorded(turn: Turn, life: RegionState) -> None:
    """The region is done: what waits for it may begin."""
    if life.phase is RegionPhase.FINISHED and not life.current.state.terminal:
        turn.move(life, E.FINISHED, activity="")


def request_publisher(turn: Turn, life: RegionState) -> RegionState:
    """Ask for one slot anywhere: whoever has it publishes."""
    request = SlotRequest(id=RequestId(f"{life.region.id}-{life.current.attempt}-publish"), slots=1)
    return turn.put(structs.replace(life, request=request, grant=None))


def publish_there(turn: Turn, life: RegionState, grant: SlotGrant) -> None:
    """Publish at the TaskManager whose slot was granted."""
    _publish(turn, structs.replace(life, grant=grant))


def files_published(turn: Turn, life: RegionState, news: FilesPublished) -> None:
    """Note how far it is; when all is there, record the region as finished.

    Anybody who published this attempt may say so, also one that was given up: the files are there all the same.
    """
    publication = life.publication
    if publication is None or not publication.durable or not life.publishing:
        return
    done = max(news.done, publication.done)  # words may overtake each other, files do not move back
    life = structs.replace(life, publication=structs.replace(publication, done=done, total=news.total))
    if news.complete:
        _finish(turn, life)
    else:
        turn.put(life)


def publication_failed(turn: Turn, life: RegionState, instance: InstanceId, news: PublicationFailed) -> Failure | None:
    """Try again later; return the failure if the same reason came too often."""
    publication = life.publication
    if (
        publication is None
        or publication.waiting
        or not life.publishing
        or life.grant is None
        or life.grant.instance != instance
    ):
        return None
    repeats = publication.repeats + 1 if news.reason == publication.reason else 1
    publication = structs.replace(
        publication,
        waiting=True,
        failures=publication.failures + 1,
        reason=news.reason,
        repeats=repeats,
        abandoned=repeats >= SAME_REASON_LIMIT,
    )
    turn.put(structs.replace(life, publication=publication))
    if publication.abandoned:
        return Failure(
            kind=FailureKind.PUBLICATION,
            message=f"publishing failed {repeats} times with {publication.done} of {publication.total} files "
            f"in their place: {news.reason}",
            exception="PublicationFailed",
        )
    wait_s = min(_FIRST_WAIT_S * 2 ** (publication.failures - 1), _LONGEST_WAIT_S)
    turn.do(After(wait_s, PublicationDue(turn.job.attempt_id(life))))
    return None


def publication_undelivered(turn: Turn, event: PublicationUndelivered) -> Failure | None:
    """A refusal is a failed publication; one who cannot be reached is asked again, until it is known to be lost."""
    life = turn.job.current_life(event.attempt)
    if life is None:
        return None
    if event.refused:
        return publication_failed(turn, life, event.instance, PublicationFailed(reason=event.reason))
    publication = life.publication
    if publication is not None and life.grant is not None and life.grant.instance == event.instance:
        turn.put(structs.replace(life, publication=structs.replace(publication, waiting=True)))
        turn.do(After(_UNREACHABLE_WAIT_S, PublicationDue(event.attempt)))
    return None


def publication_due(turn: Turn, attempt: AttemptId) -> None:
    """Try again."""
    life = turn.job.current_life(attempt)
    if life is not None and life.publication is not None and life.publication.waiting:
        _publish(turn, life)


def _publish(turn: Turn, life: RegionState) -> None:
    """Put the region and send the order, if all that it needs is there: the leave, a TaskManager, the time."""
    publication, outcome, grant = life.publication, life.outcome, life.grant
    if publication is None or outcome is None or grant is None or not publication.durable:
        turn.put(life)
        return
    if not life.publishing:
        return
    turn.put(structs.replace(life, publication=structs.replace(publication, waiting=False)))
    order = PublishFiles(attempt=turn.job.attempt_id(life), sinks=outcome.sinks)
    turn.do(SendPublish(grant.address, grant.instance, order))


def _finish(turn: Turn, life: RegionState) -> None:
    """Record the region as finished. Its slots are given back now: nothing of it runs any more."""
    record = record_of(turn, life, RegionPhase.FINISHED)
    turn.put(structs.replace(life, phase=RegionPhase.FINISHED, request=None, grant=None))
    turn.do(Record(record))
