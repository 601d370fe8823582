"""The listing in other orders than its own: by pages that fit together, while jobs end, are added and expire."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from msgspec import structs

from flintlock.api.job_lines import summary_of
from flintlock.dispatcher.listing import job_orders
from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.dispatcher.listing.listing_loader import ListingLoader
from flintlock.dispatcher.listing.listing_pages import MAX_SORTING_S, ListingPages
from flintlock.dispatcher.listing.sorted_keys import SortedKeys, numbers, texts
from flintlock.model.errors import Unavailable
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobFilter, JobOrder, JobsQuery, JobSummary, TaskCounts
from flintlock.model.states import JobStatus

T0 = 1_700_000_000_000


def line(number: int, *, start: int = 0, end: int = -1, name: str = "job") -> JobSummary:
    """Return a job that has started at T0 plus `start`, and ended at T0 plus `end`; -1: it runs."""
    return JobSummary(
        job_id=JobId(f"{number:032x}"),
        name=name,
        job_type=JobType.BATCH,
        status=JobStatus.RUNNING if end < 0 else JobStatus.FINISHED,
        start_ms=T0 + start,
        end_ms=-1 if end < 0 else T0 + end,
        last_modified_ms=T0,
        tasks=TaskCounts(total=1, by_state={}),
    )


def loaded(*lines: JobSummary) -> JobListing:
    """Return a listing of these jobs, of which nothing is missing."""
    listing = JobListing()
    for item in lines:
        listing.put(item)
    listing.load((), None)
    return listing


def sort(listing: JobListing, order: JobOrder) -> None:
    """Find the places of all jobs that have ended."""
    while listing.sort_some(order):
        pass


def numbers_of(listing: JobListing, order: JobOrder, *, page: int = 3, **conditions: Any) -> list[int]:
    """Return the numbers of all jobs in an order, read page by page."""
    found: list[int] = []
    query = JobsQuery(limit=page, order=order, filter=JobFilter(**conditions) if conditions else None)
    while True:
        sort(listing, order)
        answer = listing.page(query)
        found += [int(summary_of(item).job_id, 16) for item in answer.lines]
        if answer.next is None:
            return found
        query = structs.replace(query, after=answer.next)


JOBS = (
    line(1, start=0, end=50, name="Delta"),
    line(2, start=10, end=20, name="alpha"),
    line(3, start=20, end=90, name="charlie"),
    line(4, start=30, name="bravo"),
    line(5, start=40, name="echo"),
)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (JobOrder.NEWEST, [5, 4, 3, 2, 1]),
        (JobOrder.OLDEST, [1, 2, 3, 4, 5]),
        (JobOrder.FIRST_ENDED, [2, 1, 3, 5, 4]),
        (JobOrder.LAST_ENDED, [4, 5, 3, 1, 2]),
        (JobOrder.SHORTEST, [2, 1, 3, 5, 4]),
        (JobOrder.LONGEST, [4, 5, 3, 1, 2]),
        (JobOrder.BY_NAME, [2, 4, 3, 1, 5]),
        (JobOrder.BY_NAME_REVERSED, [5, 1, 3, 4, 2]),
    ],
)
@pytest.mark.parametrize("page", [1, 2, 3, 5, 10])
def test_each_order_is_that_of_all_pages_together(order: JobOrder, expected: list[int], page: int) -> None:
    assert numbers_of(loaded(*JOBS), order, page=page) == expected


@pytest.mark.parametrize("order", [*JobOrder])
def test_a_filter_selects_in_every_order(order: JobOrder) -> None:
    listing = loaded(*JOBS)
    found = numbers_of(listing, order, since_ms=T0 + 10, name="*a*")
    assert found == [number for number in numbers_of(listing, order) if number in (2, 3, 4)]


@pytest.mark.parametrize("order", [*JobOrder])
def test_a_page_does_not_move_when_jobs_are_added_end_and_expire_before_the_next_one(order: JobOrder) -> None:
    """No job that stays as it is is shown twice or left out."""
    listing = loaded(*(line(number, start=number, end=number * 2, name=f"n{number:03}") for number in range(40)))
    before = numbers_of(listing, order)
    query = JobsQuery(limit=15, order=order)
    sort(listing, order)
    first = listing.page(query)
    listing.put(line(100, start=1000, name="n000b"))
    listing.put(line(101, start=1, end=3, name="n039b"))
    for _ in listing.expire([JobId(f"{before[0]:032x}"), JobId(f"{before[14]:032x}"), JobId(f"{before[20]:032x}")]):
        pass
    rest: list[int] = []
    while True:
        query = structs.replace(query, after=first.next)
        sort(listing, order)
        first = listing.page(query)
        rest += [int(summary_of(item).job_id, 16) for item in first.lines]
        if first.next is None:
            break
    kept = [number for number in before[15:] if number != before[20]]
    assert [number for number in rest if number < 100] == kept


@pytest.mark.parametrize("order", [*JobOrder])
def test_a_thousand_jobs_are_in_order_whatever_happens_to_them(order: JobOrder) -> None:
    """Against sorting all of them, after many ended, were written again and expired."""
    chosen = random.Random(7)
    listing = JobListing()
    jobs: dict[int, JobSummary] = {}
    for number in range(1500):
        start = chosen.randrange(500)
        jobs[number] = line(number, start=start, name=f"name {chosen.randrange(20)}")
        listing.put(jobs[number])
        if chosen.random() < 0.9:
            jobs[number] = line(number, start=start, end=start + chosen.randrange(300), name=jobs[number].name)
            listing.put(jobs[number])
        if chosen.random() < 0.1 and jobs[number].status.globally_terminal:
            jobs[number] = structs.replace(jobs[number], end_ms=jobs[number].end_ms + 1)
            listing.put(jobs[number])
    expired = [number for number, job in jobs.items() if job.status.globally_terminal and number % 3 == 0]
    for _ in listing.expire([jobs.pop(number).job_id for number in expired]):
        pass
    listing.load((), None)
    assert numbers_of(listing, order, page=97) == sorted(jobs, key=key_in(order, jobs), reverse=order.descending)


@pytest.mark.parametrize("order", [order for order in JobOrder if order.column in job_orders.VALUES])
def test_page_costs_what_it_contains_however_many_jobs_have_not_ended(order: JobOrder) -> None:
    """Neither the first page nor one in the middle goes through all of them."""
    chosen = random.Random(3)
    listing = loaded(
        *(line(number, start=chosen.randrange(9999), name=f"n{chosen.randrange(99)}") for number in range(5000))
    )
    sort(listing, order)
    middle = listing.page(JobsQuery(limit=2500, order=order)).next
    for after in (None, middle):
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            page = listing.page(JobsQuery(limit=20, order=order, after=after))
        finally:
            sys.setprofile(None)
        assert len(page.lines) == 20
        assert calls < 1000


def key_in(order: JobOrder, jobs: dict[int, JobSummary]) -> Callable[[int], tuple[Any, ...]]:
    """Return what an order compares: its value, then the place in the listing."""

    def key(number: int) -> tuple[Any, ...]:
        job = jobs[number]
        ends = job.status.globally_terminal
        if order.column == "start":
            return (job.start_ms, tuple(-ord(letter) for letter in job.job_id))
        place = (-job.start_ms, job.job_id)
        value = {
            "end": job.end_ms if ends else 1 << 63,
            "duration": job.end_ms - job.start_ms if ends else (1 << 62) - job.start_ms,
            "name": job.name,
        }[order.column]
        return (value, *place)

    return key


@pytest.mark.parametrize("make", [numbers, texts])
def test_keys_that_are_not_there_are_not_removed(make: Any) -> None:
    keys = SortedKeys(make)
    keys.remove(1, b"a")
    keys.add(1, b"a")
    keys.remove(1, b"b")
    keys.remove(2, b"a")
    assert [*keys.behind(None, descending=False)] == [(1, b"a")]
    keys.remove(1, b"a")
    assert [*keys.behind(None, descending=True)] == []


@pytest.mark.parametrize("order", [*JobOrder])
def test_while_ended_jobs_are_loaded_a_page_is_exact_only_if_none_of_it_can_be_missing(order: JobOrder) -> None:
    """They are loaded by their end, the latest first."""
    listing = JobListing()
    listing.load([line(number, start=250 + number, end=300 + number) for number in range(9, -1, -1)], T0 + 200)
    query = JobsQuery(limit=5, order=order)
    sort(listing, order)
    exact = listing.is_exact(query, listing.page(query))
    assert exact is (order in (JobOrder.NEWEST, JobOrder.LAST_ENDED))
    listing.load((), None)
    assert listing.is_exact(query, listing.page(query))


def test_many_ended_jobs_are_sorted_in_steps_and_the_next_request_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step of the event loop sorts more than some hundred; a client is asked to try again before it gives up."""
    listing = loaded(*(line(number, start=number, end=number * 2, name=f"{number:05}") for number in range(3000)))
    steps = 0

    async def page(pages: ListingPages) -> list[int]:
        clock = asyncio.get_running_loop()
        slow = listing.sort_some

        def sort_some(order: JobOrder) -> bool:
            nonlocal steps
            steps += 1
            monkeypatch.setattr(clock, "time", lambda: steps * MAX_SORTING_S / 10)
            return slow(order)

        monkeypatch.setattr(listing, "sort_some", sort_some)
        for _ in range(5):
            try:
                answer = await pages.page(JobsQuery(limit=2, order=JobOrder.BY_NAME))
            except Unavailable:
                continue
            return [int(summary_of(item).job_id, 16) for item in answer.lines]
        return []

    async def nothing() -> None:
        pass

    async def read() -> list[int]:
        loader = ListingLoader(listing, None, None)  # type: ignore[arg-type]
        return await page(ListingPages(listing, loader, nothing))

    assert asyncio.run(read()) == [0, 1]
    assert steps >= 15


@pytest.mark.parametrize("order", [*JobOrder])
def test_a_job_that_ends_after_the_list_was_sorted_is_in_every_order(order: JobOrder) -> None:
    listing = loaded(*JOBS)
    assert len(numbers_of(listing, order)) == 5
    listing.put(line(5, start=40, end=60, name="echo"))
    assert sorted(numbers_of(listing, order)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("order", [JobOrder.LONGEST, JobOrder.BY_NAME])
def test_orders_that_no_client_asks_for_again_are_dropped_and_made_again(
    order: JobOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted for them does not grow without end."""
    monkeypatch.setattr(job_orders, "MAX_NOTED", 50)
    listing = loaded(*(line(number, start=number, end=number * 2, name=f"{number:05}") for number in range(300)))
    expected = sorted(range(300), reverse=order.descending)
    assert numbers_of(listing, order, page=100) == expected
    for number in range(300, 400):
        listing.put(line(number, start=number, end=number * 2, name=f"{number:05}"))
    assert listing.sort_some(order), "one step would have been enough for those that were noted"
    assert numbers_of(listing, order, page=100) == sorted(range(400), reverse=order.descending)
