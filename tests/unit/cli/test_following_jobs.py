"""`flintlock wait`, `list --watch` and `logs`: commands that follow jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.client.answering import job_entry, serving

from flintlock.cli.main import run_app

JOB = "0123456789abcdef" * 2
OTHER = "fedcba9876543210" * 2
Answers = dict[str, list[tuple[int, Any]]]


def ended(job: str, *polls: str, status: str) -> Answers:
    return {
        f"GET /jobs/{job}/execution-result": [(200, {"status": {"id": poll}}) for poll in polls],
        f"GET /jobs/{job}/status": [(200, {"status": status})],
    }


@pytest.mark.parametrize(("second", "code"), [("FINISHED", 0), ("FAILED", 1), ("CANCELED", 1)])
def test_wait_returns_when_all_jobs_have_ended(capsys: pytest.CaptureFixture[str], second: str, code: int) -> None:
    answers = ended(JOB, "IN_PROGRESS", "COMPLETED", status="FINISHED") | ended(OTHER, "COMPLETED", status=second)
    with serving(answers) as server:
        assert run_app(["wait", JOB, OTHER, "-m", server.url]) == code
        assert capsys.readouterr().out == f"{JOB} FINISHED\n{OTHER} {second}\n"
        assert run_app(["wait", JOB, OTHER, "--json", "-m", server.url]) == code
        jobs = json.loads(capsys.readouterr().out)["jobs"]
        assert jobs == [{"jobid": JOB, "status": "FINISHED"}, {"jobid": OTHER, "status": second}]
        assert run_app(["wait", JOB, "-q", "-m", server.url]) == 0
        assert capsys.readouterr() == ("", "")


def test_wait_says_where_a_job_is_that_takes_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flintlock.client.display.console.SILENCE_S", 0.0)
    monkeypatch.setattr("flintlock.client.display.following.QUEUE_INTERVAL_S", 0.0)
    running: dict[str, Any] = {"jobid": JOB, "name": "daily", "status": "RUNNING", "regions": []}
    polls = ("IN_PROGRESS", "IN_PROGRESS", "COMPLETED", "IN_PROGRESS", "COMPLETED")
    answers: Answers = ended(JOB, *polls, status="FINISHED") | {
        f"GET /jobs/{JOB}/attempts": [(200, running | {"waits-for": "slots"}), (200, running)],
        "GET /resources": [(200, {"waiting": [{"jobid": JOB, "request": "a", "slots": 2}], "starting": 0})],
    }
    with serving(answers) as server:
        assert run_app(["wait", JOB, "-m", server.url]) == 0
        printed = capsys.readouterr()
        assert run_app(["wait", JOB, "-q", "-m", server.url]) == 0
        assert capsys.readouterr() == ("", "")

    assert printed.out == f"{JOB} FINISHED\n"
    first, second = printed.err.splitlines()
    assert first.startswith("daily WAITING, 1st of 1 in the queue; needs 2 slots, waited ")
    assert second.startswith("daily RUNNING, waited ")


def test_wait_gives_up_after_its_timeout(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ended(JOB, "IN_PROGRESS", status="RUNNING")) as server:
        assert run_app(["wait", JOB, "--timeout", "10ms", "-m", server.url]) == 124
        assert capsys.readouterr() == ("", f"{JOB} RUNNING, timed out\n")
        assert run_app(["wait", JOB, "--timeout", "soon", "-m", server.url]) == 2
        assert "--timeout: 'soon' is not a duration such as '10 s'" in capsys.readouterr().err


def test_a_watched_list_is_printed_again_when_it_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal: one table for each change. It ends with the first error."""
    first, second = ({"jobs": [job_entry(JOB, "daily", state)]} for state in ("FAILED", "FINISHED"))
    answers: Answers = {
        "GET /jobs/overview": [(200, first), (200, first), (200, second), (401, {"errors": ["no longer"]})]
    }
    with serving(answers) as server:
        assert run_app(["list", "-a", "--watch", "--interval", "1ms", "-m", server.url]) == 2
        assert run_app(["list", "--watch", "--json", "-m", server.url]) == 2

    tables = capsys.readouterr().out.split("\n\n")
    assert ["FAILED" in table for table in tables] == [True, False]
    assert "FINISHED" in tables[1]


def attempt(number: int, state: str = "FINISHED", *, end_ms: int = 1_700_000_000_000) -> dict[str, Any]:
    return {"attempt": number, "state": state, "taskmanager-id": "tm-1", "timestamps": {state: end_ms}}


def attempts(*regions: list[dict[str, Any]], status: str = "FINISHED") -> dict[str, Any]:
    return {
        "jobid": JOB, "name": "small", "status": status,
        "regions": [{"region": n, "steps": [f"s{n}"], "attempts": made} for n, made in enumerate(regions)],
    }  # fmt: skip


def log(region: int, number: int, text: str, *, offset: int = 0, complete: bool = True) -> tuple[int, Any]:
    end = offset + len(text)
    part = {"region": region, "attempt": number, "taskmanager-id": "tm-1", "offset": offset, "next-offset": end,
            "size": end, "complete": complete, "text": text}  # fmt: skip
    return 200, {"logs": [part]}


def test_the_last_lines_of_a_job_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the latest attempts, as many lines as were asked for together."""
    answers: Answers = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts([attempt(0), attempt(1), attempt(2)]))],
        f"GET /jobs/{JOB}/logs": [log(0, 2, "e\nf\n"), log(0, 1, "b\nc\nd\n")],
    }
    with serving(answers) as server:
        assert run_app(["logs", JOB, "--tail", "4", "-m", server.url]) == 0
        requested = [seen.path.partition("?")[2] for seen in server.seen if "/logs" in seen.path]

    assert capsys.readouterr().out.splitlines() == [
        "==> region 0 (s0), attempt 1 on tm-1 <==", "c", "d", "==> region 0 (s0), attempt 2 on tm-1 <==", "e", "f",
    ]  # fmt: skip
    assert requested == ["region=0&attempt=2&offset=-16384", "region=0&attempt=1&offset=-16384"]


def test_the_last_lines_are_looked_for_further_back_if_they_are_long(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 20_000
    answers: Answers = {
        f"GET /jobs/{JOB}/attempts": [(200, attempts([attempt(0)]))],
        f"GET /jobs/{JOB}/logs": [log(0, 0, "xx\nlast\n", offset=20_000), log(0, 0, f"cut\n{long}\nlast\n", offset=7)],
    }
    with serving(answers) as server:
        assert run_app(["logs", JOB, "-n", "2", "-m", server.url]) == 0

    assert capsys.readouterr().out == f"{long}\nlast\n"


def test_what_follows_the_last_lines_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    running = attempts([attempt(0, "FAILED"), attempt(1, "RUNNING")], status="RUNNING")
    over = attempts([attempt(0, "FAILED"), attempt(1)])
    answers: Answers = {
        f"GET /jobs/{JOB}/attempts": [(200, running), (200, over)],
        f"GET /jobs/{JOB}/logs": [log(0, 1, "a\nb\n", complete=False), log(0, 1, "c\nd\n", offset=4)],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
    }
    with serving(answers) as server:
        assert run_app(["logs", JOB, "-f", "--tail", "1", "-m", server.url]) == 0

    assert [line for line in capsys.readouterr().out.splitlines() if "==>" not in line] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("flags", "requested"),
    [
        ("--attempt 1", ["region=0&attempt=1"]),
        ("--region 1", ["region=1&attempt=0"]),
        ("--since 2023-11-15T00:00:00+00:00", ["region=1&attempt=0"]),
        ("", ["region=0&attempt=0", "region=0&attempt=1", "region=1&attempt=0"]),
    ],
)
def test_attempts_can_be_selected(capsys: pytest.CaptureFixture[str], flags: str, requested: list[str]) -> None:
    job = attempts([attempt(0), attempt(1)], [attempt(0, end_ms=1_800_000_000_000)])
    answers: Answers = {
        f"GET /jobs/{JOB}/attempts": [(200, job)],
        f"GET /jobs/{JOB}/logs": [(200, {"logs": []})],
    }
    with serving(answers) as server:
        assert run_app(["logs", JOB, *flags.split(), "-m", server.url]) == 0
        seen = [seen.path.partition("?")[2].removesuffix("&offset=0") for seen in server.seen if "/logs" in seen.path]

    assert seen == requested
    assert capsys.readouterr().err == f"no output of {'the selected attempts of ' if flags else ''}job {JOB}\n"


@pytest.mark.parametrize(
    ("flags", "answer"),
    [
        ("--attempt 2", "no attempt 2; it has 0, 1, counted from 0"),
        ("--region 1", "no region 1; it has 0, counted from 0"),
    ],
)
def test_an_attempt_that_a_job_does_not_have_is_an_error(
    capsys: pytest.CaptureFixture[str], flags: str, answer: str
) -> None:
    answers: Answers = {f"GET /jobs/{JOB}/attempts": [(200, attempts([attempt(0), attempt(1)]))]}
    with serving(answers) as server:
        assert run_app(["logs", JOB, *flags.split(), "-m", server.url]) == 2

    assert f"job {JOB} has {answer}" in capsys.readouterr().err
