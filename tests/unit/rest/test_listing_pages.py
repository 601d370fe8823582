"""GET /jobs/overview by pages and whole, /jobs and /events: however many jobs there are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import T0, A, RestHarness, ended, running

from flintlock.model.ids import JobId
from flintlock.model.jobs import JobOrder, JobSnapshot
from flintlock.model.states import JobStatus
from flintlock.rest.jobs.listing import MAX_CACHED, MAX_PAGE

AFTER = "query parameter 'after': give what a page has as 'next', with the same 'sort'"


def job(number: int, status: JobStatus = JobStatus.FINISHED) -> JobSnapshot:
    """Number n started n milliseconds after the first."""
    made = structs.replace(running(JobId(f"{number:032x}")), timestamps={JobStatus.INITIALIZING: T0 + number})
    return made if status is JobStatus.RUNNING else ended(made, status)


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(
        *(job(number, JobStatus.RUNNING if number % 5 == 0 else JobStatus.FINISHED) for number in range(12))
    )
    return made


def ids(listed: Any) -> list[int]:
    return [int(one["jid"], 16) for one in listed["jobs"]]


def test_pages_have_all_jobs_newest_first(rest: RestHarness) -> None:
    """`next` leads to the next page, and the last one has none."""
    found: list[int] = []
    path = "/jobs/overview?limit=5"
    while True:
        page = rest.get(path)
        assert len(page["jobs"]) <= 5
        found += ids(page)
        if "next" not in page:
            break
        path = f"/jobs/overview?limit=5&after={page['next']}"

    assert found == list(range(11, -1, -1))
    assert ids(rest.get("/jobs/overview")) == found


@pytest.mark.parametrize("sort", [*JobOrder])
def test_pages_in_an_order_have_all_jobs(rest: RestHarness, sort: str) -> None:
    """`next` is a position in the order."""
    found: list[int] = []
    params = {"limit": "5", "sort": sort}
    while True:
        page = rest.call("GET", "/jobs/overview", params=params).json()
        found += ids(page)
        if "next" not in page:
            break
        params["after"] = page["next"]
    assert sorted(found) == list(range(12))
    if sort == "start":
        assert found == list(range(12))


def test_a_page_has_the_lines_of_the_whole_list(rest: RestHarness) -> None:
    """The same JSON for each job."""
    assert rest.get("/jobs/overview?limit=100")["jobs"] == rest.get("/jobs/overview")["jobs"]


def test_jobs_that_have_not_ended_are_listed_alone(rest: RestHarness) -> None:
    """By pages or whole."""
    assert ids(rest.get("/jobs/overview?ended=false")) == [10, 5, 0]
    assert ids(rest.get("/jobs/overview?ended=false&limit=2")) == [10, 5]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=0", "query parameter 'limit': 0 is not from 1 to 9223372036854775807"),
        ("limit=1001", "query parameter 'limit': 1001 is more than 1000; use 'after' for the next page"),
        ("after=7", AFTER),
        ("after=x-" + "a" * 32, AFTER),
        ("after=" + "9" * 30 + "-" + "a" * 32, AFTER),
        ("state=busy", f"query parameter 'state': 'BUSY' is none of {', '.join(JobStatus)}, WAITING"),
        ("id=xyz", "query parameter 'id': 'xyz' is not the beginning of a job id: up to 32 hex digits"),
        ("name=" + "n" * 256, "query parameter 'name': has more than 255 characters"),
        ("label=" + ",".join(f"k{n}" for n in range(17)), "query parameter 'label': there are more than 16 labels"),
        ("sort=state", f"query parameter 'sort': 'state' is none of {', '.join(JobOrder)}"),
        ("sort=end&after=7-" + "a" * 32, AFTER),
        ("sort=end&after=7-" + "a" * 32 + "-x", AFTER),
        ("after=7-" + "a" * 32 + "-5", AFTER),
        ("ended=maybe", "query parameter 'ended': 'maybe' is neither 'true' nor 'false'"),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_refused(rest: RestHarness, query: str, text: str) -> None:
    """400, and what to send instead."""
    assert rest.refused(400, "GET", f"/jobs/overview?{query}") == [text]


def test_a_long_list_is_complete_and_sent_piece_by_piece() -> None:
    """No step of the loop makes all of it, and no length is announced."""
    rest = RestHarness()
    count = MAX_CACHED + 5
    rest.dispatcher.put(*(job(number) for number in range(count)))

    whole = rest.call("GET", "/jobs/overview")

    assert ids(whole.json()) == list(range(count - 1, -1, -1))
    assert "content-length" not in whole.headers
    assert [int(one["id"], 16) for one in rest.get("/jobs")["jobs"]] == list(range(count - 1, -1, -1))


def test_events_of_one_job_begin_with_its_state(rest: RestHarness) -> None:
    """`job` selects it, ended or not; others are not sent."""

    async def read() -> list[str]:
        lines: list[str] = []
        async with rest.listening() as client, client.stream("GET", f"/events?job={A}") as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    lines.append(line)
                    rest.dispatcher.put(job(3, JobStatus.FAILED), ended(running(A), JobStatus.FINISHED))
                if len(lines) == 2:
                    return lines
        return lines

    rest.dispatcher.put(running(A))
    first, second = asyncio.run(read())

    assert '"state":"RUNNING"' in first
    assert '"state":"FINISHED"' in second
    assert A in first
    assert A in second
    assert rest.refused(404, "GET", f"/events?job={'c' * 32}")
    assert rest.refused(400, "GET", "/events?job=x") == ["query parameter 'job': 'x' is not a job id: 32 hex digits"]


def test_events_begin_with_running_jobs_and_the_latest_ended_ones() -> None:
    """Not with every job that ever ended."""
    rest = RestHarness()
    count = MAX_PAGE + 50
    rest.dispatcher.put(job(0, JobStatus.RUNNING), *(job(number) for number in range(1, count)))

    async def read() -> list[str]:
        async with asyncio.timeout(10), rest.listening() as client, client.stream("GET", "/events") as response:
            found: list[str] = []
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    found.append(line)
                if line == "event: listed":
                    return found
            return found

    seen = asyncio.run(read())

    assert len(seen) == MAX_PAGE + 1
    assert f"{0:032x}" in seen[-1]


def test_events_say_when_all_jobs_are_listed_even_if_there_are_none() -> None:
    """A client shows an empty cluster as one, and drops what it knew of the cluster before."""
    rest = RestHarness()

    async def read() -> str:
        async with asyncio.timeout(10), rest.listening() as client, client.stream("GET", "/events") as response:
            return await anext(line async for line in response.aiter_lines() if line)

    assert asyncio.run(read()) == "event: listed"


def test_the_list_is_filtered(rest: RestHarness) -> None:
    """By state, name, label, time, submitter and the beginning of an id, and by all of them together."""
    graph = structs.replace(job(20).graph, name="daily", labels={"team": "core"}, submitted_by="airflow")
    rest.dispatcher.put(structs.replace(job(20), graph=graph))

    assert ids(rest.get("/jobs/overview?state=RUNNING")) == [10, 5, 0]
    assert ids(rest.get("/jobs/overview?state=waiting,failed")) == []
    assert ids(rest.get("/jobs/overview?name=dai*&label=team=core")) == [20]
    assert ids(rest.get("/jobs/overview?label=team")) == [20]
    assert ids(rest.get("/jobs/overview?submitted-by=airflow&name=daily")) == [20]
    assert ids(rest.get("/jobs/overview?submitted-by=eve")) == []
    assert ids(rest.get("/jobs/overview?label=team=other")) == []
    assert ids(rest.get(f"/jobs/overview?since={T0 + 10}")) == [20, 11, 10]
    assert ids(rest.get("/jobs/overview?id=" + f"{20:032x}")) == [20]
    assert ids(rest.get("/jobs/overview?state=RUNNING&limit=2")) == [10, 5]
    (found,) = rest.get("/jobs/overview?name=daily")["jobs"]
    assert (found["labels"], found["submitted-by"]) == ({"team": "core"}, "airflow")
    details = rest.get(f"/jobs/{20:032x}")
    assert (details["labels"], details["submitted-by"]) == ({"team": "core"}, "airflow")
    assert rest.get(f"/jobs/{20:032x}/attempts")["labels"] == {"team": "core"}
