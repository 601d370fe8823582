"""The listing against the plainest listing there is: a dict, sorted when asked."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.dispatcher.dispatcher_harness import A

from flintlock.dispatcher.listing import JobListing
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import JobsOverview, JobSummary, TaskCounts
from flintlock.model.states import JobStatus

JOBS = st.integers(0, 6).map(lambda number: JobId(f"{number:032x}"))


def line(job_id: JobId, start_ms: int = 0, status: JobStatus = JobStatus.RUNNING) -> JobSummary:
    return JobSummary(
        job_id=job_id,
        name="job",
        job_type=JobType.BATCH,
        status=status,
        start_ms=start_ms,
        end_ms=-1,
        last_modified_ms=0,
        tasks=TaskCounts(total=0, by_state={}),
    )


LINES = st.builds(line, JOBS, st.integers(0, 3), st.sampled_from([JobStatus.RUNNING, JobStatus.FINISHED]))


class ListingLife(RuleBasedStateMachine):
    """`wanted` is what users are promised; `listing` is what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.listing = JobListing()
        self.wanted: dict[JobId, JobSummary] = {}
        self.current: dict[JobId, JobSummary] = {}  # what a touched job's line turns out to be
        self.last: JobsOverview | None = None

    @rule(given=LINES)
    def put(self, given: JobSummary) -> None:
        self.listing.put(given)
        self.wanted[given.job_id] = given
        self.current.pop(given.job_id, None)

    @rule(given=LINES)
    def touch(self, given: JobSummary) -> None:
        self.listing.touch(given.job_id)
        self.wanted[given.job_id] = self.current[given.job_id] = given

    @rule(job_id=JOBS)
    def touch_one_that_is_gone(self, job_id: JobId) -> None:
        self.listing.touch(job_id)

    @rule(job_id=JOBS)
    def remove(self, job_id: JobId) -> None:
        self.listing.remove(job_id)
        self.wanted.pop(job_id, None)
        self.current.pop(job_id, None)

    @invariant()
    def is_in_order_and_the_same_object_until_something_changes(self) -> None:
        shown = self.listing.overview(self.current.get)
        expected = sorted(self.wanted.values(), key=lambda one: (-one.start_ms, one.job_id))
        assert list(shown.jobs) == expected
        assert self.last is shown or self.last != shown
        self.last = shown


TestListingLife = ListingLife.TestCase
TestListingLife.settings = settings(max_examples=60, stateful_step_count=30)


def test_line_that_did_not_change_keeps_the_overview() -> None:
    listing = JobListing()
    listing.put(line(A))
    first = listing.overview(lambda _, last: last)
    listing.touch(A)
    listing.put(line(A))

    assert listing.overview(lambda job_id, _: line(job_id)) is first


def test_line_of_a_changed_job_is_computed_once_however_often_it_changed() -> None:
    listing = JobListing()
    asked: list[JobId] = []

    def make(job_id: JobId, last: JobSummary | None) -> JobSummary:
        assert last is None
        asked.append(job_id)
        return line(job_id)

    for _ in range(1000):
        listing.touch(A)
    listing.overview(make)
    listing.overview(make)

    assert asked == [A]
