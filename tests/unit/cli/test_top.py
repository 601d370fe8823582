"""`flintlock top`: the streaming queries of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.client.answering import job_entry, serving

from flintlock.cli.main import run_app

JOB = "0123456789abcdef" * 2
QUERY: dict[str, Any] = {
    "name": "files", "uid": "files-v1", "query-id": "1", "run-id": "2", "active": True, "batch": 7, "started": 10_000,
    "trigger-interval-ms": 1000, "input-rows": 6, "input-rows-per-second": 3.0, "processed-rows-per-second": 2.5,
    "duration-ms": 2000, "durations": {"triggerExecution": 2000, "addBatch": 1900, "queryPlanning": 0}, "backlog": 40,
    "watermark": "2026-01-01T00:00:00.000Z", "state-rows": 9, "state-bytes": 1 << 20, "late-rows": 2,
    "behind-ms": 72_000, "falls-behind": True,
    "sources": [{"description": "rate", "input-rows": 0, "input-rows-per-second": 3.0,
                 "processed-rows-per-second": 2.5, "backlog": 40}],
    "operators": [{"name": "dedupe", "rows": 9, "updated-rows": 1, "memory": 1 << 20, "late-rows": 2}],
}  # fmt: skip
NOTHING: dict[str, Any] = {"durations": {}, "sources": [], "operators": [], "watermark": "", "falls-behind": False}
FAILED: dict[str, Any] = QUERY | NOTHING | {"name": "other", "active": False, "error": "boom", "batch": -1}


def shown(capsys: pytest.CaptureFixture[str], *queries: dict[str, Any], options: tuple[str, ...] = ()) -> str:
    answers = {
        "GET /jobs/overview": [(200, {"jobs": [job_entry(JOB, "clicks", "RUNNING")]})],
        f"GET /jobs/{JOB}/status": [(200, {"status": "RUNNING"})],
        f"GET /jobs/{JOB}/queries": [(200, {"queries": list(queries), "now": 15_000})],
    }
    with serving(answers) as server:
        assert run_app(["top", JOB, *options, "-m", server.url]) == 0
    return capsys.readouterr().out


def test_top_shows_rates_duration_backlog_watermark_and_state_of_each_query(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, QUERY).splitlines()

    assert JOB in lines[0]
    assert lines[2].split() == ["files", "RUNNING", "7", "3.0", "2.5", "2.0", "s", "40", "9", "1.0", "2", "3.0", "s"]
    text = "\n".join(lines)
    assert "files: addBatch 1900 ms" in text
    assert "files: watermark 2026-01-01T00:00:00.000Z" in text
    assert "files < rate: 3.0 rows/s in, 2.5 done, 40 waiting (no rows)" in text
    assert "files = dedupe: 9 rows, 1 updated, 1.0 MB, 2 late" in text


def test_top_marks_a_query_that_falls_behind_and_one_that_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, QUERY, FAILED)
    assert "files falls behind, for 1 min 12 s, 40 waiting" in text
    assert "other has failed: boom" in text
    assert "runs a batch" not in text


def test_top_says_since_when_a_query_has_had_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert "files is idle: its sources have had no rows for 12.0 s" in shown(capsys, QUERY | {"idle-since": 3_000})
    assert "is idle" not in shown(capsys, QUERY)


def test_top_shows_a_batch_that_runs_also_the_first_one(capsys: pytest.CaptureFixture[str]) -> None:
    first = QUERY | {"batch": -1, "running-since": 3_000, "behind-ms": 12_000, "falls-behind": False}
    assert "files runs a batch, for 12.0 s" in shown(capsys, first)


def test_top_of_a_job_without_queries_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no streaming queries" in shown(capsys)
    assert json.loads(shown(capsys, QUERY, options=("--json",)))["queries"][0]["behind-ms"] == 72_000
