"""From a region whose inputs are there to a running attempt: request, grant, record, deployment.

The order is what keeps a crash harmless: slots are granted, the attempt is recorded with its TaskManager and the
directories that it may write to, and only then it is sent. So every attempt that ever reached a TaskManager is in the
store, its number is never given out again, and what it staged can be found and removed.

A deployment that could not be delivered is sent again, unchanged, for about half a minute (a TaskManager takes it
once): its engine may be starting again, or another task may be about to leave the slots. If the TaskManager is gone,
the ResourceManager says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import (
    After,
    DeploymentDue,
    DeploymentTaken,
    DeploymentUndelivered,
    Record,
    SendDeploy,
)
from flintlock.jobmaster.execution_graph import Execution, ExecutionGraph, RegionState
from flintlock.jobmaster.turn import Turn
from flintlock.model.errors import InvariantBroken
from flintlock.model.ids import AttemptId, InstanceId, RegionId, RequestId, StepName, TaskManagerId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.regions import region_resources
from flintlock.model.slots import SlotGrant, SlotRequest
from flintlock.model.staging import staging_directories
from flintlock.model.states import ExecutionState
from flintlock.model.tasks import Analysis, DeployTask, Failure, FailureKind, RegionPhase, RegionRecord

E: Final = ExecutionState

#: Waits between deliveries of one deployment. When they are used up, the attempt has failed.
DEPLOYMENT_WAITS_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0)


def schedule(turn: Turn, life: RegionState) -> None:
    """Ask for slots for the region's next attempt."""
    turn.move(_with_request(turn.job, life), E.SCHEDULED)


def require(turn: Turn, ranges: Mapping[RegionId, ParallelismRange]) -> None:
    """Use other numbers of slots from now on: who waits for slots asks anew, who has them keeps them."""
    turn.job = structs.replace(turn.job, required={**turn.job.required, **ranges})
    for life in turn.job.regions:
        if life.region.id in ranges and life.current.state is E.SCHEDULED and life.grant is None:
            turn.put(_with_request(turn.job, life))


def parallelism_of(job: ExecutionGraph, life: RegionState) -> ParallelismRange | None:
    """Return how many slots the region may have; None: all that one TaskManager has."""
    required = job.required.get(life.region.id)
    if required is not None:
        return required
    fixed, at_most = life.region.parallelism, job.plan.at_most
    if fixed is not None:
        return ParallelismRange(lower=fixed, upper=fixed)
    return None if at_most is None else ParallelismRange(upper=at_most)


def _with_request(job: ExecutionGraph, life: RegionState) -> RegionState:
    """Return the region with a request of its own: a grant that answers an earlier wish is then not taken for it."""
    wanted = parallelism_of(job, life)
    exact = wanted is not None and wanted.lower == wanted.upper
    request = SlotRequest(
        id=RequestId(f"{life.region.id}-{life.current.attempt}" + (f"-{life.asked}" if life.asked else "")),
        slots=wanted.upper if wanted is not None and exact else None,
        at_least=wanted.lower if wanted is not None and not exact else 1,
        at_most=wanted.upper if wanted is not None and not exact else None,
        resources=region_resources(job.plan.graph, life.region),
    )
    return structs.replace(life, request=request, asked=life.asked + 1)


def take_slots(turn: Turn, life: RegionState, grant: SlotGrant) -> None:
    """Record that the attempt will be at that TaskManager; it is sent once that is durable."""
    attempt = turn.job.attempt_id(life)
    execution = structs.replace(
        life.current,
        task_manager=grant.task_manager,
        address=grant.address,
        slots=len(grant.slots),
        recording=life.current.recording + 1,
    )
    own = staging_directories(turn.job.plan.graph, life.region, attempt)
    staging = (*life.staging, *(directory for directory in own if directory not in life.staging))
    life = structs.replace(life.with_current(execution), grant=grant, phase=RegionPhase.DEPLOYED, staging=staging)
    turn.put(life)
    turn.do(Record(record_of(turn, life, RegionPhase.DEPLOYED)))


def deployment_recorded(turn: Turn, life: RegionState, record: RegionRecord) -> None:
    """Send the attempt, if it is still wanted there, and no later record of where it goes is on its way.

    It may have been granted, lost and granted again at one TaskManager while the first record was being written.
    """
    execution = structs.replace(life.current, recording=life.current.recording - 1)
    life, grant = turn.put(life.with_current(execution)), life.grant
    if execution.recording or execution.state is not E.SCHEDULED or grant is None or grant.instance != record.instance:
        return
    _send(turn, turn.move(life, E.DEPLOYING), grant)


def deployment_taken(turn: Turn, event: DeploymentTaken) -> RegionState | None:
    """Note that the TaskManager has it. Return the region if the attempt is still the current one there."""
    life = turn.job.current_life(event.attempt)
    if life is None or life.grant is None or life.grant.instance != event.instance:
        return None
    return turn.put(life.with_current(structs.replace(life.current, in_flight=False)))


def deployment_undelivered(turn: Turn, event: DeploymentUndelivered) -> Failure | None:
    """Try again later; return the failure if that was tried often enough."""
    life = turn.job.current_life(event.attempt)
    if life is None or life.grant is None or life.grant.instance != event.instance:
        return None
    tried = life.current.deployments
    execution = structs.replace(life.current, in_flight=False, deployments=tried + 1)
    turn.put(life.with_current(execution))
    if execution.state is not E.DEPLOYING:
        return None
    if tried < len(DEPLOYMENT_WAITS_S):
        turn.do(After(DEPLOYMENT_WAITS_S[tried], DeploymentDue(event.attempt)))
        return None
    return Failure(
        kind=FailureKind.TASK_MANAGER_LOST,
        message=f"TaskManager {life.grant.task_manager} did not take the task: {event.reason}",
        exception="DeploymentFailed",
    )


def deployment_due(turn: Turn, attempt: AttemptId) -> None:
    """Send an undelivered deployment again."""
    life = turn.job.current_life(attempt)
    if life is not None and life.grant is not None and _undelivered(life.current):
        _send(turn, life, life.grant)


def record_of(turn: Turn, life: RegionState, phase: RegionPhase) -> RegionRecord:
    """Return the record that announces a phase of the region's latest attempt."""
    execution, grant = life.current, life.grant
    outcome = life.outcome
    if outcome is not None and phase is not RegionPhase.ACCEPTED:
        outcome = structs.replace(outcome, sinks=())  # nothing is left to publish, and the list may be long
    return RegionRecord(
        job_id=turn.job.plan.job_id,
        region=life.region.id,
        phase=phase,
        attempt=execution.attempt,
        task_manager=execution.task_manager or TaskManagerId(""),
        instance=grant.instance if grant is not None else InstanceId(""),
        address=execution.address,
        outcome=outcome,
        staging=life.staging,
        recorded_ms=turn.moment.now_ms,
    )


def _undelivered(execution: Execution) -> bool:
    return execution.state is E.DEPLOYING and execution.deployments > 0 and not execution.in_flight


def _send(turn: Turn, life: RegionState, grant: SlotGrant) -> None:
    plan = turn.job.plan
    turn.put(life.with_current(structs.replace(life.current, in_flight=True)))
    order = DeployTask(
        attempt=turn.job.attempt_id(life),
        graph=plan.graph,
        slots=grant.slots,
        inputs=_inputs(turn.job, life),
        work_dir=plan.work_dir,
        session_config=plan.session_config,
        analysis=_analysis(turn.job, life),
        cancel_timeout_s=plan.cancel_timeout_s,
        instance=grant.instance,
        resources=region_resources(plan.graph, life.region),
        outputs=life.region.materialises if life.redo else None,
    )
    turn.do(SendDeploy(grant.address, grant.instance, order))


def _analysis(job: ExecutionGraph, life: RegionState) -> Analysis:
    """Return how much an attempt has to look at: the whole graph, until a region has come through that."""
    if not job.plan.analyze_first or len(job.regions) == 1:
        return Analysis.REGION
    looked_at = life.region.upstream or any(other.outcome is not None for other in job.regions)
    return Analysis.DONE if looked_at else Analysis.WHOLE


def _inputs(job: ExecutionGraph, life: RegionState) -> dict[StepName, str]:
    """Return where the blocking results are that the region reads."""
    paths: dict[StepName, str] = {}
    for upstream in life.region.upstream:
        outcome = job.regions[upstream].outcome
        if outcome is not None:
            paths |= outcome.materialised
    missing = [step for step in life.region.reads if step not in paths]
    if missing:
        raise InvariantBroken(f"job {job.plan.job_id}: region {life.region.id} runs before {missing} are there")
    return {step: paths[step] for step in life.region.reads}
