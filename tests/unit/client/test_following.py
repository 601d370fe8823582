from __future__ import annotations

import io
from contextlib import closing
from typing import Any

import pytest
from tests.unit.client.answering import serving

from flintlock.client.connection.handle import JobHandle
from flintlock.client.connection.http import Http
from flintlock.client.display import following
from flintlock.client.display.console import PlainDisplay, SilentDisplay
from flintlock.client.display.following import OutputReader, follow
from flintlock.model.ids import JobId

JOB = JobId("0123456789abcdef" * 2)
FINISHED = {
    "jobid": JOB,
    "name": "hello",
    "status": "FINISHED",
    "regions": [{"region": 0, "attempts": [{"attempt": 0, "state": "FINISHED", "taskmanager-id": "tm-0"}]}],
}


def log(text: str, offset: int, *, complete: bool) -> dict[str, Any]:
    end = offset + len(text)
    part = {"region": 0, "attempt": 0, "offset": offset, "next-offset": end, "size": end, "complete": complete}
    return {"logs": [{**part, "text": text}]}


def test_what_a_job_printed_last_is_shown_though_the_job_has_ended_before() -> None:
    """A job ends before its process does, and what the process printed is captured until it has ended."""
    answers = {
        f"GET /jobs/{JOB}/attempts": [(200, FINISHED)],
        f"GET /jobs/{JOB}/logs": [
            (200, log("", 0, complete=False)),
            (200, log("HELLO", 0, complete=False)),
            (200, log(" OUT\n", 5, complete=True)),
        ],
    }
    printed = io.StringIO()
    with serving(answers) as server, closing(Http([server.url])) as http:
        handle = JobHandle(http, JOB)
        follow(handle, SilentDisplay(printed), OutputReader(handle), tick_s=0.01)

    assert printed.getvalue() == "HELLO OUT\n"


def test_output_whose_end_cannot_be_read_is_said_to_be_incomplete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job is not followed for ever, and what is missing is not dropped in silence."""
    answers = {
        f"GET /jobs/{JOB}/attempts": [(200, FINISHED)],
        f"GET /jobs/{JOB}/logs": [(200, log("HELLO", 0, complete=False)), (200, log("", 5, complete=False))],
    }
    monkeypatch.setattr(following, "LAST_OUTPUT_S", 0.05)
    printed = io.StringIO()
    with serving(answers) as server, closing(Http([server.url])) as http:
        handle = JobHandle(http, JOB)
        follow(handle, SilentDisplay(printed), OutputReader(handle), tick_s=0.01)

    assert printed.getvalue() == "HELLO"
    assert capsys.readouterr().err == (
        f"\n[flintlock: not all of the output could be read; what there is: flintlock logs {JOB}]\n"
    )


def test_output_is_not_awaited_from_an_attempt_that_was_cancelled_before_it_had_a_taskmanager(
    capsys: pytest.CaptureFixture[str],
) -> None:
    never_deployed = {"region": 1, "attempts": [{"attempt": 0, "state": "CANCELED"}]}
    failed = {**FINISHED, "status": "FAILED", "regions": [*FINISHED["regions"], never_deployed]}
    answers = {
        f"GET /jobs/{JOB}/attempts": [(200, failed)],
        f"GET /jobs/{JOB}/logs": [(200, log("HELLO\n", 0, complete=True))],
    }
    printed = io.StringIO()
    with serving(answers) as server, closing(Http([server.url])) as http:
        handle = JobHandle(http, JOB)
        follow(handle, SilentDisplay(printed), OutputReader(handle), tick_s=0.01)

    assert (printed.getvalue(), capsys.readouterr().err) == ("HELLO\n", "")


def test_a_waiting_jobs_place_in_the_queue_is_requested_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = {**FINISHED, "status": "RUNNING", "waits-for": "slots", "regions": []}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, waiting), (200, waiting), (200, {**FINISHED, "regions": []})],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
        "GET /resources": [(200, {"waiting": [{"jobid": JOB, "request": "a", "slots": 1}], "starting": 0})],
    }
    monkeypatch.setattr(following, "QUEUE_INTERVAL_S", 0.0)
    printed = io.StringIO()
    with serving(answers) as server, closing(Http([server.url])) as http:
        handle = JobHandle(http, JOB)
        follow(handle, PlainDisplay(printed, printed), OutputReader(handle), tick_s=0.01)

    assert printed.getvalue().splitlines()[0] == "hello: WAITING, 1st of 1 in the queue; needs 1 slot"
