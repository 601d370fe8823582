"""What a notebook shows of jobs and results."""

from __future__ import annotations

import sys
from contextlib import closing
from types import ModuleType
from typing import Any, cast

import pytest
from tests.unit.client.answering import serving

from flintlock.api.jobs import ResultColumn, ResultTable
from flintlock.client.connection.handle import JobHandle
from flintlock.client.connection.http import Http
from flintlock.client.connection.results import ResultHandle
from flintlock.client.display.html import MAX_ROWS, result_html
from flintlock.client.running import JobRun
from flintlock.model.ids import JobId

JOB = JobId("0123456789abcdef" * 2)


def shown(value: object) -> str:
    """What a notebook shows of a value."""
    return getattr(value, "_repr_html_")()  # noqa: B009 IPython's name


def test_a_result_is_a_table_whose_texts_are_escaped() -> None:
    table = ResultTable(name="<b>", columns=(ResultColumn(name="<x>"),), rows=(("<script>",), (None,)))
    html = result_html(table)
    assert "<script>" not in html
    assert "<b>&lt;b&gt;</b>" in html
    assert "<th>&lt;x&gt;</th>" in html
    assert "<td>&lt;script&gt;</td>" in html
    assert "<td>NULL</td>" in html
    assert html.endswith("<small>2 rows</small>")


def test_of_a_large_result_the_first_rows_are_shown() -> None:
    rows = tuple(("x" * 1000,) for _ in range(2000))
    html = result_html(ResultTable(name="r", columns=(ResultColumn(name="x"),), rows=rows, truncated=True))
    assert html.count("<td>") == MAX_ROWS
    assert len(html) < MAX_ROWS * 300
    assert html.endswith("<small>50 of 2,000 rows; more exist</small>")


def test_handles_and_runs_show_themselves() -> None:
    regions = [{"region": 0, "steps": ["a"], "attempts": [{"attempt": 0, "state": "SCHEDULED"}]}]
    waiting = {"jobid": JOB, "name": "<j>", "status": "RUNNING", "waits-for": "slots", "regions": regions}
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, waiting)],
        "GET /resources": [(200, {"waiting": [{"jobid": JOB, "request": "a", "slots": 1}], "starting": 0})],
    }
    with serving(answers) as server, closing(Http([server.url])) as http:
        html = shown(JobHandle(http, JOB))
    assert html.startswith(f"<b>&lt;j&gt;</b> <code>{JOB}</code> WAITING<br><small>waits for slots: 1st of 1")
    assert "<td>a</td><td>SCHEDULED</td><td></td><td>waits for slots</td>" in html

    table = ResultTable(name="top", columns=(ResultColumn(name="x"),), rows=((1,),))
    result = ResultHandle("top", lambda: table, lambda: b"")
    assert shown(JobRun(job_id=JOB, name="j", results={"top": result})) == shown(result) == result_html(table)


class Kernel:
    """What IPython has in the kernel of a notebook, as far as it is used: it records what is displayed."""

    def __init__(self) -> None:
        self.kernel = self
        self.shown: list[tuple[str, str]] = []

    def get_ipython(self) -> Kernel:
        return self

    def display(self, value: object, *, display_id: bool) -> Kernel:
        assert display_id
        self.shown.append(("new", shown(value)))
        return self

    def update(self, value: object) -> None:
        self.shown.append(("in place", shown(value)))


def test_waiting_in_a_notebook_shows_the_job_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setitem(sys.modules, "IPython", cast("ModuleType", kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", cast("ModuleType", kernel))

    def answer(status: str, state: str, done: int) -> tuple[int, Any]:
        attempt = {"attempt": 0, "state": state, "metrics": {"tasks-total": 4, "tasks-done": done}}
        regions = [{"region": 0, "steps": ["a"], "attempts": [attempt]}]
        return 200, {"jobid": JOB, "name": "j", "status": status, "regions": regions}

    ended = answer("FINISHED", "FINISHED", 4)
    running = answer("RUNNING", "RUNNING", 1)
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [running, running, answer("RUNNING", "RUNNING", 3), ended],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
        f"GET /jobs/{JOB}/logs": [
            (200, {"logs": [{"region": 0, "attempt": 0, "text": "", "next-offset": 0, "complete": True}]})
        ],
    }
    with serving(answers) as server, closing(Http([server.url])) as http:
        assert JobHandle(http, JOB).wait().id == JOB

    assert [place for place, _ in kernel.shown] == ["new", "in place", "in place"], "what has not changed is not drawn"
    assert 'value="0.250"' in kernel.shown[0][1]
    assert 'value="0.750"' in kernel.shown[1][1]
    assert "FINISHED" in kernel.shown[2][1]


def test_a_wait_with_progress_keeps_its_timeout() -> None:
    answers: dict[str, list[tuple[int, Any]]] = {
        f"GET /jobs/{JOB}/attempts": [(200, {"jobid": JOB, "name": "j", "status": "RUNNING", "regions": []})],
        f"GET /jobs/{JOB}/execution-result": [(200, {"status": {"id": "IN_PROGRESS"}})],
    }
    with serving(answers) as server, closing(Http([server.url])) as http, pytest.raises(TimeoutError, match="keeps"):
        JobHandle(http, JOB).wait(timeout=0, progress=True)
