"""Attempts that TaskManagers carry over to a new leader, and the claims of JobMasters."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.resourcemanager.test_core import A, B, beat, core_with, granted, offer, wants

from flintlock.model.errors import Refused
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import (
    AttemptSlots,
    Claim,
    Hardware,
    Heartbeat,
    NoResources,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
)
from flintlock.resourcemanager.core import ResourceManagerCore, ResourceManagerEffect


def attempt(job: JobId = A, number: int = 0) -> AttemptId:
    return AttemptId(job_id=job, region=RegionId(0), attempt=number)


def carries(
    core: ResourceManagerCore, *held: AttemptSlots, slots: int = 2, incarnation: int = 1
) -> list[ResourceManagerEffect]:
    """Register tm-1 with work, and send its first heartbeat."""
    core.register(structs.replace(offer(slots=slots, incarnation=incarnation), busy=True), 0.0)
    known, effects = core.heartbeat(_beat(*held, incarnation=incarnation), 0.0)
    assert known
    return effects


def _beat(*held: AttemptSlots, incarnation: int = 1) -> Heartbeat:
    return structs.replace(beat(incarnation=incarnation), attempts=held)


def claims(job: JobId, what: AttemptId, incarnation: int = 1) -> ResourceRequirements:
    claim = Claim(task_manager=TaskManagerId("tm-1"), instance=InstanceId(f"tm-1-{incarnation}"), attempt=what)
    return ResourceRequirements(job_id=job, requests=(SlotRequest(id=RequestId("claim"), claim=claim),))


GIB = 1 << 30
LARGE = Resources(cpu=3.0, memory=6 * GIB)  # more than the share of a slot of the TaskManager below


def carrying_a_large_task(*slots: int) -> ResourceManagerCore:
    """A TaskManager with 2 slots, 4 cores and 8 GiB, on which an attempt of a large task runs in these slots."""
    core = core_with()
    hardware = Hardware(cpu_cores=4, physical_memory=8 * GIB)
    core.register(structs.replace(offer(slots=2), hardware=hardware), 0.0)
    core.heartbeat(_beat(AttemptSlots(attempt=attempt(), slots=slots, resources=LARGE if slots else None)), 0.0)
    return core


def claimed_by_a_large_task(*slots: int) -> ResourceManagerCore:
    """The same, and the attempt is claimed."""
    core = carrying_a_large_task(*slots)
    (claim,) = claims(A, attempt()).requests
    core.declare(ResourceRequirements(job_id=A, requests=(structs.replace(claim, resources=LARGE),)), 0)
    return core


def free_resources(core: ResourceManagerCore) -> Resources:
    return core.overview(0.0, 0).task_managers[0].free_resources


def test_a_claimed_attempt_keeps_the_cores_and_the_memory_that_it_uses() -> None:
    core = claimed_by_a_large_task(1)
    assert free_resources(core) == Resources(cpu=1.0, memory=2 * GIB)
    assert granted(core.declare(wants(B, r=1), 0)) == [], "its share of the TaskManager is not free"
    assert granted(core.declare(wants(A), 0)) == [("b", "r", "tm-1", (0,))]
    core.declare(wants(B), 0)
    assert free_resources(core) == Resources(cpu=4.0, memory=8 * GIB)


def test_an_attempt_that_no_job_claims_keeps_its_cores_and_memory_until_it_has_ended() -> None:
    core = carrying_a_large_task(1)
    assert free_resources(core) == Resources(cpu=1.0, memory=2 * GIB)
    assert granted(core.declare(wants(B, r=1), 0)) == []
    _, effects = core.heartbeat(_beat(), 1.0)
    assert granted(effects) == [("b", "r", "tm-1", (0,))]


def test_a_claimed_attempt_that_has_done_its_work_takes_nothing() -> None:
    core = claimed_by_a_large_task()
    assert free_resources(core) == Resources(cpu=4.0, memory=8 * GIB)
    core.declare(wants(A), 0)
    assert free_resources(core) == Resources(cpu=4.0, memory=8 * GIB)


def refused(effects: list[ResourceManagerEffect]) -> list[str]:
    return [effect.request for effect in effects if isinstance(effect, NoResources)]


@pytest.mark.parametrize("claimed_first", [True, False])
def test_a_claim_of_an_attempt_gets_its_slots(claimed_first: bool) -> None:
    core = core_with()
    effects = core.declare(claims(A, attempt()), 0) if claimed_first else []
    effects += carries(core, AttemptSlots(attempt=attempt(), slots=(1,)))
    effects += [] if claimed_first else core.declare(claims(A, attempt()), 0)

    assert granted(effects) == [("a", "claim", "tm-1", (1,))]


def test_a_granted_claim_names_the_latest_heartbeat_that_lists_the_attempt() -> None:
    """Later ones list it as well, unless it has ended: its report may have found no JobMaster."""
    core = core_with()
    held = AttemptSlots(attempt=attempt(), slots=(0,))
    carries(core, held)
    for number in (8, 7):  # the second one is late
        core.heartbeat(structs.replace(_beat(held), number=number), 1.0)

    (grant,) = [effect for effect in core.declare(claims(A, attempt()), 0) if isinstance(effect, SlotGrant)]
    assert grant.listed_by == 8


def test_slots_of_a_carried_attempt_are_not_granted_to_others() -> None:
    core = core_with()
    carries(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    assert granted(core.declare(wants(B, both=2), 0)) == []
    assert granted(core.declare(wants(B, one=1), 0)) == [("b", "one", "tm-1", (1,))]


def test_a_late_heartbeat_from_before_an_attempt_arrived_frees_none_of_its_slots() -> None:
    core, held = core_with(), AttemptSlots(attempt=attempt(), slots=(0,))
    core.register(structs.replace(offer(slots=1), busy=True), 0.0)
    core.heartbeat(structs.replace(_beat(held), number=7), 0.0)
    core.declare(wants(B, one=1), 0)

    assert granted(core.heartbeat(structs.replace(_beat(), number=6), 1.0)[1]) == [], "another attempt runs there"
    assert granted(core.heartbeat(structs.replace(_beat(), number=8), 2.0)[1]) == [("b", "one", "tm-1", (0,))]


def test_unclaimed_slots_are_free_once_their_attempt_has_ended() -> None:
    core = core_with()
    carries(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    core.declare(wants(B, both=2), 0)
    _, effects = core.heartbeat(_beat(), 1.0)
    assert granted(effects) == [("b", "both", "tm-1", (0, 1))]


def test_claimed_slots_are_given_back_like_others() -> None:
    core = core_with()
    carries(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    core.declare(claims(A, attempt()), 0)
    core.declare(wants(B, both=2), 0)
    assert granted(core.declare(wants(A), 0)) == [("b", "both", "tm-1", (0, 1))]


@pytest.mark.parametrize("incarnation", [1, 2])
def test_a_claim_of_a_missing_attempt_is_refused_once(incarnation: int) -> None:
    """The TaskManager registered again without the attempt, or as another incarnation."""
    core = core_with()
    core.declare(claims(A, attempt(), incarnation=1), 0)
    effects = carries(core, AttemptSlots(attempt=attempt(number=7), slots=(0,)), incarnation=incarnation)
    assert refused(effects) == ["claim"]
    _, again = core.heartbeat(_beat(AttemptSlots(attempt=attempt(number=7), slots=(0,)), incarnation=incarnation), 1.0)
    assert refused(again) == []


def test_a_claim_waits_for_its_task_manager_and_blocks_no_other_request() -> None:
    core = core_with(offer("tm-2"))
    assert core.declare(claims(A, attempt()), 0) == []
    assert granted(core.declare(wants(B, both=2), 0)) == [("b", "both", "tm-2", (0, 1))]
    assert core.overview(0.0, 0).waiting == ()
    assert core.declare(wants(A), 0) == []
    assert granted(carries(core, AttemptSlots(attempt=attempt(), slots=(0,)))) == []


def test_one_that_fell_silent_may_not_come_back_with_work() -> None:
    core = core_with(offer())
    core.on_tick(51.0)
    with pytest.raises(Refused, match="is over"):
        core.register(structs.replace(offer(), busy=True), 52.0)
    core.register(offer(), 52.0)


def test_a_task_manager_with_the_same_id_elsewhere_proves_nothing_about_a_claimed_attempt() -> None:
    """The attempt may run: its claim waits for the TaskManager at its own address."""
    core = core_with()
    (request,) = claims(A, attempt()).requests
    assert request.claim is not None
    elsewhere = structs.replace(request, claim=structs.replace(request.claim, address="elsewhere:1"))
    effects = core.declare(ResourceRequirements(job_id=A, requests=(elsewhere,)), 0)
    effects += carries(core)

    assert (granted(effects), refused(effects)) == ([], [])
    assert granted(core.declare(wants(B, both=2), 0)) == [("b", "both", "tm-1", (0, 1))]
