"""What TaskManagers bring along to a new leader, and who claims it."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.resourcemanager.test_core import A, B, beat, core_with, granted, offer, wants

from flintlock.model.errors import Refused
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, RequestId, TaskManagerId
from flintlock.model.slots import AttemptSlots, Claim, Heartbeat, NoResources, ResourceRequirements, SlotRequest
from flintlock.resourcemanager.core import ResourceManagerCore, ResourceManagerEffect


def attempt(job: JobId = A, number: int = 0) -> AttemptId:
    return AttemptId(job_id=job, region=RegionId(0), attempt=number)


def brings(
    core: ResourceManagerCore, *held: AttemptSlots, slots: int = 2, life: int = 1
) -> list[ResourceManagerEffect]:
    """Register tm-1 with work, and send its first heartbeat."""
    core.register(structs.replace(offer(slots=slots, life=life), busy=True), 0.0)
    known, words = core.heartbeat(_beat(*held, life=life), 0.0)
    assert known
    return words


def _beat(*held: AttemptSlots, life: int = 1) -> Heartbeat:
    return structs.replace(beat(life=life), attempts=held)


def claims(job: JobId, what: AttemptId, life: int = 1) -> ResourceRequirements:
    claim = Claim(task_manager=TaskManagerId("tm-1"), instance=InstanceId(f"tm-1-{life}"), attempt=what)
    return ResourceRequirements(job_id=job, requests=(SlotRequest(id=RequestId("claim"), claim=claim),))


def refused(words: list[ResourceManagerEffect]) -> list[str]:
    return [word.request for word in words if isinstance(word, NoResources)]


@pytest.mark.parametrize("claimed_first", [True, False])
def test_who_claims_an_attempt_gets_its_slots(claimed_first: bool) -> None:
    core = core_with()
    words = core.declare(claims(A, attempt()), 0) if claimed_first else []
    words += brings(core, AttemptSlots(attempt=attempt(), slots=(1,)))
    words += [] if claimed_first else core.declare(claims(A, attempt()), 0)

    assert granted(words) == [("a", "claim", "tm-1", (1,))]


def test_what_is_brought_along_is_given_to_nobody_else() -> None:
    core = core_with()
    brings(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    assert granted(core.declare(wants(B, both=2), 0)) == []
    assert granted(core.declare(wants(B, one=1), 0)) == [("b", "one", "tm-1", (1,))]


def test_what_nobody_claims_is_free_once_it_has_ended() -> None:
    core = core_with()
    brings(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    core.declare(wants(B, both=2), 0)
    _, words = core.heartbeat(_beat(), 1.0)
    assert granted(words) == [("b", "both", "tm-1", (0, 1))]


def test_claimed_slots_are_given_back_like_others() -> None:
    core = core_with()
    brings(core, AttemptSlots(attempt=attempt(), slots=(0,)))
    core.declare(claims(A, attempt()), 0)
    core.declare(wants(B, both=2), 0)
    assert granted(core.declare(wants(A), 0)) == [("b", "both", "tm-1", (0, 1))]


@pytest.mark.parametrize("life", [1, 2])
def test_a_claim_of_what_is_not_there_is_refused_once(life: int) -> None:
    """The TaskManager came back without the attempt, or in another life."""
    core = core_with()
    core.declare(claims(A, attempt(), life=1), 0)
    words = brings(core, AttemptSlots(attempt=attempt(number=7), slots=(0,)), life=life)
    assert refused(words) == ["claim"]
    _, again = core.heartbeat(_beat(AttemptSlots(attempt=attempt(number=7), slots=(0,)), life=life), 1.0)
    assert refused(again) == []


def test_a_claim_waits_for_its_task_manager_and_blocks_nobody() -> None:
    core = core_with(offer("tm-2"))
    assert core.declare(claims(A, attempt()), 0) == []
    assert granted(core.declare(wants(B, both=2), 0)) == [("b", "both", "tm-2", (0, 1))]
    assert core.overview(0.0, 0).waiting == ()
    assert core.declare(wants(A), 0) == []
    assert granted(brings(core, AttemptSlots(attempt=attempt(), slots=(0,)))) == []


def test_one_that_fell_silent_may_not_come_back_with_work() -> None:
    core = core_with(offer())
    core.on_tick(51.0)
    with pytest.raises(Refused, match="is over"):
        core.register(structs.replace(offer(), busy=True), 52.0)
    core.register(offer(), 52.0)
