"""Adoption: a new JobMaster finds attempts that an earlier one has sent, and lets them go on.

What is recorded as DEPLOYED may run, may have ended without anybody to hear it, or may never have arrived. Its region
is RECONCILING until one of these is known:

- the ResourceManager grants its claim, as its TaskManager has registered with it: it runs on, under its old number;
- its TaskManager reports of it: the same;
- that life of the TaskManager is over, or has registered without it: the next attempt follows;
- nothing listens there any more (`DEAD_AFTER_REFUSALS` times, a second apart): the same;
- a whole lease has passed in the new term: whatever ran has ended by its own clock.

So no second attempt begins while the first may be alive, and an attempt that lives is not begun again.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from flintlock.jobmaster.events import After, Probed, ProbeDue, ReconcileTimedOut, SendProbe
from flintlock.jobmaster.execution_graph import UNGRANTED, RegionState
from flintlock.jobmaster.turn import Turn
from flintlock.model.ids import AttemptId, RequestId
from flintlock.model.slots import Claim, SlotGrant, SlotRequest
from flintlock.model.states import ExecutionState, JobStatus

E: Final = ExecutionState
J: Final = JobStatus
_PROBE_AGAIN_S: Final = 1.0
#: How often, a second apart, nothing listens at a TaskManager before it counts as dead, with all that it ran.
DEAD_AFTER_REFUSALS: Final = 3


def begin(turn: Turn) -> None:
    """Claim the slots of every attempt that may still run, and ask after it."""
    for life in turn.job.regions:
        attempt = turn.job.attempt_id(life)
        if life.current.state is E.CANCELING:  # asked for before the job ran
            turn.do(After(turn.job.plan.heartbeat_timeout_s, ReconcileTimedOut(attempt)))
        if life.current.state is not E.RECONCILING or life.grant is None:
            continue
        claim = Claim(task_manager=life.grant.task_manager, instance=life.grant.instance, attempt=attempt)
        request = SlotRequest(id=RequestId(f"{life.region.id}-{life.current.attempt}-claim"), claim=claim)
        turn.put(structs.replace(life, request=request))
        turn.do(SendProbe(life.grant.address, attempt, life.grant.instance))
        turn.do(After(turn.job.plan.heartbeat_timeout_s, ReconcileTimedOut(attempt)))


def adopt(turn: Turn, life: RegionState, grant: SlotGrant | None = None) -> RegionState:
    """Let the attempt go on: its TaskManager has it, in these slots if they are known yet."""
    if life.current.state is not E.RECONCILING:
        return life
    life = turn.move(life, E.RUNNING)
    if grant is not None:
        life = life.with_current(structs.replace(life.current, slots=len(grant.slots)))
        life = structs.replace(life, grant=grant)
    turn.put(life)
    settle(turn)
    return turn.job.regions[life.region.id]


def confirm(turn: Turn, life: RegionState) -> RegionState:
    """The ResourceManager knows of the attempt: its slots will be granted, and nobody gives it up for silence."""
    life = adopt(turn, life)
    if life.grant is not None and life.grant.request == UNGRANTED and life.request is not None:
        life = turn.put(structs.replace(life, grant=structs.replace(life.grant, request=life.request.id)))
    return life


def probed(turn: Turn, event: Probed) -> None:
    """Take the answer: a life that is over has ended its attempts; one that does not answer is asked again."""
    life = turn.job.current_life(event.attempt)
    if life is None or life.current.state is not E.RECONCILING:
        return
    refusals = life.current.refusals + 1 if event.unreachable else 0
    life = turn.put(life.with_current(structs.replace(life.current, refusals=refusals)))
    if event.over or refusals >= DEAD_AFTER_REFUSALS:
        give_up(turn, life)
    else:
        turn.do(After(_PROBE_AGAIN_S, ProbeDue(event.attempt)))


def probe_due(turn: Turn, attempt: AttemptId) -> None:
    """Ask again."""
    life = turn.job.current_life(attempt)
    if life is not None and life.current.state is E.RECONCILING and life.grant is not None:
        turn.do(SendProbe(life.grant.address, attempt, life.grant.instance))


def give_up(turn: Turn, life: RegionState) -> None:
    """The attempt is known not to run: the next one may follow."""
    turn.move(life, E.CANCELING)
    life = turn.move(turn.job.regions[life.region.id], E.CANCELED, activity="")
    turn.put(structs.replace(life, request=None, grant=None))
    settle(turn)


def settle(turn: Turn) -> None:
    """Let the job run once nothing of it has to be reconciled any more."""
    if turn.job.status is J.RECONCILING and not any(life.current.state is E.RECONCILING for life in turn.job.regions):
        turn.move_job(J.RUNNING)
