"""Slots, the queue, registration and loss, as the ResourceManager's core decides them."""

from __future__ import annotations

import pytest
from msgspec import structs

from flintlock.model.errors import NotFound, Refused
from flintlock.model.ids import InstanceId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    Hardware,
    Heartbeat,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.core import (
    ResourceManagerCore,
    ResourceManagerEffect,
    TaskManagerEntered,
    TaskManagerLeft,
)
from flintlock.testing.samples import VERSIONS

A, B, C = JobId("a" * 32), JobId("b" * 32), JobId("c" * 32)


def offer(
    name: str = "tm-1", slots: int = 2, incarnation: int = 1, versions: Versions = VERSIONS
) -> TaskManagerRegistration:
    """A TaskManager that registers."""
    return TaskManagerRegistration(
        id=TaskManagerId(name),
        instance=InstanceId(f"{name}-{incarnation}"),
        address=f"{name}:1",
        slots=slots,
        versions=versions,
    )


def beat(name: str = "tm-1", incarnation: int = 1, *, engine_ready: bool = True, free_memory: int = 0) -> Heartbeat:
    """A heartbeat."""
    return Heartbeat(
        id=TaskManagerId(name),
        instance=InstanceId(f"{name}-{incarnation}"),
        engine_ready=engine_ready,
        free_memory=free_memory,
    )


def wants(job: JobId, **requests: int | None) -> ResourceRequirements:
    """A declaration: request ids and their slots."""
    return ResourceRequirements(
        job_id=job,
        requests=tuple(SlotRequest(id=RequestId(name), slots=slots) for name, slots in requests.items()),
    )


def granted(effects: list[ResourceManagerEffect]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Job, request, TaskManager and slots of each grant."""
    return [(w.job_id[0], w.request, w.task_manager, w.slots) for w in effects if isinstance(w, SlotGrant)]


def lost(effects: list[ResourceManagerEffect]) -> list[tuple[str, str]]:
    """Job and instance of each loss."""
    return [(w.job_id[0], w.instance) for w in effects if isinstance(w, TaskManagerLost)]


def core_with(*offers: TaskManagerRegistration) -> ResourceManagerCore:
    """A core that knows these TaskManagers."""
    core = ResourceManagerCore(VERSIONS, 50.0)
    for one in offers:
        enter(core, one, 0.0)
    return core


def enter(core: ResourceManagerCore, offer: TaskManagerRegistration, now_s: float) -> list[ResourceManagerEffect]:
    """Register, receive the answer, send the first heartbeat."""
    core.register(offer, now_s)
    known, effects = core.heartbeat(Heartbeat(id=offer.id, instance=offer.instance), now_s)
    assert known
    return effects


def waiting(core: ResourceManagerCore) -> list[tuple[str, str]]:
    """Who waits, in order."""
    return [(w.job_id[0], w.request) for w in core.overview(0.0, 0).waiting]


# Slots and the queue


def test_a_request_is_granted_on_one_task_manager() -> None:
    core = core_with(offer("tm-1", 2), offer("tm-2", 4))
    assert granted(core.declare(wants(A, r=3), 0)) == [("a", "r", "tm-2", (0, 1, 2))]


def test_requests_are_packed_onto_the_task_manager_with_the_fewest_free_slots_that_fit() -> None:
    core = core_with(offer("tm-1", 4), offer("tm-2", 4), offer("tm-3", 1))
    assert granted(core.declare(wants(A, r=2), 0)) == [("a", "r", "tm-1", (0, 1))]
    assert granted(core.declare(wants(B, r=2), 0)) == [("b", "r", "tm-1", (2, 3))]
    assert granted(core.declare(wants(C, r=1, s=4), 0)) == [("c", "r", "tm-3", (0,)), ("c", "s", "tm-2", (0, 1, 2, 3))]


def test_a_request_without_a_number_takes_all_slots_of_one_idle_task_manager() -> None:
    core = core_with(offer("tm-1", 2), offer("tm-2", 3))
    core.declare(wants(A, r=1), 0)
    assert granted(core.declare(wants(B, r=None), 0)) == [("b", "r", "tm-2", (0, 1, 2))]
    assert granted(core.declare(wants(C, r=None), 0)) == []
    assert granted(core.declare(wants(A), 0)) == [("c", "r", "tm-1", (0, 1))]


def test_a_request_without_a_number_takes_at_most_its_limit() -> None:
    core = core_with(offer("tm-1", 4))
    request = SlotRequest(id=RequestId("r"), at_most=3)
    effects = core.declare(ResourceRequirements(job_id=A, requests=(request,)), 0)
    assert granted(effects) == [("a", "r", "tm-1", (0, 1, 2))]


def test_a_limit_above_every_task_manager_means_all_of_the_largest() -> None:
    core = core_with(offer("tm-1", 1), offer("tm-2", 2))
    request = SlotRequest(id=RequestId("r"), at_most=9)
    effects = core.declare(ResourceRequirements(job_id=A, requests=(request,)), 0)
    assert granted(effects) == [("a", "r", "tm-2", (0, 1))]


def test_jobs_without_slots_wait_in_order() -> None:
    core = core_with(offer(slots=1))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=1), 0)
    core.declare(wants(C, r=1), 0)
    assert waiting(core) == [("b", "r"), ("c", "r")]

    assert granted(core.declare(wants(A), 0)) == [("b", "r", "tm-1", (0,))]
    assert granted(core.declare(wants(B), 0)) == [("c", "r", "tm-1", (0,))]


def test_each_waiting_request_is_described_once() -> None:
    """However many look, and however often the queue changes: describing 50,000 takes a tenth of a second."""
    core = core_with(offer(slots=1))
    for job in (A, B, C):
        core.declare(wants(job, r=1), 0)
    made = core.slots.waiting
    shown = core.overview(1.0, 1_000).waiting
    assert [request.since_ms for request in shown] == [0, 0]
    assert core.overview(5.0, 5_000).waiting is shown
    assert made.described == 2

    assert [request.since_ms for request in core.overview(6.0, 90_000).waiting] == [84_000, 84_000]  # the clock was set
    assert made.described == 4
    core.declare(wants(A), 6.0)
    assert [request.job_id for request in core.overview(6.0, 90_000).waiting] == [C]
    assert made.described == 4
    core.declare(ResourceRequirements(job_id=C, requests=wants(C, r=1).requests, priority=3), 7.0)
    assert [request.priority for request in core.overview(7.0, 0).waiting] == [3]


def test_many_waiting_requests_are_described_in_parts() -> None:
    """While the queue changes: what has left it is left out."""
    core, jobs = core_with(offer(slots=1)), [JobId(f"{number:032x}") for number in range(2500)]
    for job in jobs:
        core.declare(wants(job, r=1), 0)
    parts = core.slots.waiting.describe_some(0.0, 0)
    next(parts)
    assert core.slots.waiting.described == 1000
    for job in jobs[-700:]:
        core.declare(wants(job), 0)
    for _ in parts:
        pass
    assert [request.job_id for request in core.overview(0.0, 0).waiting] == jobs[1:-700]
    assert core.slots.waiting.described == len(jobs) - 701


def test_number_of_waiting_requests_is_known_without_their_list() -> None:
    core = core_with(offer(slots=1))
    versions = {core.registered(0.0, 0).queue_version}
    for job in (A, B, C):
        core.declare(wants(job, r=1), 0)
        versions.add(core.registered(0.0, 0).queue_version)
    found = core.registered(0.0, 0)
    assert (found.waiting, [each.id for each in found.task_managers]) == (2, ["tm-1"])
    assert core.registered(1.0, 0).queue_version == found.queue_version
    assert len(versions) == 4
    assert core.slots.waiting.described == 0


def test_no_request_overtakes_the_head_of_the_queue() -> None:
    core = core_with(offer(slots=2))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=2), 0)
    assert granted(core.declare(wants(C, r=1), 0)) == []
    assert granted(core.declare(wants(A), 0)) == [("b", "r", "tm-1", (0, 1))]


def test_a_request_that_is_declared_again_keeps_its_place_and_its_slots() -> None:
    core = core_with(offer(slots=1))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=1), 0)
    core.declare(wants(C, r=1), 0)

    assert core.declare(wants(A, r=1), 5) == []
    assert core.declare(wants(B, r=1), 5) == []

    assert waiting(core) == [("b", "r"), ("c", "r")]


def test_later_requests_of_a_job_wait_at_the_place_of_its_first() -> None:
    """The second region of the first job goes before the first region of the second job."""
    core = core_with(offer(slots=1))
    core.declare(wants(A, first=1), 0)
    core.declare(wants(B, r=1), 0)
    assert granted(core.declare(wants(A, second=1), 0)) == [("a", "second", "tm-1", (0,))]
    assert waiting(core) == [("b", "r")]


def test_a_job_keeps_its_place_while_it_has_no_requests_for_a_while() -> None:
    """Between two regions of a job nothing is declared. A job that was submitted later does not overtake it."""
    core = core_with(offer(slots=1))
    for submitted_ms, job in enumerate((A, B, C)):
        core.declare(structs.replace(wants(job, r=1), submitted_ms=submitted_ms), 0)
    core.declare(wants(A), 0)
    core.declare(structs.replace(wants(A, again=1), submitted_ms=0), 0)
    assert waiting(core) == [("a", "again"), ("c", "r")]


def test_jobs_are_served_in_the_order_of_their_submission_whenever_they_declare_their_requests() -> None:
    """After a change of leader jobs declare their requests in any order."""
    core = core_with(offer(slots=1))
    for submitted_ms, job in ((3, C), (1, A), (2, B)):
        core.declare(structs.replace(wants(job, r=1), submitted_ms=submitted_ms), 0)
    assert waiting(core) == [("a", "r"), ("b", "r")]  # C has the slot


def test_what_vanishes_from_a_declaration_is_free() -> None:
    core = core_with(offer(slots=2))
    core.declare(wants(A, r=1, s=1), 0)
    core.declare(wants(B, r=1), 0)
    assert granted(core.declare(wants(A, s=1), 0)) == [("b", "r", "tm-1", (0,))]


def test_a_request_that_changes_under_its_id_is_another_request() -> None:
    core = core_with(offer(slots=4))
    core.declare(wants(A, r=1), 0)
    assert granted(core.declare(wants(A, r=2), 0)) == [("a", "r", "tm-1", (0, 1))]
    assert core.overview(0.0, 0).task_managers[0].free_slots == 2


def test_a_request_larger_than_any_task_manager_waits_without_blocking_others() -> None:
    core = core_with(offer("tm-1", 2))
    core.declare(wants(A, huge=3), 0)
    assert granted(core.declare(wants(B, r=2), 0)) == [("b", "r", "tm-1", (0, 1))]
    (shown,) = core.overview(2.0, 2_007).waiting
    assert (shown.job_id, shown.request, shown.slots, shown.since_ms) == (A, "huge", 3, 7)

    core.declare(wants(C, r=3), 0)
    effects = enter(core, offer("tm-2", 4), 1.0)
    assert granted(effects) == [("a", "huge", "tm-2", (0, 1, 2))]
    assert waiting(core) == [("c", "r")]  # it fits now, and waits its turn


def test_a_request_becomes_too_large_when_the_large_task_manager_is_lost() -> None:
    core = core_with(offer("tm-1", 2), offer("tm-2", 4))
    core.declare(wants(A, r=4), 0)
    core.declare(wants(B, r=4), 0)
    core.declare(wants(C, r=2), 0)
    assert waiting(core) == [("b", "r"), ("c", "r")]

    effects = core.unregister(beat("tm-2"), 1.0)

    assert lost(effects) == [("a", "tm-2-1")]
    assert granted(effects) == [("c", "r", "tm-1", (0, 1))]
    assert waiting(core) == [("a", "r"), ("b", "r")]


def test_requests_made_before_any_task_manager_came_are_served_in_order() -> None:
    core = core_with()
    for job in (A, B, C):
        core.declare(wants(job, r=1), 0)
    assert granted(enter(core, offer(slots=2), 0.0)) == [("a", "r", "tm-1", (0,)), ("b", "r", "tm-1", (1,))]


def test_a_task_manager_without_an_engine_gets_no_work() -> None:
    core = core_with(offer())
    assert core.heartbeat(beat(engine_ready=False), 1.0) == (True, [])
    assert core.declare(wants(A, r=1), 0) == []
    _, effects = core.heartbeat(beat(engine_ready=True), 2.0)
    assert granted(effects) == [("a", "r", "tm-1", (0,))]


def test_jobs_that_come_and_go_while_the_head_waits_leave_nothing_behind() -> None:
    core = core_with(offer(slots=1))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=1), 0)
    for number in range(1000):
        job = JobId(f"{number:032x}")
        core.declare(wants(job, r=1), 0)
        core.declare(wants(job), 0)
    assert waiting(core) == [("b", "r")]
    assert core.slots.remembered() < 10


# Registration, heartbeats, loss


def test_versions_that_do_not_fit_are_refused_naming_both() -> None:
    core = core_with()
    other = Versions(flintlock="0.1.0", python="3.12", pyspark="4.3.0")
    with pytest.raises(Refused) as refused:
        core.register(offer(versions=other), 0.0)
    assert "'tm-1'" in refused.value.public
    assert "Python 3.12" in refused.value.public
    assert "Python 3.11" in refused.value.public


def test_another_patch_of_the_same_minor_version_fits() -> None:
    ours = offer().versions
    patched = Versions(
        flintlock=f"{'.'.join(ours.flintlock.split('.')[:2])}.99",
        python=f"{'.'.join(ours.python.split('.')[:2])}.99",
        pyspark=f"{'.'.join(ours.pyspark.split('.')[:2])}.99",
    )
    core_with().register(offer(versions=patched), 0.0)


def test_a_task_manager_without_slots_is_refused() -> None:
    with pytest.raises(Refused, match="at least one"):
        core_with().register(offer(slots=0), 0.0)


def test_a_duplicate_registration_is_acknowledged_and_changes_nothing() -> None:
    core = core_with(offer())
    core.declare(wants(A, r=1), 0)
    assert enter(core, offer(), 5.0) == []
    assert core.overview(5.0, 0).task_managers[0].free_slots == 1


def test_a_newer_task_manager_session_replaces_the_older() -> None:
    core = core_with(offer())
    core.declare(wants(A, r=1), 0)

    effects = enter(core, offer(incarnation=2), 1.0)

    assert lost(effects) == [("a", "tm-1-1")]
    assert granted(effects) == [("a", "r", "tm-1", (0,))]
    assert [type(effect) for effect in effects] == [TaskManagerLeft, TaskManagerLost, TaskManagerEntered, SlotGrant]
    assert [tm.instance for tm in core.overview(1.0, 0).task_managers] == ["tm-1-2"]


def test_a_late_registration_of_a_former_incarnation_does_not_replace_the_current_one() -> None:
    core = core_with(offer(incarnation=1), offer(incarnation=2))
    with pytest.raises(Refused, match="instance tm-1-1 of TaskManager 'tm-1' is over"):
        core.register(offer(incarnation=1), 1.0)


def test_a_registration_counts_from_its_first_heartbeat_on() -> None:
    core = core_with()
    core.declare(wants(A, r=1), 0)
    core.register(offer(), 0.0)
    assert core.overview(0.0, 0).task_managers == ()
    known, effects = core.heartbeat(beat(), 0.1)
    assert known
    assert granted(effects) == [("a", "r", "tm-1", (0,))]


def test_a_late_registration_of_an_unknown_incarnation_replaces_none() -> None:
    """1. An incarnation registers, but its engine dies. 2. The next one registers. 3. The first message arrives."""
    core = core_with(offer(incarnation=2))
    core.declare(wants(A, r=1), 0)
    core.register(offer(incarnation=1), 1.0)
    assert core.heartbeat(beat(incarnation=2), 2.0) == (True, [])
    assert [tm.instance for tm in core.overview(2.0, 0).task_managers] == ["tm-1-2"]


def test_an_unregistration_that_overtakes_its_registration_is_final() -> None:
    core = core_with()
    core.unregister(beat(), 1.0)
    with pytest.raises(Refused):
        core.register(offer(), 1.0)


def test_registrations_without_heartbeat_are_forgotten() -> None:
    core = core_with()
    for incarnation in range(100):
        core.register(offer(incarnation=incarnation), 0.0)
    assert core.heartbeat(beat(incarnation=3), 1.0) == (False, [])
    assert core.heartbeat(beat(incarnation=99), 1.0)[0]


def test_a_late_registration_of_one_that_has_unregistered_is_refused() -> None:
    core = core_with(offer())
    core.unregister(beat(), 1.0)
    with pytest.raises(Refused):
        core.register(offer(), 1.0)
    enter(core, offer(incarnation=2), 1.0)


def test_one_that_was_only_silent_may_come_back_until_its_successor_came() -> None:
    core = core_with(offer())
    core.on_tick(51.0)
    assert granted(enter(core, offer(incarnation=1), 60.0)) == []
    core.on_tick(200.0)
    enter(core, offer(incarnation=2), 201.0)
    with pytest.raises(Refused):
        core.register(offer(incarnation=1), 202.0)


def test_a_heartbeat_of_an_unknown_instance_is_answered_so() -> None:
    core = core_with(offer(incarnation=2))
    assert core.heartbeat(beat(incarnation=1), 1.0) == (False, [])
    assert core.heartbeat(beat("tm-9"), 1.0) == (False, [])
    assert core.heartbeat(beat(incarnation=2), 1.0) == (True, [])


def test_silence_for_longer_than_the_timeout_is_a_loss() -> None:
    core = core_with(offer("tm-1"), offer("tm-2"))
    core.declare(wants(A, r=2), 0)
    core.declare(wants(B, r=2), 0)
    core.heartbeat(beat("tm-2"), 30.0)

    assert core.on_tick(50.0) == []
    effects = core.on_tick(50.1)

    assert lost(effects) == [("a", "tm-1-1")]
    assert isinstance(effects[0], TaskManagerLeft)
    assert effects[0].reason == "it was silent for 50.1 s"
    assert waiting(core) == [("a", "r")]
    assert core.on_tick(60.0) == []


def test_the_next_timeout_is_that_of_the_oldest_heartbeat() -> None:
    core = core_with()
    assert core.next_due_s(7.0) == 50.0
    enter(core, offer("tm-1"), 10.0)
    enter(core, offer("tm-2"), 20.0)
    assert core.next_due_s(30.0) == 30.0
    core.heartbeat(beat("tm-1"), 30.0)
    assert core.next_due_s(30.0) == 40.0
    assert core.next_due_s(99.0) == 0.0


def test_an_unregistration_is_a_loss_at_once_and_counts_once() -> None:
    core = core_with(offer())
    core.declare(wants(A, r=1, s=1), 0)
    assert lost(core.unregister(beat(), 1.0)) == [("a", "tm-1-1")]
    assert core.unregister(beat(), 1.0) == []


def test_a_request_whose_task_manager_was_lost_waits_again_in_its_old_place() -> None:
    core = core_with(offer(slots=1))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=1), 0)
    core.unregister(beat(), 1.0)
    assert waiting(core) == [("a", "r"), ("b", "r")]


def test_the_overview_shows_the_slots_of_each_job() -> None:
    core = core_with(offer("tm-1", 4))
    core.declare(wants(A, r=1, s=2), 0)
    core.heartbeat(beat(free_memory=123), 2.0)

    (info,) = core.overview(5.0, 1_000_000).task_managers

    assert (info.slots, info.free_slots) == (4, 1)
    assert [(allocated.job_id, allocated.slots) for allocated in info.allocated] == [(A, 3)]
    assert info.last_heartbeat_ms == 997_000
    assert info.hardware == Hardware(free_memory=123)


def test_addresses_are_found_by_id() -> None:
    core = core_with(offer("tm-1"), offer("tm-2"))
    core.heartbeat(beat("tm-1", engine_ready=False), 1.0)
    assert core.address(TaskManagerId("tm-1")) == "tm-1:1"
    assert core.addresses() == ["tm-2:1", "tm-1:1"]
    with pytest.raises(NotFound, match="'tm-9' is not registered"):
        core.address(TaskManagerId("tm-9"))


def test_a_silent_task_manager_is_lost_only_when_the_lease_that_it_reported_is_over() -> None:
    """It may be one of an earlier leader with a longer heartbeat.timeout, if the answer of this one got lost."""
    core = core_with(offer())
    core.declare(wants(A, r=1), 0)
    core.heartbeat(structs.replace(beat(), lease_s=80.0), 10.0)

    assert core.next_due_s(10.0) == 80.0
    assert lost(core.on_tick(89.0)) == []
    assert lost(core.on_tick(90.1)) == [("a", "tm-1-1")]


def test_a_shorter_lease_of_an_earlier_leader_changes_nothing() -> None:
    core = core_with(offer())
    core.heartbeat(structs.replace(beat(), lease_s=8.0), 10.0)
    assert core.next_due_s(10.0) == 50.0


def test_a_task_manager_with_the_id_of_another_is_refused_and_evicts_nobody() -> None:
    """The tasks of the one that is registered may run, even if it is silent: it has to be lost first."""
    core = core_with(offer())
    core.declare(wants(A, r=1), 0)
    twin = structs.replace(offer(incarnation=2), address="elsewhere:1")

    for now_s in (1.0, 30.0, 49.0):
        with pytest.raises(Refused, match="at elsewhere:1 is in use by another one, at tm-1:1"):
            core.register(twin, now_s)
    enter(core, offer(incarnation=3), 49.5)  # the same process, after its engine has died
    assert lost(core.on_tick(100.0)) == [("a", "tm-1-3")]

    core.register(twin, 101.0)
    known, effects = core.heartbeat(beat(incarnation=2), 101.1)
    assert known
    assert [w.instance for w in effects if isinstance(w, TaskManagerLeft)] == []


def test_a_task_manager_with_the_id_of_one_that_came_first_is_not_admitted() -> None:
    core = core_with()
    twin = structs.replace(offer(incarnation=2), address="elsewhere:1")
    core.register(offer(), 0.0)
    core.register(twin, 0.0)
    assert core.heartbeat(beat(), 0.1)[0]
    assert not core.heartbeat(beat(incarnation=2), 0.2)[0]
