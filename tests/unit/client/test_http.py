"""The client's HTTP against a real server with prepared responses."""

from __future__ import annotations

import importlib
import json
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.client.answering import job_entry, serving

from flintlock.client.authoring.job import Job
from flintlock.client.authoring.targets import read_target
from flintlock.client.connection.client import Client
from flintlock.client.errors import JobCanceled
from flintlock.model.errors import (
    Conflict,
    DuplicateJob,
    FlintlockError,
    Invalid,
    JobFailed,
    KeyReused,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
)
from flintlock.model.states import JobStatus

JOB = "0123456789abcdef" * 2


def own_versions() -> dict[str, Any]:
    import msgspec

    from flintlock.client.connection.versions import own_versions as own

    return msgspec.to_builtins(own())


def sql_job() -> Job:
    job = Job("small")
    job.result("r", job.sql("one", "SELECT 1 AS x"))
    return job


def python_job() -> Job:
    job = Job("small")
    job.step("one")(_one)
    job.result("r", "one")
    return job


def _one(spark: Any) -> Any:
    return spark.range(1)


def test_a_submission_that_has_to_be_repeated_carries_the_same_key_each_time() -> None:
    answers = {"GET /versions": [(200, own_versions())],
               "POST /jobs": [(503, {"errors": ["no leader"]}), (0, None), (202, {"jobid": JOB})]}  # fmt: skip
    with serving(answers) as server, Client([server.url]) as client:
        handle = client.submit(sql_job())

        posts = [seen for seen in server.seen if seen.method == "POST"]
    assert handle.id == JOB
    assert len(posts) == 3
    assert len({seen.headers["idempotency-key"] for seen in posts}) == 1
    assert len({seen.body for seen in posts}) == 1
    assert posts[0].headers["content-type"] == "application/json"
    assert json.loads(posts[0].body)["steps"]["one"] == {"sql": "SELECT 1 AS x"}


def test_files_are_sent_as_parts_and_read_again_for_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('hello')\n")
    answers = {"GET /versions": [(200, own_versions())],
               "POST /jobs": [(503, {"errors": ["no leader"]}), (202, {"jobid": JOB})]}  # fmt: skip
    with serving(answers) as server, Client([server.url]) as client:
        client.submit(read_target(str(tmp_path / "script.py"), ["a"]), idempotency_key="mine")
        first, second = [seen for seen in server.seen if seen.method == "POST"]

    assert first.headers["idempotency-key"] == "mine"
    for seen in (first, second):
        assert seen.headers["content-type"].startswith("multipart/form-data")
        assert b'name="request"' in seen.body
        assert b'name="file"; filename="script.py"' in seen.body
        assert b"print('hello')" in seen.body


def test_versions_are_compared_before_anything_is_pickled() -> None:
    other = {"GET /versions": [(200, {**own_versions(), "python": "2.7"})], "POST /jobs": [(202, {"jobid": JOB})]}
    unpicklable = Job("locked")
    lock = threading.Lock()

    @unpicklable.step
    def one(spark: object) -> object:
        return lock, spark

    unpicklable.result("r", one)

    with serving(other) as server, Client([server.url]) as client:
        with pytest.raises(Refused, match=r"Python is 3\.\d+ here and 2.7 on the cluster"):
            client.submit(unpicklable)
        assert client.submit(sql_job()).id == JOB
        with pytest.raises(Refused, match="Python"):
            client.submit(python_job())


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Invalid), (409, DuplicateJob), (413, TooLarge), (422, KeyReused), (418, Refused), (500, FlintlockError)],
)
def test_what_a_refused_submission_means(status: int, kind: type[FlintlockError]) -> None:
    answers = {"GET /versions": [(200, own_versions())], "POST /jobs": [(status, {"errors": ["one", "two"]})]}
    with serving(answers) as server, Client([server.url]) as client, pytest.raises(kind) as caught:
        client.submit(sql_job())

    assert "one\ntwo" in caught.value.public
    assert type(caught.value) is kind


def test_what_other_answers_mean() -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/status": [(404, {"errors": ["no job"]}), (200, b"<html>"), (200, {"status": "RUNNING"})],
        f"PATCH /jobs/{JOB}": [(409, b"not json"), (202, {})],
    }
    with serving(answers) as server, Client([server.url]) as client:
        job = client.job(JOB)
        with pytest.raises(NotFound, match="no job"):
            _ = job.status
        with pytest.raises(FlintlockError, match="not one of a Flintlock cluster"):
            _ = job.status
        assert job.status is JobStatus.RUNNING
        with pytest.raises(Conflict, match="409 Conflict"):
            job.cancel()
        job.cancel()
        assert server.seen[-1].path == f"/jobs/{JOB}?mode=cancel"


def test_a_refused_first_connection_fails_immediately() -> None:
    with serving({}) as server:
        url = server.url
    with Client([url]) as client, pytest.raises(Unavailable) as caught:
        client.jobs()

    assert caught.value.unreachable
    assert url in caught.value.public


def test_another_jobmanager_answers_where_the_first_is_gone() -> None:
    with serving({}) as gone:
        dead = gone.url
    with serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server:
        for urls in ([dead, server.url], [f"{dead}, {server.url}"]):
            with Client(urls) as client:
                assert client.jobs() == ()


def test_when_no_address_answers_others_are_discovered() -> None:
    """What the state directory does for a client that outlives every JobManager it began with."""
    with serving({}) as gone:
        dead = gone.url
    with (
        serving({"GET /jobs/overview": [(200, {"jobs": []})]}) as server,
        Client([dead], discover=lambda: [server.url]) as client,
    ):
        assert client.jobs() == ()
        assert client.http.answering == server.url


def test_a_jobmanager_without_a_leader_is_asked_again() -> None:
    """A standby says 502 or 503, and so may what stands before it."""
    answers: list[tuple[int, Any]]
    answers = [
        (503, {"errors": ["no JobManager leads"]}),
        (502, {"errors": ["broken"]}),
        (504, b"late"),
        (200, {"jobs": []}),
    ]
    with serving({"GET /jobs/overview": answers}) as server, Client([server.url]) as client:
        assert client.jobs() == ()
        assert len(server.seen) == 4


def test_where_there_are_several_none_is_let_hold_an_answer_for_long() -> None:
    """It may be frozen; another one can answer."""
    answers = {
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/attempts": [(200, {"jobid": JOB, "name": "small", "status": "FINISHED"})],
    }
    for others, replaceable, hold in (
        (["http://127.0.0.1:1"], False, "10000ms"),
        ([], True, "10000ms"),
        ([], False, "30000ms"),
    ):
        with serving(answers) as server, Client([server.url, *others], replaceable=replaceable) as client:
            client.job(JOB).wait()

            assert server.seen[0].path == f"/jobs/{JOB}/execution-result?wait={hold}"


def test_no_leader_for_longer_than_patience_is_unavailable() -> None:
    with (
        serving({"GET /jobs/overview": [(503, {"errors": ["no leader"]})]}) as server,
        Client([server.url], patience_s=0.1) as client,
        pytest.raises(Unavailable) as caught,
    ):
        client.jobs()

    assert not caught.value.unreachable
    assert "no leader" in caught.value.public


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://h:port", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="is not the address of a cluster"):
        Client([url])


def test_waiting_asks_again_until_the_job_has_ended() -> None:
    going = {"status": {"id": "IN_PROGRESS"}}
    answers = {
        f"GET /jobs/{JOB}/execution-result": [(200, going), (0, None), (200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/attempts": [(200, {"jobid": JOB, "name": "small", "status": "FINISHED"})],
    }
    with serving(answers) as server, Client([server.url]) as client:
        client.job(JOB).wait()

        assert [seen.path for seen in server.seen][:3] == [f"/jobs/{JOB}/execution-result?wait=30000ms"] * 3


def test_failed_and_cancelled_jobs_raise() -> None:
    failure = {"kind": "user code", "message": "division by zero", "exception": "ZeroDivisionError", "step": "priced",
               "frames": [{"file": "revenue.py", "line": 3, "function": "priced", "source": "1 / 0"}],
               "error-class": None, "query-context": None, "stack-trace": "", "jvm-stack-trace": None}  # fmt: skip
    job = {"jobid": JOB, "name": "small", "status": "FAILED", "failure": failure}
    answers = {
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/attempts": [(200, job), (200, {**job, "status": "CANCELED"})],
    }
    with serving(answers) as server, Client([server.url]) as client:
        with pytest.raises(JobFailed) as caught:
            client.job(JOB).wait()
        with pytest.raises(JobCanceled):
            client.job(JOB).wait()

    assert caught.value.job_id == JOB
    assert caught.value.failure is not None
    assert caught.value.failure.step == "priced"
    assert 'File "revenue.py", line 3' in caught.value.public


def test_the_error_of_a_job_lists_every_failed_attempt() -> None:
    failure = {"kind": "user code", "message": "division by zero", "exception": "ZeroDivisionError", "step": "priced"}
    line = {"timestamp": 1_700_000_000_000, "region": 0, "kind": "engine lost", "headline": "the JVM died"}
    job = {"jobid": JOB, "name": "small", "status": "FAILED", "failure": failure,
           "regions": [{"region": 0, "steps": ["priced"], "attempts": []}],
           "failures": [line, {**line, "attempt": 1, "kind": "user code", "headline": "x"}]}  # fmt: skip
    answers = {
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/attempts": [(200, job)],
    }
    with serving(answers) as server, Client([server.url]) as client, pytest.raises(JobFailed) as caught:
        client.job(JOB).wait()

    head, first, second, *rest = caught.value.public.splitlines()
    assert head == f"job 'small' ({JOB}) failed"
    assert first.endswith("attempt 0 at [priced]: engine lost: the JVM died")
    assert second.endswith("attempt 1 at [priced]: user code: x")
    assert rest[0] == "Step 'priced' failed (user code)"


def test_waiting_may_end_before_the_job_does() -> None:
    answers = {f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})]}
    with (
        serving(answers) as server,
        Client([server.url]) as client,
        pytest.raises(TimeoutError, match="it keeps running"),
    ):
        client.job(JOB).wait(timeout=0)


def arrow_stream(columns: dict[str, list[Any]]) -> bytes:
    pa = cast("Any", importlib.import_module("pyarrow"))
    made, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes()


def test_a_result_comes_as_rows_arrow_and_pandas() -> None:
    arrow = arrow_stream({"x": [1, 2], "name": ["a", None]})
    table = {"name": "top", "columns": [{"name": "x", "type": "bigint"}], "rows": [[1]], "truncated": True}
    with (
        serving({f"GET /jobs/{JOB}/results/top": [(200, arrow), (200, table)]}) as server,
        Client([server.url]) as client,
    ):
        result = client.job(JOB).result("top")

        assert [cast("Any", row).asDict() for row in result.rows()] == [{"x": 1, "name": "a"}, {"x": 2, "name": None}]
        assert result.arrow().num_rows == 2
        assert cast("Any", result.pandas())["x"].tolist() == [1, 2]
        assert result.truncated
        assert server.seen[0].headers["accept"] == "application/vnd.apache.arrow.stream"
        assert len(server.seen) == 2


def test_a_job_id_has_its_form() -> None:
    with Client(["http://127.0.0.1:1"]) as client, pytest.raises(Refused, match="is not a job id"):
        client.job("revenue")


def _event(state: str, jid: str = JOB, **tasks: int) -> bytes:
    entry = job_entry(jid, "small", state, **tasks)
    return b"event: job\ndata: " + json.dumps(entry).encode() + b"\n\n"


def test_events_continue_across_a_broken_connection() -> None:
    other = "f" * 32
    streams = [
        (200, _event("RUNNING", other) + _event("CREATED") + _event("RUNNING", running=1)),
        (200, _event("RUNNING", running=1) + _event("RUNNING", finished=1) + _event("FINISHED", finished=1)),
    ]
    answers = {f"GET /jobs/{JOB}/status": [(200, {"status": "RUNNING"})], "GET /events": streams}
    with serving(answers) as server, Client([server.url]) as client:
        seen = [(job.state, job.tasks.running, job.tasks.finished) for job in client.job(JOB).events()]

    assert seen == [
        (JobStatus.CREATED, 0, 0),
        (JobStatus.RUNNING, 1, 0),
        (JobStatus.RUNNING, 0, 1),
        (JobStatus.FINISHED, 0, 1),
    ]


def test_events_of_an_unknown_job_are_refused() -> None:
    answers = {f"GET /jobs/{JOB}/status": [(404, {"errors": ["there is no job"]})]}
    with serving(answers) as server, Client([server.url]) as client, pytest.raises(NotFound):
        next(client.job(JOB).events())
