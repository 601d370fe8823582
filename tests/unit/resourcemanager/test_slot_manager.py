"""Priorities, packing and spreading, limits, resources, and unservable requests."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.resourcemanager.test_core import A, B, C, beat, enter, granted, offer, waiting, wants

from flintlock.model.errors import Refused
from flintlock.model.ids import JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources
from flintlock.model.slots import (
    Hardware,
    NoResources,
    ResourceRequirements,
    SlotRequest,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.capacity import Capacity
from flintlock.resourcemanager.core import ResourceManagerCore, ResourceManagerEffect
from flintlock.resourcemanager.slot_manager import SlotRules
from flintlock.testing.samples import VERSIONS

GIB = 1 << 30
D = JobId("d" * 32)


def core_of(rules: SlotRules, *offers: TaskManagerRegistration) -> ResourceManagerCore:
    core = ResourceManagerCore(VERSIONS, 50.0, rules)
    core.slots.begin(0.0)
    for one in offers:
        enter(core, one, 0.0)
    return core


def machine(name: str, slots: int, cores: int, memory: int) -> TaskManagerRegistration:
    hardware = Hardware(cpu_cores=cores, physical_memory=memory)
    return structs.replace(offer(name, slots), hardware=hardware)


def fine(job: JobId, slots: int = 1, *, cpu: float = 0.0, memory: int = 0, name: str = "r") -> ResourceRequirements:
    request = SlotRequest(id=RequestId(name), slots=slots, resources=Resources(cpu=cpu, memory=memory))
    return ResourceRequirements(job_id=job, requests=(request,))


def urgent(requirements: ResourceRequirements, priority: int, name: str = "") -> ResourceRequirements:
    return structs.replace(requirements, priority=priority, name=name)


def unservable(effects: list[ResourceManagerEffect]) -> list[NoResources]:
    return [effect for effect in effects if isinstance(effect, NoResources)]


# Priority


def test_higher_priorities_are_served_first_then_earlier_jobs() -> None:
    core = core_of(SlotRules(), offer(slots=1))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=1), 0)
    core.declare(urgent(wants(C, r=1), 5), 0)
    core.declare(urgent(wants(D, r=1), 5), 0)
    assert waiting(core) == [("c", "r"), ("d", "r"), ("b", "r")]
    assert granted(core.declare(wants(A), 0)) == [("c", "r", "tm-1", (0,))]


def test_a_running_job_is_not_interrupted_by_a_more_urgent_one() -> None:
    core = core_of(SlotRules(), offer(slots=1))
    core.declare(wants(A, r=1), 0)
    assert core.declare(urgent(wants(B, r=1), 1000), 0) == []


def test_a_job_whose_priority_changes_takes_its_new_place_and_keeps_its_slots() -> None:
    core = core_of(SlotRules(), offer(slots=1))
    core.declare(wants(A, r=1, s=1), 0)
    core.declare(wants(B, r=1, s=1), 0)
    core.declare(wants(C, r=1), 0)

    assert core.declare(urgent(wants(B, r=1, s=1), 7), 0) == []
    assert waiting(core) == [("b", "r"), ("b", "s"), ("a", "s"), ("c", "r")]
    assert core.declare(urgent(wants(B, r=1, s=1), -7), 0) == []
    assert waiting(core) == [("a", "s"), ("c", "r"), ("b", "r"), ("b", "s")]
    core.declare(urgent(wants(A, r=1, s=1), -9), 0)
    assert waiting(core) == [("c", "r"), ("b", "r"), ("b", "s"), ("a", "s")]
    assert granted(core.unregister(beat(), 1.0)) == []
    assert waiting(core) == [("c", "r"), ("b", "r"), ("b", "s"), ("a", "r"), ("a", "s")]


def test_the_queue_shows_names_priorities_and_since_when() -> None:
    core = core_of(SlotRules())
    core.declare(urgent(wants(A, r=2), 3, "revenue"), 5.0)
    (shown,) = core.overview(7.5, 12_500).waiting
    assert (shown.name, shown.priority, shown.since_ms, shown.slots) == ("revenue", 3, 10_000, 2)


# Streaming queries


def endless(job: JobId, slots: int = 1, *, memory: int = 0) -> ResourceRequirements:
    request = SlotRequest(id=RequestId("q"), slots=slots, resources=Resources(memory=memory), endless=True)
    return ResourceRequirements(job_id=job, requests=(request,))


def behind_streaming(core: ResourceManagerCore) -> list[str]:
    return [request.job_id[0] for request in core.overview(0.0, 0).waiting if request.behind_streaming]


def test_a_request_for_slots_that_a_streaming_query_uses_does_not_hold_up_the_others() -> None:
    """The query does not end, so the request could wait for ever, and every later job with it."""
    core = core_of(SlotRules(), offer(slots=2))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=2), 0)

    assert granted(core.declare(wants(C, r=1), 0)) == [("c", "r", "tm-1", (1,))]
    assert waiting(core) == [("b", "r")]
    assert behind_streaming(core) == ["b"]


def test_a_request_behind_a_streaming_query_has_its_place_when_the_query_ends() -> None:
    core = core_of(SlotRules(), offer(slots=2))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=2), 0)
    core.declare(wants(C, r=1), 0)
    core.declare(wants(D, r=1), 0)

    assert granted(core.declare(wants(A), 0)) == []
    assert behind_streaming(core) == [], "the slots become free when the batch job has ended"
    assert waiting(core) == [("b", "r"), ("d", "r")]
    assert granted(core.declare(wants(C), 0)) == [("b", "r", "tm-1", (0, 1))]


def test_a_request_behind_a_streaming_query_is_served_by_a_task_manager_that_registers() -> None:
    core = core_of(SlotRules(), offer(slots=2))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=2), 0)
    assert granted(enter(core, offer("tm-2", 2), 0.0)) == [("b", "r", "tm-2", (0, 1))]
    assert behind_streaming(core) == []


def test_another_streaming_job_does_not_overtake_a_request_behind_streaming_queries() -> None:
    """It would not end either: the request could wait for ever. A query of a job that runs may."""
    core = core_of(SlotRules(), offer(slots=3))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=3), 0)
    assert granted(core.declare(endless(C), 0)) == []
    second = SlotRequest(id=RequestId("second"), slots=1, endless=True)
    both = structs.replace(endless(A), requests=(*endless(A).requests, second))
    assert granted(core.declare(both, 0)) == [("a", "second", "tm-1", (1,))]
    assert behind_streaming(core) == ["b"]
    assert granted(core.declare(wants(B), 0)) == [("c", "q", "tm-1", (2,))], "nothing waits before it any more"


def test_a_streaming_job_that_becomes_more_urgent_overtakes_a_request_behind_streaming_queries() -> None:
    core = core_of(SlotRules(), offer(slots=3))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=3), 0)
    core.declare(endless(C), 0)
    assert granted(core.declare(urgent(endless(C), 5), 0)) == [("c", "q", "tm-1", (1,))]


@pytest.mark.parametrize("request_of_all", [SlotRequest(id=RequestId("r")), SlotRequest(id=RequestId("r"), at_most=2)])
def test_a_request_for_all_slots_of_a_task_manager_is_behind_a_streaming_query(request_of_all: SlotRequest) -> None:
    core = core_of(SlotRules(), offer(slots=2))
    core.declare(endless(A), 0)
    core.declare(ResourceRequirements(job_id=B, requests=(request_of_all,)), 0)
    assert granted(core.declare(wants(C, r=1), 0)) == [("c", "r", "tm-1", (1,))]


def test_a_request_for_memory_that_a_streaming_query_uses_is_behind_it() -> None:
    core = core_of(SlotRules(), machine("tm-1", 2, 2, 8 * GIB))
    core.declare(endless(A, memory=6 * GIB), 0)
    core.declare(fine(B, memory=4 * GIB), 0)
    assert granted(core.declare(fine(C, memory=1 * GIB), 0)) == [("c", "r", "tm-1", (1,))]
    assert behind_streaming(core) == ["b"]


def test_a_request_that_another_task_manager_will_serve_is_not_behind_a_streaming_query() -> None:
    core = core_of(SlotRules(), offer("tm-1", 2), offer("tm-2", 2))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=2), 0)
    core.declare(wants(C, r=2), 0)
    assert granted(core.declare(wants(D, r=1), 0)) == [], "strictly in order: the batch job on tm-2 will end"
    assert behind_streaming(core) == []


def test_a_request_behind_a_streaming_query_is_withdrawn_and_changes_its_priority_like_every_other() -> None:
    core = core_of(SlotRules(), offer(slots=2))
    core.declare(endless(A), 0)
    core.declare(wants(B, r=2), 0)
    core.declare(urgent(wants(B, r=2), 5), 0)
    assert waiting(core) == [("b", "r")]
    core.declare(wants(B), 0)
    core.declare(wants(A), 0)
    assert waiting(core) == []
    assert core.slots.remembered() == 0


# Packing, spreading


def test_spread_requests_go_to_the_task_manager_with_the_most_free_slots() -> None:
    core = core_of(SlotRules(spread=True), offer("tm-1", 3), offer("tm-2", 2))
    jobs = [JobId(f"{number:032x}") for number in range(5)]
    placed = [granted(core.declare(wants(job, r=1), 0))[0][2] for job in jobs]
    assert placed == ["tm-1", "tm-2", "tm-1", "tm-2", "tm-1"]


# Caps


def test_a_task_manager_that_exceeds_the_slots_of_the_cluster_is_refused() -> None:
    core = core_of(SlotRules(limit=Capacity(5)), offer("tm-1", 3))
    with pytest.raises(Refused, match=r"'tm-2' the cluster would have 6 slots; slotmanager.number-of-slots.max is 5"):
        core.register(offer("tm-2", 3), 0.0)
    enter(core, offer("tm-2", 2), 0.0)
    enter(core, offer("tm-2", 2, incarnation=2), 0.0)  # replaces its former incarnation: the limit is not exceeded


def test_caps_on_cores_and_memory_refuse_too() -> None:
    core = core_of(SlotRules(limit=Capacity(0, 6.0, 8 * GIB)), machine("tm-1", 2, 4, 4 * GIB))
    with pytest.raises(Refused, match=r"8 cores; slotmanager.max-total-resource.cpu is 6"):
        core.register(machine("tm-2", 2, 4, 1), 0.0)
    with pytest.raises(Refused, match=r"slotmanager.max-total-resource.memory"):
        core.register(machine("tm-2", 2, 1, 5 * GIB), 0.0)


def test_of_two_concurrent_registrations_only_one_stays_within_the_limit() -> None:
    core = core_of(SlotRules(limit=Capacity(3)))
    core.register(offer("tm-1", 2), 0.0)
    core.register(offer("tm-2", 2), 0.0)
    assert core.heartbeat(beat("tm-1"), 0.0)[0]
    assert core.heartbeat(beat("tm-2"), 0.0) == (False, [])
    with pytest.raises(Refused, match="would have 4 slots"):
        core.register(offer("tm-2", 2), 0.0)


# Resources


def test_a_request_goes_where_its_memory_is() -> None:
    core = core_of(SlotRules(), machine("tm-1", 2, 2, 4 * GIB), machine("tm-2", 4, 4, 16 * GIB))
    assert granted(core.declare(fine(A, memory=6 * GIB), 0)) == [("a", "r", "tm-2", (0,))]
    assert granted(core.declare(fine(B, memory=6 * GIB), 0)) == [("b", "r", "tm-2", (1,))]
    assert granted(core.declare(fine(C, memory=6 * GIB), 0)) == []
    shown = {str(info.id): info.free_resources for info in core.overview(0.0, 0).task_managers}
    assert shown["tm-2"] == Resources(cpu=2.0, memory=4 * GIB)

    assert granted(core.declare(wants(A), 0)) == [("c", "r", "tm-2", (0,))]


def test_a_request_without_resources_takes_its_slots_share() -> None:
    core = core_of(SlotRules(), machine("tm-1", 4, 2, 8 * GIB))
    core.declare(wants(A, r=2), 0)
    (info,) = core.overview(0.0, 0).task_managers
    assert info.free_resources == Resources(cpu=1.0, memory=4 * GIB)
    assert granted(core.declare(fine(B, cpu=1.5), 0)) == []
    assert granted(core.declare(fine(B, cpu=1.0), 0)) == [("b", "r", "tm-1", (2,))]


def test_shares_of_cores_that_do_not_add_up_still_fill_all_slots() -> None:
    core = core_of(SlotRules(), machine("tm-1", 7, 3, 10))
    for number in range(7):
        assert len(granted(core.declare(wants(JobId(f"{number:032x}"), r=1), 0))) == 1
    assert core.overview(0.0, 0).task_managers[0].free_slots == 0


def test_a_task_manager_that_does_not_report_its_hardware_is_not_limited_by_it() -> None:
    core = core_of(SlotRules(), offer("tm-1", 1))
    assert len(granted(core.declare(fine(A, cpu=64, memory=1 << 50), 0))) == 1


def test_a_request_for_a_whole_task_manager_needs_its_minimum_and_its_resources() -> None:
    core = core_of(SlotRules(), machine("tm-1", 2, 2, GIB), machine("tm-2", 4, 4, GIB))
    request = SlotRequest(id=RequestId("r"), at_least=3)
    assert granted(core.declare(ResourceRequirements(job_id=A, requests=(request,)), 0)) == [
        ("a", "r", "tm-2", (0, 1, 2, 3))
    ]
    core.declare(wants(A), 0)
    request = SlotRequest(id=RequestId("r"), at_least=5)
    core.declare(ResourceRequirements(job_id=A, requests=(request,)), 0)
    assert unservable(core.on_tick(31.0))[0].request == "r"


# Unservable requests


def test_a_request_that_no_task_manager_can_ever_fulfil_fails_at_once_after_start_up() -> None:
    core = core_of(SlotRules(start_up_s=30.0), machine("tm-1", 2, 2, 4 * GIB), machine("tm-2", 2, 2, 4 * GIB))
    (reported,) = unservable(core.declare(wants(A, r=3), 30.0))
    assert (reported.job_id, reported.request) == (A, "r")
    assert reported.reason == (
        "no TaskManager can ever serve it. Asked of one TaskManager: 3 slots; "
        "registered: 2 with 2 slots, 2 cores and 4 GiB of memory"
    )
    (reported,) = unservable(core.declare(fine(B, 2, memory=5 * GIB), 31.0))
    assert "Asked of one TaskManager: 2 slots and 5 GiB of memory;" in reported.reason


def test_it_is_reported_once_and_served_if_a_task_manager_registers_later() -> None:
    core = core_of(SlotRules(start_up_s=30.0), offer("tm-1", 1))
    assert len(unservable(core.declare(wants(A, r=2), 31.0))) == 1
    assert unservable(core.declare(wants(B, r=1), 32.0)) == []
    assert unservable(core.on_tick(33.0)) == []
    assert granted(enter(core, offer("tm-2", 2), 34.0)) == [("a", "r", "tm-2", (0, 1))]


def test_a_request_waits_for_its_task_manager_while_the_cluster_starts_up() -> None:
    core = core_of(SlotRules(start_up_s=30.0), offer("tm-1", 1))
    assert core.declare(wants(A, r=2), 1.0) == []
    assert core.next_due_s(1.0) == 29.0
    assert unservable(core.on_tick(29.9)) == []
    assert [effect.job_id for effect in unservable(core.on_tick(30.0))] == [A]


def test_without_any_task_manager_every_request_waits() -> None:
    core = core_of(SlotRules(start_up_s=30.0))
    assert core.declare(wants(A, r=99), 100.0) == []
    assert unservable(core.on_tick(200.0)) == []
    assert [effect.job_id for effect in unservable(enter(core, offer(slots=2), 200.0))] == [A]


def test_a_task_manager_that_was_lost_has_time_to_come_back() -> None:
    core = core_of(SlotRules(start_up_s=30.0), offer("tm-1", 4), offer("tm-2", 1))
    core.declare(wants(A, r=4), 100.0)
    assert unservable(core.unregister(beat("tm-1"), 100.0)) == []
    core.heartbeat(beat("tm-2"), 129.0)
    assert unservable(core.on_tick(129.0)) == []
    assert granted(enter(core, offer("tm-1", 4, incarnation=2), 129.0)) == [("a", "r", "tm-1", (0, 1, 2, 3))]
    core.unregister(beat("tm-1", 2), 200.0)
    core.heartbeat(beat("tm-2"), 200.0)
    assert [effect.job_id for effect in unservable(core.on_tick(230.0))] == [A]


def test_a_withdrawn_request_is_not_reported() -> None:
    core = core_of(SlotRules(start_up_s=30.0), offer("tm-1", 1))
    core.declare(wants(A, r=2), 1.0)
    core.declare(wants(A), 2.0)
    assert core.on_tick(40.0) == []
    assert core.slots.remembered() == 0


def test_one_in_the_middle_of_the_queue_is_reported_when_its_only_task_manager_stays_lost() -> None:
    core = core_of(SlotRules(start_up_s=30.0), offer("tm-1", 2), offer("tm-2", 4))
    core.declare(wants(A, r=2, s=4), 0.0)
    core.declare(wants(B, r=2), 0.0)
    core.declare(wants(C, r=3), 0.0)
    assert waiting(core) == [("b", "r"), ("c", "r")]
    core.unregister(beat("tm-2"), 40.0)
    core.heartbeat(beat("tm-1"), 69.0)
    assert [(effect.job_id[0], effect.request) for effect in unservable(core.on_tick(70.0))] == [("a", "s"), ("c", "r")]


def test_with_workers_to_start_only_what_a_fresh_one_cannot_serve_is_hopeless() -> None:
    core = core_of(SlotRules(start_up_s=0.0, fresh=Capacity(4, 2.0, GIB)))
    assert core.declare(wants(A, r=4), 1.0) == []
    (reported,) = unservable(core.declare(wants(B, r=5), 1.0))
    assert reported.reason.endswith(
        "5 slots; no TaskManager is registered; one that would be started has 4 slots, 2 cores and 1 GiB of memory"
    )
    enter(core, offer("tm-1", 1), 2.0)
    assert unservable(core.on_tick(3.0)) == []


# How many workers are missing


def test_as_many_workers_are_missing_as_would_serve_the_waiting_requests() -> None:
    core = core_of(SlotRules(fresh=Capacity(4)))
    assert core.slots.missing_workers(0, 10) == 0
    core.declare(wants(A, p=3, q=2, r=3, s=2), 0)
    assert core.slots.missing_workers(0, 10) == 3
    assert core.slots.missing_workers(1, 10) == 2
    assert core.slots.missing_workers(3, 10) == 0
    assert core.slots.missing_workers(0, 2) == 2
    assert core.slots.missing_workers(0, 0) == 0


def test_free_slots_are_used_before_workers_are_started() -> None:
    core = core_of(SlotRules(fresh=Capacity(4)), offer("tm-1", 3))
    core.declare(wants(A, p=4, q=3), 0)
    assert core.slots.missing_workers(0, 10) == 1


def test_no_worker_is_started_for_requests_behind_one_that_waits_for_a_larger_task_manager() -> None:
    core = core_of(SlotRules(fresh=Capacity(1)), offer("tm-1", 4))
    core.declare(wants(A, r=1), 0)
    core.declare(wants(B, r=4), 0)
    core.declare(wants(C, r=1), 0)
    assert core.slots.missing_workers(0, 10) == 0


def test_an_unservable_request_needs_no_worker() -> None:
    core = core_of(SlotRules(fresh=Capacity(2)))
    core.declare(wants(A, r=3), 0)
    core.declare(wants(B, r=2), 0)
    assert core.slots.missing_workers(0, 10) == 1


def test_workers_are_not_started_past_the_caps() -> None:
    core = core_of(SlotRules(fresh=Capacity(2, 2.0), limit=Capacity(7, 9.0)), machine("tm-1", 2, 4, GIB))
    core.declare(wants(A, **{f"r{n}": 2 for n in range(9)}), 0)
    assert core.slots.missing_workers(0, 100) == 2
    assert core.slots.missing_workers(1, 100) == 1


def test_asking_how_many_are_missing_changes_nothing() -> None:
    core = core_of(SlotRules(fresh=Capacity(2)), offer("tm-1", 1))
    core.declare(wants(A, r=2, s=2), 0)
    before = core.overview(0.0, 0)
    assert [core.slots.missing_workers(0, 10) for _ in range(3)] == [2, 2, 2]
    assert core.overview(0.0, 0) == before
    assert core.slots.idle_since_s(TaskManagerId("tm-1")) == 0.0
