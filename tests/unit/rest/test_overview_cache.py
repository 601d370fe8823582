"""/jobs/overview is served from ready bytes, and is never older than it may be."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.rest.porch import T0, A, B, Porch, ended, running

from flintlock.model.errors import Unavailable
from flintlock.model.states import JobStatus


@pytest.fixture
def porch() -> Porch:
    made = Porch()
    made.dispatcher.put(running(A))
    return made


def overview(porch: Porch) -> list[tuple[str, str, int]]:
    """Ids, states and durations."""
    return [(job["jid"], job["state"], job["duration"]) for job in porch.get("/jobs/overview")["jobs"]]


def test_a_change_is_seen_at_once(porch: Porch) -> None:
    """A new listing makes the encoded copy void, though no time has passed."""
    assert overview(porch) == [(A, "RUNNING", 10_000)]
    porch.dispatcher.put(ended(running(A), JobStatus.FINISHED), running(B))

    assert set(overview(porch)) == {(A, "FINISHED", 9_000), (B, "RUNNING", 10_000)}


def test_durations_grow_without_a_change(porch: Porch) -> None:
    """The encoded copy is kept for half a second, and not longer."""
    assert overview(porch) == [(A, "RUNNING", 10_000)]
    porch.now_ms += 400
    assert overview(porch) == [(A, "RUNNING", 10_000)]
    porch.now_ms += 200
    assert overview(porch) == [(A, "RUNNING", 10_600)]


def test_both_paths_share_the_copy(porch: Porch) -> None:
    """/v1 or not: the same bytes."""
    assert porch.call("GET", "/v1/jobs/overview").content == porch.call("GET", "/jobs/overview").content


def test_the_copy_is_what_would_be_encoded_anew(porch: Porch) -> None:
    """Headers and bytes are those of any other answer."""
    first = porch.call("GET", "/jobs/overview")
    again = porch.call("GET", "/jobs/overview")

    assert first.headers == again.headers
    assert first.headers["content-type"] == "application/json; charset=UTF-8"
    assert int(first.headers["content-length"]) == len(first.content)
    assert first.content == again.content


def test_an_ended_job_that_changes_is_told_anew(porch: Porch) -> None:
    """Lines of ended jobs are kept, but never in place of what is true."""
    porch.dispatcher.put(ended(running(A), JobStatus.FINISHED))
    assert overview(porch) == [(A, "FINISHED", 9_000)]
    porch.dispatcher.put(ended(running(A), JobStatus.FAILED, at_ms=T0 + 9_500), ended(running(B), JobStatus.FINISHED))

    assert set(overview(porch)) == {(A, "FAILED", 9_500), (B, "FINISHED", 9_000)}


def test_the_copy_says_what_the_handler_says(porch: Porch) -> None:
    """HEAD is answered by the handler itself: the same length, for jobs that run and jobs that ended."""
    porch.dispatcher.put(ended(running(B, "ä"), JobStatus.CANCELED))
    told = porch.call("GET", "/jobs/overview")

    assert porch.call("HEAD", "/jobs/overview").headers["content-length"] == told.headers["content-length"]


def test_without_a_leader_there_is_no_copy_either(porch: Porch) -> None:
    """What an earlier leader knew is not told in the name of the next."""
    overview(porch)
    porch.dispatcher.fail_with = Unavailable("nobody leads")

    assert porch.refused(503, "GET", "/jobs/overview") == ["nobody leads"]


def test_a_stale_job_is_listed_with_its_last_known_state(porch: Porch) -> None:
    """A JobMaster that does not answer leaves no hole in the list."""
    porch.dispatcher.put(structs.replace(running(B), stale=True, timestamps={JobStatus.INITIALIZING: T0 + 1}))

    assert [job[:2] for job in overview(porch)] == [(B, "RUNNING"), (A, "RUNNING")]


def test_many_readers_on_one_connection_each_get_it_whole(porch: Porch) -> None:
    """On a real socket, with keep-alive, while the jobs change."""

    async def read() -> list[int]:
        async with porch.listening() as client:
            sizes: list[int] = []
            for number in range(20):
                porch.dispatcher.put(running(A, f"job-{number}"))
                answers = await asyncio.gather(*(client.get("/jobs/overview") for _ in range(5)))
                assert {answer.json()["jobs"][0]["name"] for answer in answers} == {f"job-{number}"}
                sizes += [len(answer.content) for answer in answers]
            return sizes

    assert len(asyncio.run(read())) == 100
