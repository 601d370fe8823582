"""What a notebook shows of jobs and results."""

from __future__ import annotations

from contextlib import closing
from typing import Any

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
    assert "<td>a</td><td>SCHEDULED</td><td>waits for slots</td>" in html

    table = ResultTable(name="top", columns=(ResultColumn(name="x"),), rows=((1,),))
    result = ResultHandle("top", lambda: table, lambda: b"")
    assert shown(JobRun(job_id=JOB, name="j", results={"top": result})) == shown(result) == result_html(table)
