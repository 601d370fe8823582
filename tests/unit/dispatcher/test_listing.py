"""The listing against the plainest listing there is: a dict, sorted when it is queried."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, B

from flintlock.api.job_lines import summary_of
from flintlock.dispatcher.listing.job_listing import MAX_CHANGES, MAX_SCANNED, JobListing, MakeLine
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobCounts, JobFilter, JobsQuery, JobSummary, TaskCounts
from flintlock.model.states import ExecutionState, JobStatus

JOBS = st.integers(0, 9).map(lambda number: JobId(f"{number:032x}"))
TASKS = TaskCounts(total=0, by_state=dict.fromkeys(ExecutionState, 0))


def line(job_id: JobId, start_ms: int = 0, status: JobStatus = JobStatus.RUNNING) -> JobSummary:
    return JobSummary(
        job_id=job_id,
        name="job",
        job_type=JobType.BATCH,
        status=status,
        start_ms=start_ms,
        end_ms=start_ms + 1 if status.globally_terminal else -1,
        last_modified_ms=0,
        tasks=TASKS,
    )


def numbered(number: int, status: JobStatus = JobStatus.FINISHED) -> JobSummary:
    return line(JobId(f"{number:032x}"), number, status)


def refresh(listing: JobListing, make: MakeLine) -> None:
    for _ in listing.refresh(make):
        pass


def all_lines(listing: JobListing, limit: int = 3, *, ended: bool = True) -> list[JobSummary]:
    """All lines, page by page."""
    query, found = JobsQuery(limit=limit, ended=ended), list[JobSummary]()
    while True:
        page = listing.page(query)
        assert len(page.lines) <= limit
        found += [summary_of(each) for each in page.lines]
        if page.next is None:
            return found
        query = structs.replace(query, after=page.next)


LIVE = st.builds(line, JOBS, st.integers(0, 3))
ENDED = st.builds(line, JOBS, st.integers(0, 3), st.sampled_from([JobStatus.FINISHED, JobStatus.FAILED]))


class ListingMachine(RuleBasedStateMachine):
    """`wanted` is what users are promised; `listing` is what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.listing = JobListing()
        self.listing.load((), None)
        self.wanted: dict[JobId, JobSummary] = {}
        self.current: dict[JobId, JobSummary] = {}  # what a touched job's line turns out to be
        self.counts: tuple[JobCounts, list[JobSummary]] | None = None
        self.version = 0
        self.followed: dict[JobId, JobSummary] = {}  # what a client knows that reads the changes

    @rule(given=LIVE)
    def touch(self, given: JobSummary) -> None:
        known = self.wanted.get(given.job_id)
        if known is None or not known.status.globally_terminal:
            given = structs.replace(given, start_ms=known.start_ms if known else given.start_ms)  # it never changes
            self.listing.touch(given.job_id)
            self.wanted[given.job_id] = self.current[given.job_id] = given

    @rule(job_id=JOBS)
    def touch_one_that_has_no_line(self, job_id: JobId) -> None:
        if job_id not in self.wanted:
            self.listing.touch(job_id)

    @rule(given=ENDED)
    def end(self, given: JobSummary) -> None:
        known = self.wanted.get(given.job_id)
        given = structs.replace(given, start_ms=known.start_ms if known else given.start_ms)
        self.listing.put(given)
        self.wanted[given.job_id] = given
        self.current.pop(given.job_id, None)

    @rule(given=ENDED)
    def load(self, given: JobSummary) -> None:
        known = self.wanted.get(given.job_id)
        if known is None or (known.status.globally_terminal and known.start_ms == given.start_ms):
            self.listing.load((given,), None)
            self.wanted[given.job_id] = self.followed[given.job_id] = given
        elif not known.status.globally_terminal:  # archived by a leader that died before the end was durable
            self.listing.load((given,), None)

    @rule(job_ids=st.sets(JOBS))
    def expire(self, job_ids: set[JobId]) -> None:
        for _ in self.listing.expire(job_ids):
            pass
        for job_id in job_ids:
            if job_id in self.wanted and self.wanted[job_id].status.globally_terminal:
                del self.wanted[job_id]
                self.followed.pop(job_id, None)

    @invariant()
    def pages_are_in_order_and_complete(self) -> None:
        refresh(self.listing, lambda job_id, _: self.current.get(job_id))
        expected = sorted(self.wanted.values(), key=lambda one: (-one.start_ms, one.job_id))
        assert all_lines(self.listing) == expected
        running = [one for one in expected if not one.status.globally_terminal]
        assert all_lines(self.listing, ended=False) == running

    @invariant()
    def counts_are_right_and_the_same_object_until_something_changes(self) -> None:
        refresh(self.listing, lambda job_id, _: self.current.get(job_id))
        counts, lines = self.listing.counts(), all_lines(self.listing)
        assert sum(counts.by_status.values()) == len(lines)
        assert all(counts.by_status[status] == sum(one.status is status for one in lines) for status in JobStatus)
        if self.counts is not None and self.counts[1] != lines:
            assert self.counts[0] is not counts
        self.counts = (counts, lines)

    @invariant()
    def who_reads_the_changes_knows_every_line(self) -> None:
        refresh(self.listing, lambda job_id, _: self.current.get(job_id))
        changes = self.listing.changes(self.version)
        assert changes.complete
        self.version = changes.version
        self.followed |= {summary_of(one).job_id: summary_of(one) for one in changes.lines}
        assert {job_id: self.followed[job_id] for job_id in self.wanted} == self.wanted


TestListing = ListingMachine.TestCase
TestListing.settings = settings(max_examples=60, stateful_step_count=30)


def test_line_that_did_not_change_is_no_change() -> None:
    listing = JobListing()
    listing.put(line(A))
    first, version = listing.counts(), listing.changes(0).version
    listing.touch(A)
    listing.put(line(A))
    refresh(listing, lambda job_id, _: line(job_id))

    assert listing.counts() is first
    assert listing.changes(version).lines == ()


def test_line_of_a_changed_job_is_computed_once_however_often_it_changed() -> None:
    listing = JobListing()
    computed: list[JobId] = []

    def make(job_id: JobId, last: JobSummary | None) -> JobSummary:
        assert last is None
        computed.append(job_id)
        return line(job_id)

    for _ in range(1000):
        listing.touch(A)
    refresh(listing, make)
    refresh(listing, make)

    assert computed == [A]


def test_an_ended_line_of_a_job_that_runs_is_not_loaded() -> None:
    """Its leader died between archiving it and making its end durable: it runs again."""
    listing = JobListing()
    listing.touch(A)
    listing.load((line(A, 0, JobStatus.FINISHED),), None)
    refresh(listing, lambda job_id, _: line(job_id))

    assert all_lines(listing) == [line(A)]


def test_a_page_is_exact_once_all_that_may_be_missing_started_earlier() -> None:
    """Ended jobs come with the latest end first: the first page does not wait for all of them."""
    listing = JobListing()
    first, whole = JobsQuery(limit=3), JobsQuery(limit=100)

    def exact(query: JobsQuery) -> bool:
        return listing.is_exact(query, listing.page(query))

    assert not exact(first)
    assert listing.is_exact(JobsQuery(limit=3, ended=False), listing.page(first))
    listing.load([numbered(number) for number in range(99, 95, -1)], 97)
    assert exact(first)
    assert not exact(whole)
    assert not exact(JobsQuery(limit=3, after=listing.page(first).next))
    listing.load((), None)
    assert exact(whole)


def test_what_changed_long_ago_is_not_remembered() -> None:
    """A client that is that far behind, or followed another leader, has to list the jobs again."""
    listing = JobListing(version=1000)
    for number in range(MAX_CHANGES + 10):
        listing.put(numbered(number))

    assert not listing.changes(1000).complete
    assert not listing.changes(-1).complete
    assert not listing.changes(10**9).complete
    assert listing.changes(1010).complete
    assert len(listing.changes(1010).lines) == MAX_CHANGES
    assert len(listing.changes(listing.changes(1010).version - 1).lines) == 1


def read_a_page(listing: JobListing) -> None:
    listing.page(JobsQuery(limit=100))


def end_a_job(listing: JobListing) -> None:
    listing.put(numbered(10**6))
    listing.counts()


def follow_a_change(listing: JobListing) -> None:
    listing.touch(B)
    refresh(listing, lambda job_id, _: line(job_id))
    listing.changes(0)


def expire_a_part(listing: JobListing) -> None:
    next(listing.expire([JobId(f"{7:032x}")]))


@pytest.mark.parametrize("work", [read_a_page, end_a_job, follow_a_change, expire_a_part])
def test_no_step_grows_with_the_number_of_ended_jobs(work: Callable[[JobListing], object]) -> None:
    """A page, an end, a change, and the removal of expired jobs take as long with 100,000 ended jobs as with 1,000."""
    took: dict[int, float] = {}
    for count in (1_000, 100_000):
        listing = JobListing()
        listing.load([numbered(number) for number in range(count, 0, -1)], None)
        times: list[float] = []
        for _ in range(20):
            begun_s = time.thread_time()
            work(listing)
            times.append(time.thread_time() - begun_s)
        took[count] = min(times)

    assert took[100_000] < 5 * took[1_000] + 0.001


def test_garbage_collection_does_not_visit_ended_jobs() -> None:
    """A collection stops the loop, and a list of a million lines takes it a tenth of a second."""
    listing = JobListing()
    listing.load([numbered(number) for number in range(20_000, 0, -1)], None)
    gc.collect()

    visited = (each for tracked in gc.get_objects() for each in gc.get_referents(tracked) if isinstance(each, bytes))

    assert sum(each.startswith(b'{"jid"') for each in visited) < 100
    assert len(listing.page(JobsQuery(limit=100)).lines) == 100


def test_lines_of_many_changed_jobs_are_computed_in_parts() -> None:
    """Two callers at once: each finds all lines computed that were marked when it began."""
    listing, computed = JobListing(), list[JobId]()
    marked = [JobId(f"{number:032x}") for number in range(1_000)]

    def make(job_id: JobId, _: JobSummary | None) -> JobSummary:
        computed.append(job_id)
        return line(job_id)

    for job_id in marked[:500]:
        listing.touch(job_id)
    first, second = listing.refresh(make), listing.refresh(make)
    next(first)
    assert 0 < len(computed) < 500
    for job_id in marked[500:]:
        listing.touch(job_id)
    next(second)
    for _ in first:
        pass
    assert set(marked[:500]) <= set(computed)
    for _ in second:
        pass
    assert len(computed) == len(set(computed))


def selected(listing: JobListing, limit: int = 3, **conditions: Any) -> list[int]:
    """The numbers of the jobs that a filter selects, page by page."""
    query, found = JobsQuery(limit=limit, filter=JobFilter(**conditions)), list[int]()
    while True:
        page = listing.page(query)
        assert len(page.lines) <= limit
        found += [int(summary_of(each).job_id, 16) for each in page.lines]
        if page.next is None:
            return found
        query = structs.replace(query, after=page.next)


def labelled(number: int) -> JobSummary:
    """Of five jobs one waits; every second one is called odd, and has ended."""
    made = numbered(number, JobStatus.FINISHED if number % 2 else JobStatus.RUNNING)
    scheduled = {**TASKS.by_state, ExecutionState.SCHEDULED: 1}
    waits = number % 5 == 0 and made.status is JobStatus.RUNNING
    return structs.replace(
        made,
        name="odd" if number % 2 else "even",
        labels={"third": str(number % 3), "env": "test"},
        submitted_by="me",
        tasks=TaskCounts(total=1, by_state=scheduled) if waits else TASKS,
    )


def test_a_filter_selects_ended_and_running_jobs_alike() -> None:
    listing = JobListing()
    for number in range(1, 21):
        listing.put(labelled(number))
    listing.load((), None)

    assert selected(listing, name="odd") == list(range(19, 0, -2))
    assert selected(listing, name="e*n") == list(range(20, 0, -2))
    assert selected(listing, states=frozenset({"WAITING"})) == [20, 10]
    assert selected(listing, states=frozenset({"RUNNING"})) == [18, 16, 14, 12, 8, 6, 4, 2]
    assert selected(listing, labels={"third": "0"}) == [18, 15, 12, 9, 6, 3]
    assert selected(listing, labels={"env": "", "third": "1"}, since_ms=10) == [19, 16, 13, 10]
    assert selected(listing, labels={"nightly": ""}) == []
    assert selected(listing, submitted_by="me", name="odd") == list(range(19, 0, -2))
    assert selected(listing, submitted_by="eve") == []
    assert selected(listing, id_prefix=f"{17:032x}"[:31], limit=1) == list(range(20, 15, -1))
    assert selected(listing, name="odd", states=frozenset({"RUNNING"})) == []


def test_a_filter_that_selects_nothing_costs_the_loop_no_more_than_a_part_of_the_listing() -> None:
    """A page that is not full has a next one, which begins behind what was compared."""
    listing = JobListing()
    listing.load((numbered(number) for number in range(MAX_SCANNED * 2)), None)
    page = listing.page(JobsQuery(limit=5, filter=JobFilter(name="none")))

    assert not page.lines
    assert page.next is not None
    assert page.next.start_ms == MAX_SCANNED
    assert selected(listing, name="none") == []
    assert selected(listing, name="job", limit=1000)[-1] == 0


def test_a_filtered_page_is_exact_once_no_job_that_started_since_can_be_missing() -> None:
    listing = JobListing()
    listing.load((numbered(number) for number in range(50, 60)), 50)
    recent, older = (JobsQuery(limit=99, filter=JobFilter(since_ms=since_ms)) for since_ms in (50, 49))

    assert listing.is_exact(recent, listing.page(recent))
    assert not listing.is_exact(older, listing.page(older))
