"""`flintlock quarantine`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.client.answering import serving

from flintlock.cli.main import run_app

JOB = "0123456789abcdef" * 2

ENTRY: dict[str, Any] = {
    "jid": JOB, "name": "revenue", "reason": "its artifact is gone", "since": 1_000, "readable": True,
    "directories": ["out/.flintlock-a"], "artifacts": ["lib.zip"],
}  # fmt: skip


def test_quarantined_jobs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"GET /quarantine": [(200, {"jobs": [ENTRY]})]}) as server:
        assert run_app(["quarantine", "list", "-m", server.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["JOB", "NAME", "SINCE", "REASON"]
        assert lines[1].startswith(f"{JOB}  revenue")
        assert lines[1].endswith("its artifact is gone")
        assert run_app(["quarantine", "list", "--json", "-m", server.url]) == 0
        assert json.loads(capsys.readouterr().out)["jobs"] == [ENTRY]


def test_an_empty_quarantine_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({"GET /quarantine": [(200, {"jobs": []})]}) as server:
        assert run_app(["quarantine", "list", "-m", server.url]) == 0
    assert capsys.readouterr().out == "no job is quarantined\n"


def test_a_quarantined_job_is_shown_with_what_is_kept_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({f"GET /quarantine/{JOB}": [(200, ENTRY)]}) as server:
        assert run_app(["quarantine", "show", JOB, "-m", server.url]) == 0
    shown = capsys.readouterr().out
    for text in ("revenue", "its artifact is gone", "can be read", "lib.zip", "out/.flintlock-a"):
        assert text in shown


def test_a_quarantined_job_is_put_back_or_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"POST /quarantine/{JOB}/retry": [(202, {}), (409, {"errors": ["it is quarantined again: still gone"]})],
        f"DELETE /quarantine/{JOB}": [(202, {})],
    }
    with serving(answers) as server:
        assert run_app(["quarantine", "retry", JOB, "-m", server.url]) == 0
        assert capsys.readouterr().out == f"{JOB} runs again\n"
        assert run_app(["quarantine", "retry", JOB, "-m", server.url]) == 2
        assert "still gone" in capsys.readouterr().err
        assert run_app(["quarantine", "drop", JOB, "-m", server.url]) == 0
        assert capsys.readouterr().out == f"{JOB} was dropped\n"
