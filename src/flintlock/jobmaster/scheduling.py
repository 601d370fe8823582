"""From a region whose inputs are available to a running attempt: request, grant, record, deployment.

This order makes a crash harmless: slots are granted, the attempt is recorded with its TaskManager and the directories
that it may write to, and only then it is sent. So every attempt that ever reached a TaskManager is in the store, its
number is never used again, and what it staged can be found and removed.

A deployment that could not be delivered is sent again, unchanged, for about half a minute (a TaskManager accepts it
once): its engine may be restarting, or another task may be about to free the slots. If the TaskManager is lost, the
ResourceManager reports that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import (
    DeploymentDue,
    DeploymentTaken,
    DeploymentUndelivered,
    Record,
    SendDeploy,
    StartTimer,
)
from flintlock.jobmaster.execution_graph import Execution, ExecutionGraph, RegionState
from flintlock.jobmaster.transition import Transition
from flintlock.model.errors import InvariantBroken
from flintlock.model.files.manifests import Manifest
from flintlock.model.files.staging import staging_of_attempts
from flintlock.model.ids import AttemptId, InstanceId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.regions import is_endless, region_resources
from flintlock.model.slots import SlotGrant, SlotRequest
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import Analysis, DeployTask, Failure, FailureKind, RegionPhase, RegionRecord

E: Final = ExecutionState

#: Delays between deliveries of one deployment. When they are used up, the attempt has failed.
DEPLOYMENT_WAITS_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0)


def schedule(transition: Transition, region: RegionState) -> None:
    """Request slots for the region's next attempt."""
    transition.move(_with_request(transition.job, region), E.SCHEDULED)


def require(transition: Transition, ranges: Mapping[RegionId, ParallelismRange]) -> None:
    """Change how many slots regions may use: those that wait request again, those that have slots keep them."""
    transition.job = structs.replace(transition.job, required={**transition.job.required, **ranges})
    for region in transition.job.regions:
        if region.id in ranges and region.current.state is E.SCHEDULED and region.grant is None:
            transition.update(_with_request(transition.job, region))


def parallelism_of(job: ExecutionGraph, region: RegionState) -> ParallelismRange | None:
    """Return how many slots the region may use; None: all that one TaskManager has."""
    required = job.required.get(region.id)
    if required is not None:
        return required
    fixed, at_most = region.plan.parallelism, job.plan.at_most
    if fixed is not None:
        return ParallelismRange(lower=fixed, upper=fixed)
    return None if at_most is None else ParallelismRange(upper=at_most)


def _with_request(job: ExecutionGraph, region: RegionState) -> RegionState:
    """Return the region with a request under a new id, so that a grant for an earlier request does not match it."""
    wanted = parallelism_of(job, region)
    if job.plan.shares_slots and (wanted is None or wanted.lower < wanted.upper):
        least = 1 if wanted is None else wanted.lower
        wanted = ParallelismRange(lower=least, upper=least)
    exact = wanted is not None and wanted.lower == wanted.upper
    request = SlotRequest(
        id=RequestId(f"{region.id}-{region.current.attempt}" + (f"-{region.asked}" if region.asked else "")),
        slots=wanted.upper if wanted is not None and exact else None,
        at_least=wanted.lower if wanted is not None and not exact else 1,
        at_most=wanted.upper if wanted is not None and not exact else None,
        resources=region_resources(job.plan.graph, region.plan),
        endless=is_endless(job.plan.graph, region.plan),
    )
    return structs.replace(region, request=request, asked=region.asked + 1)


def take_slots(transition: Transition, region: RegionState, grant: SlotGrant) -> None:
    """Record that the attempt goes to that TaskManager; it is sent once that is durable."""
    attempt = transition.job.attempt_id(region)
    execution = structs.replace(
        region.current,
        task_manager=grant.task_manager,
        address=grant.address,
        slots=len(grant.slots),
        lease_s=transition.job.plan.heartbeat_timeout_s,
        recording=region.current.recording + 1,
    )
    staging = staging_of_attempts(transition.job.plan.graph, region.plan, attempt)
    if region.plan.materialises:
        staging = (*staging, transition.job.plan.work_dir)
    region = structs.replace(region.with_current(execution), grant=grant, phase=RegionPhase.DEPLOYED, staging=staging)
    transition.update(region)
    transition.emit(Record(record_of(transition, region, RegionPhase.DEPLOYED)))


def deployment_recorded(transition: Transition, region: RegionState, record: RegionRecord) -> None:
    """Send the attempt if its slots are still granted there and no later record of its TaskManager is being written.

    Slots may have been granted, lost and granted again at one TaskManager while the first record was being written.
    """
    execution = structs.replace(region.current, recording=region.current.recording - 1)
    region, grant = transition.update(region.with_current(execution)), region.grant
    if execution.recording or execution.state is not E.SCHEDULED or grant is None or grant.instance != record.instance:
        return
    _send(transition, transition.move(region, E.DEPLOYING), grant)


def deployment_taken(transition: Transition, event: DeploymentTaken) -> RegionState | None:
    """Mark the deployment as acknowledged. Return the region if the attempt is still the current one there."""
    region = transition.job.region_of(event.attempt)
    if region is None or region.grant is None or region.grant.instance != event.instance:
        return None
    execution = structs.replace(region.current, in_flight=False)
    if execution.listed_after is None:
        execution = structs.replace(execution, listed_after=event.heartbeat)
    return transition.update(region.with_current(execution))


def deployment_undelivered(transition: Transition, event: DeploymentUndelivered) -> Failure | None:
    """Retry later; return the failure when the retries are used up."""
    region = transition.job.region_of(event.attempt)
    if region is None or region.grant is None or region.grant.instance != event.instance:
        return None
    tried = region.current.deployments
    execution = structs.replace(region.current, in_flight=False, deployments=tried + 1)
    transition.update(region.with_current(execution))
    if execution.state is not E.DEPLOYING:
        return None
    if tried < len(DEPLOYMENT_WAITS_S):
        transition.emit(StartTimer(DEPLOYMENT_WAITS_S[tried], DeploymentDue(event.attempt)))
        return None
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {region.grant.task_manager} did not take the task: {event.reason}",
        exception="DeploymentFailed",
    )


def deployment_due(transition: Transition, attempt: AttemptId) -> None:
    """Send an undelivered deployment again."""
    region = transition.job.region_of(attempt)
    if region is not None and region.grant is not None and _awaits_redelivery(region.current):
        _send(transition, region, region.grant)


def record_of(transition: Transition, region: RegionState, phase: RegionPhase) -> RegionRecord:
    """Return the record that announces a phase of the region's latest attempt."""
    execution, grant = region.current, region.grant
    outcome = region.outcome
    if outcome is not None and phase is not RegionPhase.ACCEPTED:
        outcome = structs.replace(outcome, sinks=())  # nothing is left to publish, and the list may be long
    return RegionRecord(
        job_id=transition.job.plan.job_id,
        region=region.id,
        phase=phase,
        attempt=execution.attempt,
        task_manager=execution.task_manager or TaskManagerId(""),
        instance=grant.instance if grant is not None else InstanceId(""),
        address=execution.address,
        outcome=outcome,
        staging=region.staging,
        recorded_ms=transition.context.now_ms,
        lease_s=execution.lease_s,
    )


def _awaits_redelivery(execution: Execution) -> bool:
    return execution.state is E.DEPLOYING and execution.deployments > 0 and not execution.in_flight


def _send(transition: Transition, region: RegionState, grant: SlotGrant) -> None:
    plan = transition.job.plan
    transition.update(region.with_current(structs.replace(region.current, in_flight=True)))
    order = DeployTask(
        attempt=transition.job.attempt_id(region),
        graph=plan.graph,
        region=region.plan,
        slots=grant.slots,
        inputs=_inputs(transition.job, region),
        manifests=_manifests(transition.job, region),
        work_dir=plan.work_dir,
        checkpoint_dir=plan.checkpoint_dir,
        analysis=_analysis(transition.job, region),
        cancel_timeout_s=plan.cancel_timeout_s,
        instance=grant.instance,
        resources=region_resources(plan.graph, region.plan),
        outputs=region.plan.materialises if region.redo else None,
        lease_s=region.current.lease_s,
        rescale=transition.job.rescale,
        continues=any(earlier.query is not None and earlier.query.batches for earlier in region.executions),
    )
    transition.emit(SendDeploy(grant.address, grant.instance, order))


def _analysis(job: ExecutionGraph, region: RegionState) -> Analysis:
    """Return how much an attempt analyses first: the whole graph, until one attempt has analysed it."""
    if not job.plan.analyze_first or len(job.regions) == 1:
        return Analysis.REGION
    analysed = region.plan.upstream or any(other.outcome is not None for other in job.regions)
    return Analysis.DONE if analysed else Analysis.WHOLE


def _inputs(job: ExecutionGraph, region: RegionState) -> dict[StepName, str]:
    """Return the paths of the blocking results that the region reads."""
    paths: dict[StepName, str] = {}
    for upstream in region.plan.upstream:
        outcome = job.regions[upstream].outcome
        if outcome is not None:
            paths |= outcome.materialised
    missing = [step for step in region.plan.reads if step not in paths]
    if missing:
        raise InvariantBroken(f"job {job.plan.job_id}: region {region.id} runs before {missing} are available")
    return {step: paths[step] for step in region.plan.reads}


def _manifests(job: ExecutionGraph, region: RegionState) -> dict[StepName, Manifest]:
    """Return the manifests of the blocking results that the region reads, as far as they are recorded."""
    manifests: dict[StepName, Manifest] = {}
    for upstream in region.plan.upstream:
        outcome = job.regions[upstream].outcome
        if outcome is not None:
            manifests |= outcome.manifests
    return {step: manifests[step] for step in region.plan.reads if step in manifests}
