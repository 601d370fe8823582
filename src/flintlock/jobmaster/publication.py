"""From a task's report that it has finished to a finished region: acceptance, publication, and its failures.

An attempt is accepted by deciding so and recording it. From the decision on (the record may be durable before the
store responds) the publication only rolls forward: the files are moved, by the TaskManager that wrote them or by
another, with as many retries as it takes. A region without files to publish is FINISHED directly after that report.

A failed publication is retried at the same TaskManager, with growing delays. A TaskManager that is lost is replaced by
any other with a slot. There is one exception: when the same reason comes `SAME_REASON_LIMIT` times in a row, which
takes two minutes, the job fails with that reason (FailureKind.PUBLICATION). Its target then contains a part of the
files and no success marker, and the message says how many. It is never reported as finished.
Rejected: retrying for ever without a visible failure; the user must learn that a target cannot be written.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import (
    PublicationDue,
    PublicationUndelivered,
    Record,
    SendPublish,
    StartTimer,
)
from flintlock.jobmaster.execution_graph import Publication, RegionState, file_count
from flintlock.jobmaster.scheduling import record_of
from flintlock.jobmaster.transition import Transition
from flintlock.model.backoff import Backoff
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
_BACKOFF: Final = Backoff(initial_s=0.5, maximum_s=30.0)
_UNREACHABLE_WAIT_S: Final = 1.0


def missing_output(region: RegionState, outcome: TaskFinished) -> Failure | None:
    """Return the failure of an outcome that lacks a blocking result of its region; None if it is complete."""
    missing = [step for step in region.plan.materialises if step not in outcome.materialised]
    if not missing:
        return None
    return Failure(
        kind=FailureKind.INTERNAL,
        message=f"the task finished without reporting where the result of step {missing[0]!r} is",
        exception="IncompleteOutcome",
    )


def accept(transition: Transition, region: RegionState, outcome: TaskFinished) -> None:
    """Accept this attempt, and no other, as the outcome of its region."""
    if region.current.state is not E.RUNNING:
        region = transition.move(
            region, E.RUNNING
        )  # the report that it runs was overtaken by the one that it has finished
    execution = structs.replace(
        region.current,
        metrics=outcome.metrics,
        outputs=outcome.outputs,
        activity="publishing" if outcome.sinks else "",
    )
    if region.redo and region.outcome is not None:
        # The rest was accepted and published before.
        outcome = structs.replace(region.outcome, materialised=outcome.materialised, sinks=())
    region = structs.replace(region.with_current(execution), outcome=outcome, redo=False)
    if not outcome.sinks:
        _finish(transition, region)
        return
    region = transition.update(
        structs.replace(region, phase=RegionPhase.ACCEPTED, publication=Publication(total=file_count(outcome)))
    )
    transition.emit(Record(record_of(transition, region, RegionPhase.ACCEPTED)))


def acceptance_recorded(transition: Transition, region: RegionState) -> None:
    """Publish: from now on files may be moved."""
    if region.publication is not None and region.publishing:
        _publish(transition, structs.replace(region, publication=structs.replace(region.publication, durable=True)))


def finish_recorded(transition: Transition, region: RegionState) -> None:
    """Finish the region: its consumers may start."""
    if region.phase is RegionPhase.FINISHED and not region.current.state.terminal:
        transition.move(region, E.FINISHED, activity="")


def request_publisher(transition: Transition, region: RegionState) -> RegionState:
    """Request one slot at any TaskManager, which then publishes."""
    request = SlotRequest(id=RequestId(f"{region.id}-{region.current.attempt}-publish"), slots=1)
    return transition.update(structs.replace(region, request=request, grant=None))


def publish_at(transition: Transition, region: RegionState, grant: SlotGrant) -> None:
    """Publish at the TaskManager whose slot was granted."""
    _publish(transition, structs.replace(region, grant=grant))


def files_published(transition: Transition, region: RegionState, news: FilesPublished) -> None:
    """Update the progress; when all files are published, record the region as finished.

    The report may come from any publisher of this attempt, also a replaced one: its files are in place all the same.
    """
    publication = region.publication
    if publication is None or not publication.durable or not region.publishing:
        return
    done = max(news.done, publication.done)  # reports may overtake each other, published files stay
    region = structs.replace(region, publication=structs.replace(publication, done=done, total=news.total))
    if news.complete:
        _finish(transition, region)
    else:
        transition.update(region)


def publication_failed(
    transition: Transition, region: RegionState, instance: InstanceId, news: PublicationFailed
) -> Failure | None:
    """Retry later; return the failure if the same reason came too often."""
    publication = region.publication
    if (
        publication is None
        or publication.waiting
        or not region.publishing
        or region.grant is None
        or region.grant.instance != instance
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
    transition.update(structs.replace(region, publication=publication))
    if publication.abandoned:
        return Failure(
            kind=FailureKind.PUBLICATION,
            message=f"publishing failed {repeats} times with {publication.done} of {publication.total} files "
            f"in their place: {news.reason}",
            exception="PublicationFailed",
        )
    delay_s = _BACKOFF.delay_s(publication.failures)
    transition.emit(StartTimer(delay_s, PublicationDue(transition.job.attempt_id(region))))
    return None


def publication_undelivered(transition: Transition, event: PublicationUndelivered) -> Failure | None:
    """Treat a refusal as a failed publication; retry an unreachable TaskManager until it is known to be lost."""
    region = transition.job.region_of(event.attempt)
    if region is None:
        return None
    if event.refused:
        return publication_failed(transition, region, event.instance, PublicationFailed(reason=event.reason))
    publication = region.publication
    if publication is not None and region.grant is not None and region.grant.instance == event.instance:
        transition.update(structs.replace(region, publication=structs.replace(publication, waiting=True)))
        transition.emit(StartTimer(_UNREACHABLE_WAIT_S, PublicationDue(event.attempt)))
    return None


def publication_due(transition: Transition, attempt: AttemptId) -> None:
    """Publish again."""
    region = transition.job.region_of(attempt)
    if region is not None and region.publication is not None and region.publication.waiting:
        _publish(transition, region)


def _publish(transition: Transition, region: RegionState) -> None:
    """Send the order if the acceptance is durable and a TaskManager is known; else only update the region."""
    publication, outcome, grant = region.publication, region.outcome, region.grant
    if publication is None or outcome is None or grant is None or not publication.durable:
        transition.update(region)
        return
    if not region.publishing:
        return
    transition.update(structs.replace(region, publication=structs.replace(publication, waiting=False)))
    order = PublishFiles(attempt=transition.job.attempt_id(region), sinks=outcome.sinks)
    transition.emit(SendPublish(grant.address, grant.instance, order))


def _finish(transition: Transition, region: RegionState) -> None:
    """Record the region as finished. Its slots are returned now: nothing of it runs any more."""
    record = record_of(transition, region, RegionPhase.FINISHED)
    transition.update(structs.replace(region, phase=RegionPhase.FINISHED, request=None, grant=None))
    transition.emit(Record(record))
