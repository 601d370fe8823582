"""What REST returns about jobs: their state, their attempts, their failures, their output, their results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import FAILURE, T0, A, B, RestHarness, ended, execution, graph, running

from flintlock.model.errors import Unavailable
from flintlock.model.ids import AttemptId, JobId, RegionId, StepName
from flintlock.model.jobs import AwaitJob, ExceptionEntry, JobSnapshot
from flintlock.model.regions import regions_of
from flintlock.model.states import ExecutionState, JobStatus
from flintlock.model.tasks import ResultRows
from flintlock.testing.virtual_time import run_virtual

ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def rest() -> RestHarness:
    made = RestHarness()
    made.dispatcher.put(running(A))
    return made


def test_jobs_are_listed_newest_first(rest: RestHarness) -> None:
    """Ids with status, and the overview with times and counted steps."""
    older = structs.replace(
        ended(running(B, "other"), JobStatus.FINISHED), timestamps={JobStatus.INITIALIZING: T0 - 1000}
    )
    rest.dispatcher.put(older)

    assert rest.get("/jobs") == {"jobs": [{"id": A, "status": "RUNNING"}, {"id": B, "status": "FINISHED"}]}
    first, second = rest.get("/jobs/overview")["jobs"]
    assert (first["jid"], first["state"], first["start-time"], first["end-time"]) == (A, "RUNNING", T0, -1)
    assert first["duration"] == 10_000
    assert first["last-modification"] == T0 + 5000
    tasks = {state: count for state, count in first["tasks"].items() if count}
    assert tasks == {"total": 5, "finished": 2, "running": 3}
    assert (second["end-time"], second["duration"]) == (T0 + 9000, 10_000)


def test_a_running_job_of_which_nothing_runs_says_what_it_waits_for(rest: RestHarness) -> None:
    """Flink's state stays RUNNING; `waits-for` is there while the job waits, and only then."""
    job = running(A)
    queued = (*job.executions[:2], structs.replace(job.executions[2], state=ExecutionState.SCHEDULED))
    paths = (f"/jobs/{A}", f"/jobs/{A}/attempts")
    assert [rest.get(path).get("waits-for") or "" for path in paths] == ["", ""]
    assert "waits-for" not in rest.get("/jobs/overview")["jobs"][0]

    rest.now_ms += 10_000  # what is cached has expired
    rest.dispatcher.put(structs.replace(job, executions=queued, last_modified_ms=T0 + 6000))
    assert [rest.get(path)["waits-for"] for path in paths] == ["slots", "slots"]
    assert rest.get("/jobs/overview")["jobs"][0]["waits-for"] == "slots"
    assert rest.get("/jobs/overview")["jobs"][0]["state"] == "RUNNING"


def test_a_job_is_returned_with_its_steps(rest: RestHarness) -> None:
    """Each step is where its region is; what it wrote is returned where Spark has reported it."""
    job = rest.get(f"/jobs/{A}")

    assert (job["jid"], job["name"], job["state"], job["now"], job["duration"]) == (
        A,
        "revenue",
        "RUNNING",
        T0 + 10_000,
        10_000,
    )
    assert job["timestamps"]["RUNNING"] == T0 + 10
    assert job["timestamps"]["FINISHED"] == 0
    vertices = {vertex["name"]: vertex for vertex in job["vertices"]}
    assert {name: vertex["status"] for name, vertex in vertices.items()} == {
        "Source: orders": "FINISHED",
        "clean": "FINISHED",
        "priced": "RUNNING",
        "Sink: out": "RUNNING",
        "Result: top": "RUNNING",
    }
    clean, out = vertices["clean"], vertices["Sink: out"]
    assert (clean["start-time"], clean["end-time"], clean["duration"]) == (T0 + 100, T0 + 1100, 1000)
    assert (out["start-time"], out["end-time"], out["duration"]) == (T0 + 1200, -1, 8800)
    assert (clean["metrics"]["write-records"], clean["metrics"]["write-records-complete"]) == (7, True)
    assert (out["metrics"]["write-records"], out["metrics"]["write-records-complete"]) == (0, True)
    assert {state: count for state, count in job["status-counts"].items() if count} == {"FINISHED": 2, "RUNNING": 3}
    assert [node["id"] for node in job["plan"]["nodes"]] == [vertex.id for vertex in graph().vertices]


def test_a_job_that_has_not_started_has_no_numbers(rest: RestHarness) -> None:
    """No attempt, no times, and yet every field."""
    fresh = graph(B)
    rest.dispatcher.put(
        JobSnapshot(
            graph=fresh,
            regions=regions_of(fresh),
            status=JobStatus.INITIALIZING,
            timestamps={JobStatus.INITIALIZING: T0},
            end_ms=-1,
            last_modified_ms=T0,
            executions=(),
        )
    )

    vertices = rest.get(f"/jobs/{B}")["vertices"]

    assert {(v["status"], v["start-time"], v["end-time"], v["duration"], v["parallelism"]) for v in vertices} == {
        ("CREATED", -1, -1, -1, 2)
    }
    assert [region["attempts"] for region in rest.get(f"/jobs/{B}/attempts")["regions"]] == [[], []]
    assert rest.get(f"/jobs/{B}/logs") == {"logs": []}


def test_status_and_configuration(rest: RestHarness) -> None:
    """The smallest question, and how the job was configured."""
    assert rest.get(f"/jobs/{A}/status") == {"status": "RUNNING"}
    config = rest.get(f"/jobs/{A}/config")["execution-config"]
    assert config["job-parallelism"] == 2
    assert config["user-config"] == {"spark.sql.ansi.enabled": "true"}
    assert config["restart-strategy"] == "Cluster level default restart strategy"


def test_a_jobs_secrets_are_hidden(rest: RestHarness) -> None:
    """A user who may view a job is not necessarily allowed to read its secrets."""
    secret = {"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.sql.ansi.enabled": "true"}
    rest.dispatcher.put(structs.replace(running(A), graph=structs.replace(graph(A), config=secret)))

    assert rest.get(f"/jobs/{A}/config")["execution-config"]["user-config"] == {
        "spark.hadoop.fs.s3a.secret.key": "******",
        "spark.sql.ansi.enabled": "true",
    }


def test_the_parameters_of_a_job_are_shown_without_its_secrets(rest: RestHarness) -> None:
    """A reference to a secret is none; a value whose name is that of a secret may be one."""
    params = {"many": 5, "key": "${secret:KEY}", "password": "hunter2", "token": "${secret:TOKEN}"}
    rest.dispatcher.put(structs.replace(running(A), graph=structs.replace(graph(A), params=params)))

    assert rest.get(f"/jobs/{A}/config")["params"] == {**params, "password": "******"}


def test_attempts_have_all_that_a_display_needs(rest: RestHarness) -> None:
    """Regions with their steps, exchanges and every attempt, and the job's last failure."""
    answer = rest.get(f"/jobs/{A}/attempts")

    assert {key: answer[key] for key in ("jobid", "name", "status", "engine", "publishing")} == {
        "jobid": A,
        "name": "revenue",
        "status": "RUNNING",
        "engine": "shared",
        "publishing": None,
    }
    first, second = answer["regions"]
    assert (first["region"], first["steps"], first["reads"], first["materialises"]) == (
        0,
        ["orders", "clean"],
        [],
        ["clean"],
    )
    assert (second["steps"], second["reads"], second["parallelism"]) == (["priced", "out", "top"], ["clean"], None)
    assert [attempt["state"] for attempt in first["attempts"]] == ["FAILED", "FINISHED"]
    assert first["attempts"][0]["failure"]["frames"] == [
        {"file": "job.py", "line": 7, "function": "clean", "source": "1 / 0"}
    ]
    assert first["attempts"][1]["outputs"] == [{"step": "clean", "rows": 7, "bytes": 70}]
    (running_now,) = second["attempts"]
    assert running_now["taskmanager-id"] == "tm-1"
    assert running_now["activity"] == "writing out"
    assert running_now["timestamps"] == {"DEPLOYING": T0 + 1200, "RUNNING": T0 + 1300}
    assert running_now["metrics"] == {
        "read-records": 7,
        "read-bytes": 0,
        "write-records": 0,
        "write-bytes": 0,
        "stages-done": 1,
        "stages-total": 2,
        "tasks-done": 3,
        "tasks-total": 4,
    }
    assert running_now["failure"] is None
    assert answer["failure"]["kind"] == "user code"
    assert answer["failure"]["exception"] == "ZeroDivisionError"
    assert answer["failures"] == [
        {
            "timestamp": T0 + 90,
            "region": 0,
            "attempt": 0,
            "taskmanager-id": None,
            "kind": "user code",
            "headline": "step 'clean': ZeroDivisionError: division by zero",
            "labels": {},
            "concurrent": False,
        }
    ]


def test_publication_is_counted(rest: RestHarness) -> None:
    """How many files of how many."""
    rest.dispatcher.put(structs.replace(running(A), publishing=(3, 7)))

    assert rest.get(f"/jobs/{A}/attempts")["publishing"] == {"done": 3, "total": 7}


def test_failures_are_returned_newest_first(rest: RestHarness) -> None:
    """With the user's own part of the stack; `maxExceptions` says how many, and `truncated` whether there are more."""
    later = structs.replace(FAILURE, message="second", exception="ValueError")
    rest.dispatcher.put(
        structs.replace(
            running(A),
            exceptions=(
                ExceptionEntry(failure=FAILURE, timestamp_ms=T0 + 90, task_name="orders"),
                ExceptionEntry(failure=later, timestamp_ms=T0 + 95, labels={"type": "user"}),
            ),
        )
    )

    history = rest.get(f"/jobs/{A}/exceptions")["exceptionHistory"]
    assert [(entry["exceptionName"], entry["timestamp"]) for entry in history["entries"]] == [
        ("ValueError", T0 + 95),
        ("ZeroDivisionError", T0 + 90),
    ]
    assert history["truncated"] is False
    assert 'File "job.py", line 7, in clean' in history["entries"][0]["stacktrace"]
    assert history["entries"][0]["failureLabels"] == {"type": "user"}

    one = rest.get(f"/jobs/{A}/exceptions", params={"maxExceptions": 1})["exceptionHistory"]
    assert ([entry["exceptionName"] for entry in one["entries"]], one["truncated"]) == (["ValueError"], True)
    none = rest.get(f"/jobs/{A}/exceptions", params={"maxExceptions": 0})["exceptionHistory"]
    assert (none["entries"], none["truncated"]) == ([], True)


@pytest.mark.parametrize(
    ("status", "application_status"),
    [(JobStatus.FINISHED, "SUCCEEDED"), (JobStatus.CANCELED, "CANCELED"), (JobStatus.FAILED, "FAILED")],
)
def test_the_end_of_a_job_is_reported_as_by_flink(
    rest: RestHarness, status: JobStatus, application_status: str
) -> None:
    """A failed one with its cause, and only a failed one: a failure before a successful restart is none."""
    rest.dispatcher.put(ended(running(A), status))

    answer = rest.get(f"/jobs/{A}/execution-result")

    result = answer["job-execution-result"]
    assert answer["status"] == {"id": "COMPLETED"}
    assert (result["id"], result["application-status"], result["net-runtime"]) == (A, application_status, 9000)
    assert result["accumulator-results"] == {}
    assert ("failure-cause" in result) == (status is JobStatus.FAILED)
    if status is JobStatus.FAILED:
        cause = result["failure-cause"]
        assert (cause["class"], cause["serialized-throwable"]) == ("ZeroDivisionError", "")
        assert "division by zero" in cause["stack-trace"]


def test_a_job_that_runs_has_no_result_yet(rest: RestHarness) -> None:
    """IN_PROGRESS, at once, unless a wait is asked for."""
    assert rest.get(f"/jobs/{A}/execution-result") == {"status": {"id": "IN_PROGRESS"}}
    assert rest.dispatcher.awaited == [AwaitJob(job_id=A, wait_s=0.0)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("1500", 1.5), ("1 h", 600), ("9" * 400, 600)]
)
def test_the_wait_is_passed_on_within_bounds(rest: RestHarness, text: str, seconds: float) -> None:
    """As a duration is written elsewhere; ten minutes at most."""

    async def ask() -> None:
        await rest.request("GET", f"/jobs/{A}/execution-result", params={"wait": text})

    run_virtual(ask())

    assert rest.dispatcher.awaited == [AwaitJob(job_id=A, wait_s=seconds)]


def test_a_long_poll_is_answered_when_the_job_ends(rest: RestHarness) -> None:
    """Not before, and at once then."""

    async def ask() -> tuple[dict[str, Any], float]:
        loop = asyncio.get_running_loop()
        loop.call_later(12, lambda: rest.dispatcher.put(ended(running(A), JobStatus.FINISHED)))
        response = await rest.request("GET", f"/jobs/{A}/execution-result", params={"wait": "30s"})
        return response.json(), loop.time()

    answer, answered_s = run_virtual(ask())

    assert answer["status"] == {"id": "COMPLETED"}
    assert answered_s == pytest.approx(12, abs=0.1)


def test_a_long_poll_ends_with_its_wait(rest: RestHarness) -> None:
    """The job keeps running; the client may repeat the request."""

    async def ask() -> tuple[dict[str, Any], float]:
        response = await rest.request("GET", f"/jobs/{A}/execution-result", params={"wait": "30s"})
        return response.json(), asyncio.get_running_loop().time()

    assert run_virtual(ask()) == ({"status": {"id": "IN_PROGRESS"}}, pytest.approx(30, abs=0.1))


@pytest.mark.parametrize(("method", "path"), [("PATCH", ""), ("PATCH", "?mode=cancel")])
def test_a_job_is_cancelled(rest: RestHarness, method: str, path: str) -> None:
    """As Flink's command line does it, and as its dashboard does."""
    response = rest.call(method, f"/jobs/{A}{path}")

    assert (response.status_code, response.json()) == (202, {})
    assert rest.dispatcher.cancelled == [A]


def test_a_cancel_may_be_forced(rest: RestHarness) -> None:
    """What cannot end by itself is ended, too."""
    assert rest.call("PATCH", f"/jobs/{A}?mode=cancel&force=true").status_code == 202
    assert rest.dispatcher.forced == [A]
    assert rest.call("PATCH", f"/jobs/{A}?force=false").status_code == 202
    assert rest.dispatcher.forced == [A]
    assert "neither 'true' nor 'false'" in rest.refused(400, "PATCH", f"/jobs/{A}?force=maybe")[0]


def test_a_cancel_that_comes_too_late_is_a_conflict(rest: RestHarness) -> None:
    """A finished job cannot be cancelled; a cancelled one is acknowledged again."""
    rest.dispatcher.put(ended(running(A), JobStatus.FINISHED), ended(running(B), JobStatus.CANCELED))

    assert "has ended" in rest.refused(409, "PATCH", f"/jobs/{A}")[0]
    assert rest.call("PATCH", f"/jobs/{B}").status_code == 202


def result(rest: RestHarness) -> None:
    """Give the job a result."""
    finished = structs.replace(ended(running(A), JobStatus.FINISHED), result_names=(StepName("top"),))
    rest.dispatcher.put(finished)
    rest.dispatcher.results[A, "top"] = ResultRows(
        name=StepName("top"),
        rows=2,
        truncated=True,
        arrow=b"ARROW1 stream",
        json=b'{"columns":[{"name":"k","type":"string"}],"rows":[["a"],["\xc3\xa4"]]}',
    )


def test_results_come_as_json(rest: RestHarness) -> None:
    """Columns with Spark's types, and rows."""
    result(rest)

    assert rest.get(f"/jobs/{A}/results") == {"results": ["top"]}
    assert rest.get(f"/jobs/{A}/results/top") == {
        "name": "top",
        "truncated": True,
        "columns": [{"name": "k", "type": "string"}],
        "rows": [["a"], ["ä"]],
    }


@pytest.mark.parametrize("accept", [ARROW, f"{ARROW}, */*;q=0.1", f"{ARROW.upper()};q=1"])
def test_results_are_sent_as_arrow_if_the_client_accepts_it(rest: RestHarness, accept: str) -> None:
    """The stream as the runner wrote it."""
    result(rest)

    response = rest.call("GET", f"/jobs/{A}/results/top", headers={"Accept": accept})

    assert (response.status_code, response.headers["content-type"], response.content) == (200, ARROW, b"ARROW1 stream")


def test_results_that_are_not_there(rest: RestHarness) -> None:
    """409 while the job runs, 404 for a name that it does not keep."""
    assert "has no results: it is RUNNING" in rest.refused(409, "GET", f"/jobs/{A}/results/top")[0]
    result(rest)
    assert "no result 'other'" in rest.refused(404, "GET", f"/jobs/{A}/results/other")[0]


def attempt(region: int, number: int) -> AttemptId:
    return AttemptId(job_id=A, region=RegionId(region), attempt=number)


def test_output_is_returned_by_attempt(rest: RestHarness) -> None:
    """Every attempt that ran somewhere; one whose output is gone is empty, not an error."""
    rest.resource_manager.logs = {attempt(0, 0): b"first\n", attempt(1, 0): "ä\n".encode()}
    rest.resource_manager.complete_logs = {attempt(0, 0)}

    assert rest.get(f"/jobs/{A}/logs")["logs"] == [
        log(0, 0, "first\n", complete=True),
        log(0, 1, "", complete=True),
        log(1, 0, "ä\n"),
    ]


def log(region: int, number: int, text: str, *, complete: bool = False, offset: int = 0) -> dict[str, Any]:
    """What an attempt's output looks like if this is all of it."""
    size = offset + len(text.encode())
    return {
        "region": region,
        "attempt": number,
        "taskmanager-id": "tm-1",
        "offset": offset,
        "next-offset": size,
        "size": size,
        "complete": complete,
        "text": text,
        "stderr": [],
    }


def test_output_says_which_characters_are_standard_error(rest: RestHarness) -> None:
    """Bytes become characters, and half a character at the end waits for its other half."""
    whole = "ä1\nwörn\nb2\nü".encode()
    rest.resource_manager.logs = {attempt(1, 0): whole[:-1]}
    rest.resource_manager.stderr = {attempt(1, 0): ((4, 10), (13, 14))}

    (part,) = rest.get(f"/jobs/{A}/logs", params={"region": 1, "attempt": 0})["logs"]
    assert (part["text"], part["stderr"], part["next-offset"]) == ("ä1\nwörn\nb2\n", [{"start": 3, "end": 8}], 13)


def test_output_of_one_attempt_from_an_offset_on(rest: RestHarness) -> None:
    """What `logs -f` asks, again and again; a negative offset counts from the end."""
    rest.resource_manager.logs = {attempt(0, 1): b"0123456789"}
    of_one = {"region": 0, "attempt": 1}

    assert rest.get(f"/jobs/{A}/logs", params={**of_one, "offset": 6})["logs"] == [log(0, 1, "6789", offset=6)]
    assert rest.get(f"/jobs/{A}/logs", params={**of_one, "offset": -2})["logs"] == [log(0, 1, "89", offset=8)]
    assert rest.get(f"/jobs/{A}/logs", params={**of_one, "offset": 99})["logs"] == [log(0, 1, "", offset=10)]
    assert [item["attempt"] for item in rest.get(f"/jobs/{A}/logs", params={"region": 0})["logs"]] == [0, 1]


def test_a_character_is_never_cut_in_two(rest: RestHarness) -> None:
    """Half a character waits for its other half; at the very end there is no other half, and it is replaced."""
    rest.resource_manager.logs = {attempt(1, 0): b"a" + "ä".encode()[:1]}
    of_one = {"region": 1, "attempt": 0}

    (part,) = rest.get(f"/jobs/{A}/logs", params=of_one)["logs"]
    assert (part["text"], part["next-offset"], part["size"]) == ("a", 1, 2)

    rest.resource_manager.logs = {attempt(1, 0): "aäb".encode()}
    (part,) = rest.get(f"/jobs/{A}/logs", params={**of_one, "offset": 1})["logs"]
    assert (part["text"], part["next-offset"]) == ("äb", 4)

    rest.resource_manager.logs = {attempt(1, 0): b"a\xe2\x82"}
    rest.resource_manager.complete_logs = {attempt(1, 0)}
    (part,) = rest.get(f"/jobs/{A}/logs", params=of_one)["logs"]
    assert (part["text"], part["next-offset"]) == ("a\ufffd", 3)


@pytest.mark.parametrize("text", ["ä", "€", "𝄞", "aä€𝄞z"])
def test_output_read_byte_by_byte_is_complete(rest: RestHarness, text: str) -> None:
    """However the pieces fall, their texts together are the output."""
    whole = text.encode()
    read, offset = "", 0
    for size in range(1, len(whole) + 1):
        rest.resource_manager.logs = {attempt(1, 0): whole[:size]}
        (part,) = rest.get(f"/jobs/{A}/logs", params={"region": 1, "attempt": 0, "offset": offset})["logs"]
        read, offset = read + part["text"], part["next-offset"]

    assert read == text


def test_output_that_is_no_text_is_shown_as_far_as_it_is(rest: RestHarness) -> None:
    """Bytes that are no UTF-8 are replaced, and counted as what they are."""
    rest.resource_manager.logs = {attempt(1, 0): b"\xff\xfe\x80ok\n"}

    (part,) = rest.get(f"/jobs/{A}/logs", params={"region": 1, "attempt": 0})["logs"]

    assert (part["text"], part["next-offset"]) == ("\ufffd\ufffd\ufffdok\n", 6)


def test_output_of_a_taskmanager_that_is_away_may_still_come(rest: RestHarness) -> None:
    """It is empty for now, and not marked as complete."""
    rest.resource_manager.fail_with = Unavailable("tm-1 does not answer")

    assert {(item["text"], item["complete"]) for item in rest.get(f"/jobs/{A}/logs")["logs"]} == {("", False)}


def test_output_that_no_taskmanager_has_any_more_is_shown_as_far_as_it_is_stored_with_the_job(
    rest: RestHarness,
) -> None:
    job = running(A)
    first, *others = job.executions
    rest.dispatcher.put(structs.replace(job, executions=(structs.replace(first, output_tail=b"the end"), *others)))
    path = f"/jobs/{A}/logs?region={first.region}&attempt={first.attempt}"

    whole = rest.get(path)["logs"][0]
    assert whole["text"] == "[flintlock: what is left of the output is its last 7 bytes]\nthe end"
    assert whole["complete"]
    assert whole["next-offset"] == whole["size"]
    assert rest.get(f"{path}&offset=-3")["logs"][0]["text"] == "end"


def test_output_of_an_attempt_that_never_was_is_not_found(rest: RestHarness) -> None:
    """404, with what was asked for."""
    (error,) = rest.refused(404, "GET", f"/jobs/{A}/logs?region=0&attempt=7")

    assert "region 0, attempt 7" in error
    rest.refused(404, "GET", f"/jobs/{A}/logs?attempt=7")


def test_attempts_that_never_reached_a_taskmanager_have_no_output(rest: RestHarness) -> None:
    """An attempt that waits for slots is passed over."""
    waiting = structs.replace(
        execution(0, 0, ExecutionState.SCHEDULED, {ExecutionState.SCHEDULED: T0}), task_manager=None
    )
    rest.dispatcher.put(structs.replace(running(B), executions=(waiting,)))

    assert rest.get(f"/jobs/{B}/logs") == {"logs": []}


PATHS_OF_A_JOB = ["", "/plan", "/config", "/status", "/exceptions", "/execution-result", "/attempts", "/logs", "/results", "/results/top"]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("path", PATHS_OF_A_JOB)
def test_an_unknown_job_is_not_found(rest: RestHarness, path: str) -> None:
    """404, with its id, at every path of a job."""
    (error,) = rest.refused(404, "GET", f"/jobs/{JobId('f' * 32)}{path}")

    assert "f" * 32 in error


@pytest.mark.parametrize("path", PATHS_OF_A_JOB)
@pytest.mark.parametrize("job_id", ["x", "a" * 31, "g" * 32, "%2e%2e", "a" * 32 + "%0a"])
def test_what_is_no_job_id_is_refused(rest: RestHarness, path: str, job_id: str) -> None:
    """400, at every path of a job."""
    (error,) = rest.refused(400, "GET", f"/jobs/{job_id}{path}")

    assert "is not a job id" in error


def test_job_ids_may_be_written_in_capitals(rest: RestHarness) -> None:
    """As Flink lets its users do."""
    assert rest.get(f"/jobs/{A.upper()}/status") == {"status": "RUNNING"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/exceptions?maxExceptions=x", "query parameter 'maxExceptions': 'x' is not an integer"),
        ("/exceptions?maxExceptions=-1", "query parameter 'maxExceptions': -1 is not from 0 to"),
        ("/execution-result?wait=soon", "query parameter 'wait': 'soon' is not a duration such as"),
        ("/execution-result?wait=-1s", "query parameter 'wait': '-1s' is not a duration such as"),
        ("/logs?region=one", "query parameter 'region': 'one' is not an integer"),
        ("/logs?region=-1", "query parameter 'region': -1 is not from 0 to"),
        ("/logs?region=0&attempt=", "query parameter 'attempt': '' is not an integer"),
        ("/logs?region=0&attempt=0&offset=9223372036854775808", "query parameter 'offset': 9223372036854775808 is not"),
        ("/logs?offset=5", "query parameter 'offset': needs 'region' and 'attempt'"),
    ],
)
def test_bad_query_values_are_refused(rest: RestHarness, path: str, expected: str) -> None:
    """Which one, and what it should be."""
    (error,) = rest.refused(400, "GET", f"/jobs/{A}{path}")

    assert error.startswith(expected)


def test_only_cancel_is_a_mode(rest: RestHarness) -> None:
    """Flink's `stop` needs savepoints."""
    assert rest.refused(400, "PATCH", f"/jobs/{A}?mode=stop") == [
        "query parameter 'mode': 'stop' is not supported; use 'cancel'"
    ]
    assert rest.dispatcher.cancelled == []


def test_concurrent_failures_are_returned_together(rest: RestHarness) -> None:
    """What else failed before the job ran again stands with the failure that it reacted to, with its own labels."""
    other = structs.replace(FAILURE, message="gone", exception="TaskManagerLost")
    concurrent = ExceptionEntry(failure=other, timestamp_ms=T0 + 92, task_name="priced", labels={"type": "system"})
    first = ExceptionEntry(failure=FAILURE, timestamp_ms=T0 + 90, labels={"type": "user"}, concurrent=(concurrent,))
    rest.dispatcher.put(structs.replace(running(A), exceptions=(first,)))

    (entry,) = rest.get(f"/jobs/{A}/exceptions")["exceptionHistory"]["entries"]

    assert (entry["exceptionName"], entry["failureLabels"]) == ("ZeroDivisionError", {"type": "user"})
    (concurrent_entry,) = entry["concurrentExceptions"]
    assert (
        concurrent_entry["exceptionName"],
        concurrent_entry["timestamp"],
        concurrent_entry["taskName"],
        concurrent_entry["failureLabels"],
    ) == (
        "TaskManagerLost",
        T0 + 92,
        "priced",
        {"type": "system"},
    )
    assert set(concurrent_entry) == set(entry) - {"concurrentExceptions"}
    lines = rest.get(f"/jobs/{A}/attempts")["failures"]
    assert [(line["concurrent"], line["labels"]) for line in lines] == [
        (False, {"type": "user"}),
        (True, {"type": "system"}),
    ]
