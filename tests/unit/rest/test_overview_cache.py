"""/jobs/overview is served from encoded bytes, and is never older than its row allows."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, B, RestHarness, ended, running

from flintlock.model.errors import Unavailable
from flintlock.model.states import JobStatus


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A))
    return made


def overview(rest: RestHarness) -> list[tuple[str, str, int]]:
    """Ids, states and durations."""
    return [(job["jid"], job["state"], job["duration"]) for job in rest.get("/jobs/overview")["jobs"]]


def test_a_change_is_visible_immediately(rest: RestHarness) -> None:
    """A new listing invalidates the cached response, though no time has passed."""
    assert overview(rest) == [(A, "RUNNING", 10_000)]
    rest.dispatcher.put(ended(running(A), JobStatus.FINISHED), running(B))

    assert set(overview(rest)) == {(A, "FINISHED", 9_000), (B, "RUNNING", 10_000)}


def test_durations_grow_without_a_change(rest: RestHarness) -> None:
    """The response is cached for half a second, and not longer."""
    assert overview(rest) == [(A, "RUNNING", 10_000)]
    rest.now_ms += 400
    assert overview(rest) == [(A, "RUNNING", 10_000)]
    rest.now_ms += 200
    assert overview(rest) == [(A, "RUNNING", 10_600)]


def test_both_paths_share_the_response(rest: RestHarness) -> None:
    """/v1 or not: the same bytes."""
    assert rest.call("GET", "/v1/jobs/overview").content == rest.call("GET", "/jobs/overview").content


def test_a_cached_response_equals_a_new_one(rest: RestHarness) -> None:
    """Headers and bytes are those of any other response."""
    first = rest.call("GET", "/jobs/overview")
    again = rest.call("GET", "/jobs/overview")

    assert first.headers == again.headers
    assert first.headers["content-type"] == "application/json; charset=UTF-8"
    assert int(first.headers["content-length"]) == len(first.content)
    assert first.content == again.content


def test_an_ended_job_that_changes_is_encoded_again(rest: RestHarness) -> None:
    """The lines of ended jobs are reused, but only while they are true."""
    rest.dispatcher.put(ended(running(A), JobStatus.FINISHED))
    assert overview(rest) == [(A, "FINISHED", 9_000)]
    rest.dispatcher.put(ended(running(A), JobStatus.FAILED, at_ms=T0 + 9_500), ended(running(B), JobStatus.FINISHED))

    assert set(overview(rest)) == {(A, "FAILED", 9_500), (B, "FINISHED", 9_000)}


def test_head_has_the_headers_of_get(rest: RestHarness) -> None:
    """There is one implementation of the route, whatever the method."""
    rest.dispatcher.put(ended(running(B, "ä"), JobStatus.CANCELED))
    response = rest.call("GET", "/jobs/overview")

    assert rest.call("HEAD", "/jobs/overview").headers["content-length"] == response.headers["content-length"]


def test_without_a_leader_nothing_is_served_from_the_cache(rest: RestHarness) -> None:
    """What an earlier leader knew is not sent in the name of the next."""
    overview(rest)
    rest.dispatcher.fail_with = Unavailable("no JobManager leads")

    assert rest.refused(503, "GET", "/jobs/overview") == ["no JobManager leads"]


def test_a_stale_job_is_listed_with_its_last_known_state(rest: RestHarness) -> None:
    """A JobMaster that does not answer leaves no hole in the list."""
    rest.dispatcher.put(structs.replace(running(B), stale=True, timestamps={JobStatus.INITIALIZING: T0 + 1}))

    assert [job[:2] for job in overview(rest)] == [(B, "RUNNING"), (A, "RUNNING")]


def test_concurrent_readers_get_complete_responses(rest: RestHarness) -> None:
    """On a real socket, with keep-alive, while the jobs change."""

    async def read() -> list[int]:
        async with rest.listening() as client:
            sizes: list[int] = []
            for number in range(20):
                rest.dispatcher.put(running(A, f"job-{number}"))
                answers = await asyncio.gather(*(client.get("/jobs/overview") for _ in range(5)))
                assert {answer.json()["jobs"][0]["name"] for answer in answers} == {f"job-{number}"}
                sizes += [len(answer.content) for answer in answers]
            return sizes

    assert len(asyncio.run(read())) == 100
