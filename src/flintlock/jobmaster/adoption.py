"""Adoption: a new JobMaster finds attempts that an earlier one has sent, and lets them continue.

An attempt that is recorded as DEPLOYED may run, may have ended while no leader received its report, or may never have
arrived. Its region is RECONCILING until one of these is known:

- the ResourceManager grants its claim, as its TaskManager has registered with it: it continues, with its number;
- its TaskManager sends a report about it: the same;
- that incarnation of the TaskManager has ended, or has registered without it: the next attempt follows;
- nothing listens at its address and nothing is heard of it for longer than the pause between two heartbeats: the same;
- a whole lease has passed in the new term: the TaskManager has ended the attempt by its own clock. That is the longer
  one of the lease that this leader grants and the one that is recorded with the attempt: earlier leaders may have had
  another `heartbeat.timeout`, and no TaskManager lets an attempt run under a longer lease than the recorded one.

So no second attempt begins while the first may be alive, and an attempt that is alive is not started again.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import Probed, ProbeDue, ReconcileTimedOut, SendProbe, StartTimer
from flintlock.jobmaster.execution_graph import UNCONFIRMED, RegionState
from flintlock.jobmaster.transition import Transition
from flintlock.model.ids import AttemptId, RequestId
from flintlock.model.regions import is_endless, region_resources
from flintlock.model.slots import Claim, SlotGrant, SlotRequest
from flintlock.model.states import ExecutionState, JobStatus

E: Final = ExecutionState
J: Final = JobStatus
_PROBE_AGAIN_S: Final = 1.0


def begin(transition: Transition) -> None:
    """Claim the slots of every attempt that may still run, and probe its TaskManager."""
    for region in transition.job.regions:
        attempt = transition.job.attempt_id(region)
        if region.current.state is E.CANCELING:  # cancelled before the JobMaster ran
            transition.emit(StartTimer(_longest_lease_s(transition, region), ReconcileTimedOut(attempt)))
        if region.current.state is not E.RECONCILING or region.grant is None:
            continue
        grant = region.grant
        claim = Claim(task_manager=grant.task_manager, instance=grant.instance, attempt=attempt, address=grant.address)
        request = SlotRequest(
            id=RequestId(f"{region.id}-{region.current.attempt}-claim"),
            claim=claim,
            resources=region_resources(transition.job.plan.graph, region.plan),  # it uses them since its deployment
            endless=is_endless(transition.job.plan.graph, region.plan),
        )
        transition.update(structs.replace(region, request=request))
        transition.emit(SendProbe(region.grant.address, attempt, region.grant.instance))
        transition.emit(StartTimer(_longest_lease_s(transition, region), ReconcileTimedOut(attempt)))


def adopt(transition: Transition, region: RegionState, grant: SlotGrant | None = None) -> RegionState:
    """Let the attempt continue: its TaskManager has it, in these slots if they are known yet."""
    if region.current.state is not E.RECONCILING:
        return region
    region = transition.move(region, E.RUNNING)
    if grant is not None:
        region = region.with_current(structs.replace(region.current, slots=len(grant.slots)))
        region = with_claimed_grant(region, grant)
    transition.update(region)
    settle(transition)
    return transition.job.regions[region.id]


def with_claimed_grant(region: RegionState, grant: SlotGrant) -> RegionState:
    """Return the region with the slots of its attempt. Heartbeats after the one that listed the attempt list it, too.

    It may have ended since that heartbeat, and its report may have found no JobMaster: then the next one shows it.
    """
    listed_after = grant.listed_by if region.current.listed_after is None else region.current.listed_after
    region = region.with_current(structs.replace(region.current, listed_after=listed_after))
    return structs.replace(region, grant=grant)


def confirm(transition: Transition, region: RegionState) -> RegionState:
    """Mark the attempt as known to the ResourceManager: `ReconcileTimedOut` no longer applies to it."""
    region = adopt(transition, region)
    if region.grant is not None and region.grant.request == UNCONFIRMED and region.request is not None:
        region = transition.update(
            structs.replace(region, grant=structs.replace(region.grant, request=region.request.id))
        )
    return region


def probed(transition: Transition, event: Probed) -> None:
    """Apply a probe's result: an ended incarnation has no attempts; one that does not answer is probed again."""
    region = transition.job.region_of(event.attempt)
    if region is None or region.current.state is not E.RECONCILING:
        return
    refusals = region.current.refusals + 1 if event.unreachable else 0
    region = transition.update(region.with_current(structs.replace(region.current, refusals=refusals)))
    if event.over or is_dead(transition, region):
        give_up(transition, region)
    else:
        transition.emit(StartTimer(_PROBE_AGAIN_S, ProbeDue(event.attempt)))


def is_dead(transition: Transition, region: RegionState) -> bool:
    """Return whether the TaskManager of an attempt is dead: it has refused connections, and sent nothing meanwhile.

    Connections are tried once a second; each sign of life resets the count (`heard_of`). A TaskManager that is alive
    but refuses connections (behind a firewall, say) sends a heartbeat before the count is complete.
    """
    return region.current.refusals >= transition.job.plan.refusals_of_the_dead


def heard_of(transition: Transition, region: RegionState) -> RegionState:
    """Record a sign of life of the attempt's TaskManager."""
    if not region.current.refusals:
        return region
    return transition.update(region.with_current(structs.replace(region.current, refusals=0)))


def probe_due(transition: Transition, attempt: AttemptId) -> None:
    """Probe again."""
    region = transition.job.region_of(attempt)
    if region is not None and region.current.state is E.RECONCILING and region.grant is not None:
        transition.emit(SendProbe(region.grant.address, attempt, region.grant.instance))


def give_up(transition: Transition, region: RegionState) -> None:
    """The attempt is known not to run: the next one may follow."""
    transition.move(region, E.CANCELING)
    region = transition.move(transition.job.regions[region.id], E.CANCELED, activity="")
    transition.update(structs.replace(region, request=None, grant=None))
    settle(transition)


def settle(transition: Transition) -> None:
    """Move the job to RUNNING once none of its regions is RECONCILING."""
    if transition.job.status is J.RECONCILING and not any(
        region.current.state is E.RECONCILING for region in transition.job.regions
    ):
        transition.move_job(J.RUNNING)


def _longest_lease_s(transition: Transition, region: RegionState) -> float:
    """Return how long the attempt may run without contact to this leader."""
    return max(region.current.lease_s, transition.job.plan.heartbeat_timeout_s)
