"""Submitting from Python: what a caller sets, and the results that come back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.client.answering import serving

from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import Overrides
from flintlock.client.connection.client import Client
from flintlock.client.connection.versions import own_versions
from flintlock.client.running import JobRun
from flintlock.model.errors import Invalid, NotFound, Refused
from flintlock.model.ids import JobId

JOB = "0123456789abcdef" * 2
FINISHED: dict[str, Any] = {"jobid": JOB, "name": "daily", "status": "FINISHED", "regions": []}
TABLE = {"name": "result", "columns": [{"name": "x", "type": "int"}], "rows": [[7]]}


def daily() -> Job:
    job = Job("daily", params={"day": "2026-01-01", "n": 1, "flag": False}, labels={"team": "core"})
    job.result("top", job.sql("one", "SELECT :n AS x"))
    return job


def answers(*names: str) -> dict[str, list[tuple[int, Any]]]:
    versions = own_versions()
    shown = {"flintlock": versions.flintlock, "python": versions.python, "pyspark": versions.pyspark}
    return {
        "GET /versions": [(200, shown)],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "COMPLETED"}})],
        f"GET /jobs/{JOB}/attempts": [(200, FINISHED)],
        f"GET /jobs/{JOB}/results": [(200, {"results": names})],
        f"GET /jobs/{JOB}/results/result": [(200, TABLE)],
    }


def test_a_caller_sets_parameters_name_labels_and_settings() -> None:
    with serving(answers()) as server, Client([server.url]) as client:
        handle = client.submit(
            daily(), params={"n": 3, "flag": True}, name="daily-3", labels={"run": 3}, parallelism=2,
            config={"job.priority": 5},
        )  # fmt: skip
        document = json.loads(server.seen[-1].body)

    assert (handle.id, handle.name) == (JOB, "daily-3")
    assert document["params"] == {"day": "2026-01-01", "n": 3, "flag": True}
    assert document["labels"] == {"team": "core", "run": "3"}
    assert (document["name"], document["parallelism"]) == ("daily-3", 2)
    assert document["config"] == {"job.priority": "5"}


def test_a_parameter_that_the_job_does_not_have_is_refused() -> None:
    with serving(answers()) as server, Client([server.url]) as client:
        with pytest.raises(Invalid, match="the job has no parameter 'dya'; did you mean 'day'"):
            client.submit(daily(), params={"dya": "2026-01-02"})
        with pytest.raises(Refused, match="give either overrides or single values"):
            client.submit(daily(), params={"n": 2}, overrides=Overrides(name="x"))
        with pytest.raises(Refused, match="none for a job that is packaged already"):
            client.submit(daily().package(), params={"n": 2})


def test_the_only_result_needs_no_name() -> None:
    with serving(answers("result")) as server, Client([server.url]) as client:
        assert client.submit(daily()).wait().result().table.rows == ((7,),)
    several = "the job has several results: name one of a, b"
    with serving(answers("a", "b")) as server, Client([server.url]) as client, pytest.raises(Refused, match=several):
        client.job(JOB).result()
    with serving(answers()) as server, Client([server.url]) as client, pytest.raises(NotFound):
        client.job(JOB).result()
    run = JobRun(job_id=JobId(JOB), name="j", results={})
    with pytest.raises(KeyError, match="name one of the results; there are: none"):
        run.result()
    assert run.id == JOB


def test_a_query_returns_its_rows() -> None:
    with serving(answers("result")) as server, Client([server.url]) as client:
        assert client.sql("SELECT :n AS x", params={"n": 7}, limit=5).table.rows == ((7,),)
        (document,) = [json.loads(seen.body) for seen in server.seen if seen.method == "POST"]

    assert document["params"] == {"n": 7}
    assert document["steps"]["result"]["result"] == {"limit": 5}
