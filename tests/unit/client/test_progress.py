from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from flintlock.api.jobs import JobAttempts, LogPart, ResultColumn, ResultTable, TextSpan
from flintlock.client.display.console import (
    LiveDisplay,
    PlainDisplay,
    SilentDisplay,
    display_for,
    job_table,
    result_table,
)
from flintlock.client.display.progress import changes, job_line, region_rows


def attempt(state: str, number: int = 0, **more: Any) -> dict[str, Any]:
    return {"attempt": number, "state": state, "taskmanager-id": "tm-1", "slots": 2, **more}


def looked_at(status: str, *regions: tuple[str, list[dict[str, Any]]], **more: Any) -> JobAttempts:
    """Return an answer of `/attempts`: region 0 materialises "clean", the others read it."""
    return msgspec.convert(
        {
            "jobid": "a" * 32,
            "name": "revenue",
            "status": status,
            "regions": [
                {
                    "region": number,
                    "steps": steps.split(),
                    "attempts": attempts,
                    "reads": ["clean"] if number else [],
                    "materialises": [] if number else ["clean"],
                }
                for number, (steps, attempts) in enumerate(regions)
            ],
            **more,
        },
        JobAttempts,
    )


FAILURE: dict[str, Any] = {
    "kind": "user code", "message": "division by zero\nmore", "exception": "ZeroDivisionError", "step": "priced",
    "frames": [], "error-class": None, "query-context": None, "stack-trace": "", "jvm-stack-trace": None,
}  # fmt: skip


def test_a_running_region_shows_stages_tasks_and_rows() -> None:
    metrics = {"stages-done": 1, "stages-total": 3, "tasks-done": 10, "tasks-total": 40, "write-records": 1234567}
    job = looked_at(
        "RUNNING",
        ("orders clean", [attempt("RUNNING", metrics=metrics, activity="writing out")]),
        ("priced out", []),
    )

    first, second = region_rows(job)

    assert (first.title, first.state) == ("orders, clean", "RUNNING")
    assert first.detail == "writing out, stages 1/3, tasks 10/40, 1,234,567 rows written"
    assert first.fraction == 0.25
    assert (second.state, second.detail, second.fraction) == ("CREATED", "waits for clean", None)


def test_what_a_region_waits_for() -> None:
    finished = ("orders clean", [attempt("FINISHED", outputs=[{"step": "clean", "rows": 1, "bytes": 9}])])
    job = looked_at("RUNNING", finished, ("priced out", [attempt("SCHEDULED")]))

    assert [row.detail for row in region_rows(job)] == ["clean: 1 row", "waits for slots"]
    assert [row.detail for row in region_rows(looked_at("CANCELED", ("a", [])))] == [""]


def test_second_attempts_and_failures_are_shown() -> None:
    job = looked_at("RESTARTING", ("priced", [attempt("FAILED"), attempt("FAILED", 1, failure=FAILURE)]))

    assert region_rows(job)[0].detail == "attempt 1, step 'priced': ZeroDivisionError: division by zero"


def test_only_changes_of_state_are_printed() -> None:
    deployed = looked_at("RUNNING", ("a", [attempt("DEPLOYING")]), ("b", []))
    running = looked_at("RUNNING", ("a", [attempt("RUNNING")]), ("b", []))
    working = looked_at("RUNNING", ("a", [attempt("RUNNING", activity="writing a")]), ("b", []))
    published = {"publishing": {"done": 1, "total": 3}}
    publishing = looked_at("RUNNING", ("a", [attempt("FINISHED")]), ("b", []), **published)
    ended = looked_at("FINISHED", ("a", [attempt("FINISHED")]), ("b", [attempt("FINISHED")]))

    assert changes(None, deployed) == ["revenue: RUNNING", "  [a] DEPLOYING: on tm-1"]
    assert changes(deployed, running) == ["  [a] RUNNING"]
    assert changes(running, working) == []
    assert changes(working, publishing) == ["  [a] FINISHED", "  publishing 1/3 files"]
    assert changes(publishing, ended) == ["revenue: FINISHED", "  [b] FINISHED"]
    assert changes(ended, ended) == []


def test_a_restart_is_a_change_though_the_state_is_the_same() -> None:
    first = looked_at("RUNNING", ("a", [attempt("RUNNING")]))
    again = looked_at("RUNNING", ("a", [attempt("FAILED"), attempt("RUNNING", 1)]))

    assert changes(first, again) == ["  [a] FAILED: attempt 0", "  [a] RUNNING: attempt 1"]
    assert changes(again, again) == []


def test_attempts_that_failed_between_two_looks_are_shown() -> None:
    first = looked_at("RUNNING", ("a", [attempt("FAILED", failure=FAILURE)]))
    later = looked_at(
        "RUNNING", ("a", [attempt("FAILED"), attempt("FAILED", 1, failure=FAILURE), attempt("RUNNING", 2)])
    )

    assert changes(first, later) == [
        "  [a] FAILED: attempt 1, step 'priced': ZeroDivisionError: division by zero",
        "  [a] RUNNING: attempt 2",
    ]


def test_a_job_that_waits_is_shown_as_waiting_with_its_place_in_the_queue() -> None:
    waiting = looked_at("RUNNING", ("a", [attempt("SCHEDULED")]), **{"waits-for": "slots"})
    running = looked_at("RUNNING", ("a", [attempt("RUNNING")]))
    printed, now = io.StringIO(), [0.0]
    display = PlainDisplay(printed, io.StringIO(), clock_s=lambda: now[0])

    display.update(waiting)
    assert not printed.getvalue()  # most jobs wait for milliseconds
    display.update(waiting, "2nd of 2 in the queue; needs 1 slot")
    display.update(waiting, "2nd of 2 in the queue; needs 1 slot")
    display.update(waiting, "1st of 1 in the queue; needs 1 slot")
    now[0] = 35.0
    display.update(waiting, "1st of 1 in the queue; needs 1 slot")
    display.update(running)

    assert printed.getvalue().splitlines() == [
        "revenue: WAITING, 2nd of 2 in the queue; needs 1 slot",
        "revenue: WAITING, 1st of 1 in the queue; needs 1 slot",
        "revenue WAITING, 0 of 1 region finished, 1st of 1 in the queue; needs 1 slot, after 35.0 s",
        "revenue: RUNNING",
        "  [a] RUNNING",
    ]
    assert "revenue WAITING  1.0 s  3rd of 3" in drawn(job_table(waiting, 1.0, "3rd of 3"))


def test_a_display_off_a_terminal_is_not_silent_for_longer_than_half_a_minute() -> None:
    printed, now = io.StringIO(), [0.0]
    display = PlainDisplay(printed, io.StringIO(), clock_s=lambda: now[0])
    job = looked_at("RUNNING", ("a", [attempt("RUNNING")]))
    for seconds in (0, 10, 29, 31, 40, 62, 3700):
        now[0] = float(seconds)
        display.update(job)

    assert printed.getvalue().splitlines()[2:] == [
        "revenue RUNNING, 0 of 1 region finished, after 31.0 s",
        "revenue RUNNING, 0 of 1 region finished, after 1 min 02 s",
        "revenue RUNNING, 0 of 1 region finished, after 1 h 01 min",
    ]


def test_the_line_of_a_job() -> None:
    job = looked_at("RUNNING", ("a", [attempt("FINISHED")]), ("b", []), publishing={"done": 0, "total": 1})

    assert job_line(job) == "revenue RUNNING, 1 of 2 regions finished, publishing 0/1 file"
    assert job_line(looked_at("INITIALIZING")) == "revenue INITIALIZING"


def drawn(renderable: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue,reportUnknownVariableType]


def test_the_table_of_a_job_fits_its_terminal() -> None:
    long = " ".join(f"step_{number}" for number in range(9))
    job = looked_at("RUNNING", (long, [attempt("RUNNING", activity="x" * 200)]), publishing={"done": 2, "total": 7})

    lines = drawn(job_table(job, 1.25), width=80).splitlines()

    assert lines[0].rstrip() == "revenue RUNNING  1.2 s"
    assert lines[1].startswith("  step_0, step_1 … step_8")
    assert "RUNNING" in lines[1]
    assert lines[2].rstrip() == "  publishing 2/7 files"
    assert all(len(line) <= 80 for line in lines)


def test_a_result_is_shown_as_spark_shows_it() -> None:
    table = ResultTable(
        name="top",
        columns=(ResultColumn(name="city", type="string"), ResultColumn(name="[n]", type="decimal(10,2)")),
        rows=(("[bold]Paris", "1.50"), (None, None), ({"a": [1]}, True)),
        truncated=True,
    )
    text = drawn(result_table(table))

    assert text.startswith("top\n")
    assert text.endswith("(the first 3 rows; more exist)\n")  # on one line, however narrow the table is
    assert "[n]" in text
    assert "[bold]Paris" in text
    assert "NULL" in text
    assert '{"a": [1]}' in text


def test_off_a_terminal_lines_go_to_stderr_and_output_to_stdout() -> None:
    progress, output = io.StringIO(), io.StringIO()
    display = display_for(Console(file=progress), output)
    assert isinstance(display, PlainDisplay)

    display.update(looked_at("RUNNING", ("a", [attempt("RUNNING")])))
    display.output("hello\n")
    display.update(looked_at("RUNNING", ("a", [attempt("RUNNING", activity="more")])))
    display.close()

    assert progress.getvalue() == "revenue: RUNNING\n  [a] RUNNING\n"
    assert output.getvalue() == "hello\n"


def test_on_a_terminal_the_table_is_drawn_and_output_stays_apart() -> None:
    progress, output = io.StringIO(), io.StringIO()
    display = display_for(Console(file=progress, force_terminal=True, width=80), output)
    assert isinstance(display, LiveDisplay)

    display.update(looked_at("RUNNING", ("a", [attempt("RUNNING")])))
    display.output("hello\n")
    display.pause()
    display.update(looked_at("FINISHED", ("a", [attempt("FINISHED")])))
    display.close()

    assert "FINISHED" in progress.getvalue()
    assert "hello" not in progress.getvalue()
    assert output.getvalue() == "hello\n"


def test_what_a_program_writes_to_standard_error_is_not_in_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    part = LogPart(region=0, attempt=0, next_offset=12, text="a,1\nwarn\nb,2", stderr=(TextSpan(start=4, end=9),))
    assert list(part.streams()) == [("a,1\n", False), ("warn\n", True), ("b,2", False)]
    output, progress = io.StringIO(), io.StringIO()
    for display in (PlainDisplay(progress, output), SilentDisplay(output)):
        for text, error in part.streams():
            display.output(text, error=error)
        display.close()

    assert output.getvalue() == "a,1\nb,2" * 2
    assert progress.getvalue() == "warn\n"
    assert capsys.readouterr().err == "warn\n"
