"""From a task's report that it has finished to a finished region: acceptance, publication, and its failures.

An attempt is accepted by deciding so and recording it. From the decision on (the record may be durable before the
store responds) the publication only rolls forward: the files are moved, by the TaskManager that wrote them or by
another, with as many retries as it takes. A region without files to publish is FINISHED directly after that report.

A failed publication is retried at the same TaskManager, with growing delays. A TaskManager that is lost is replaced by
any other with a slot. There are two exceptions, and after both the targets have a part of the files and no success
marker, and the message says how many. It is never reported as finished.

- A publication that makes no progress is given up after `execution.publication.retry-timeout`, one whose failure is of
  a permanent kind after `PERMANENT_TIMEOUT_S`: the job fails (FailureKind.PUBLICATION). Only the time between the tries
  counts, as the timers measure it: a clock that is set forward gives nothing up.
- A user ends it by force (`end_by_force`).

Rejected: retrying for ever without a visible failure, since the user must learn that a target cannot be written;
comparing the texts of failures, which contain request ids, ports and names of files.
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
#: How long a publication is retried whose failure will hardly pass: an operator may still correct a permission.
PERMANENT_TIMEOUT_S: Final = 120.0
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
        publishing_ms=transition.context.now_ms if outcome.sinks else 0,
    )
    if region.redo and region.outcome is not None:
        # The rest was accepted and published before.
        outcome = structs.replace(
            region.outcome, materialised=outcome.materialised, manifests=outcome.manifests, sinks=()
        )
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
    if news.done > publication.done:  # reports may overtake each other, published files stay
        publication = structs.replace(publication, done=news.done, failures=0, waited_s=0.0)
    region = structs.replace(region, publication=structs.replace(publication, total=news.total))
    if news.complete:
        _finish(transition, region)
    else:
        transition.update(region)


def publication_failed(
    transition: Transition, region: RegionState, instance: InstanceId, news: PublicationFailed
) -> Failure | None:
    """Retry later; return the failure if it has been retried for too long."""
    publication = region.publication
    if (
        publication is None
        or publication.waiting
        or not region.publishing
        or region.grant is None
        or region.grant.instance != instance
    ):
        return None
    limit_s = transition.job.plan.publication_timeout_s
    limit_s = min(limit_s, PERMANENT_TIMEOUT_S) if news.permanent else limit_s
    tried, waited_s = publication.failures + 1, publication.waited_s
    delay_s = _BACKOFF.delay_s(tried)
    publication = structs.replace(
        publication, waiting=True, failures=tried, waited_s=waited_s + delay_s, abandoned=waited_s >= limit_s
    )
    transition.update(structs.replace(region, publication=publication))
    if publication.abandoned:
        return Failure(
            kind=FailureKind.PUBLICATION,
            message=f"publishing failed {tried} times without progress: {news.reason}. "
            + _left_behind(region, at_least=not news.stopped),
            exception="PublicationFailed",
        )
    transition.emit(StartTimer(delay_s, PublicationDue(transition.job.attempt_id(region))))
    return None


def forced_end(region: RegionState) -> Failure:
    """Return the failure that reports a publication which a user ends by force, and what it leaves behind."""
    return Failure(
        kind=FailureKind.PUBLICATION,
        message="the publication was ended by force. " + _left_behind(region, at_least=True),
        exception="PublicationEnded",
    )


def publication_undelivered(transition: Transition, event: PublicationUndelivered) -> Failure | None:
    """Treat a refusal as a failed publication; retry an unreachable TaskManager until it is known to be lost."""
    region = transition.job.region_of(event.attempt)
    if region is None:
        return None
    if event.refused:
        news = PublicationFailed(reason=event.reason, permanent=True)
        return publication_failed(transition, region, event.instance, news)
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


def _left_behind(region: RegionState, *, at_least: bool) -> str:
    """Return which files are in the targets of a publication that ends before it is complete.

    `at_least`: more may have changed since the last report.
    """
    if region.publication is None or region.outcome is None:
        return "Nothing was published"
    sinks = region.outcome.sinks
    done = region.publication.done - sum(sink.success_marker is not None for sink in sinks)
    if done < 0:
        return "No file was moved or removed" + (", as far as was reported" if at_least else "")
    moved = _shares(done, [len(sink.moves) for sink in sinks])
    removed = _shares(done - sum(moved), [len(sink.removes) for sink in sinks])
    found = "; ".join(
        f"{sink.target} has {moved[index]} of the {len(sink.moves)} files of this run"
        + (
            f", {len(sink.removes) - removed[index]} of the {len(sink.removes)} that it replaces"
            if sink.removes
            else ""
        )
        + " and no success marker"
        for index, sink in enumerate(sinks)
    )
    return found + (", or is further than that" if at_least else "")


def _shares(total: int, sizes: list[int]) -> list[int]:
    """Return how much of each size is used up if they are used up in their order."""
    shares: list[int] = []
    for size in sizes:
        shares.append(min(size, max(total, 0)))
        total -= shares[-1]
    return shares
