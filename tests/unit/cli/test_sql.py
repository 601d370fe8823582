"""`flintlock sql` and `flintlock result`: rows, printed or written."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.answering import Server, serving

from flintlock.cli.jobs.sql import Prompt
from flintlock.cli.main import run_app
from flintlock.client.connection.versions import own_versions
from flintlock.model.errors import Refused

JOB = "0123456789abcdef" * 2
ROWS = {"name": "result", "columns": [{"name": "x", "type": "int"}], "rows": [[1], [None]]}
FAILURE = {"kind": "analysis", "message": "no such column", "exception": "AnalysisException", "step": "query"}


def answers(status: str = "FINISHED", **more: Any) -> dict[str, list[tuple[int, Any]]]:
    versions = own_versions()
    shown = {"flintlock": versions.flintlock, "python": versions.python, "pyspark": versions.pyspark}
    return {
        "GET /versions": [(200, shown)],
        "POST /jobs": [(202, {"jobid": JOB})],
        f"GET /jobs/{JOB}/attempts": [(200, {"jobid": JOB, "name": "sql", "status": status, "regions": [], **more})],
        f"GET /jobs/{JOB}/results": [(200, {"results": ["result"]})],
        f"GET /jobs/{JOB}/results/result": [(200, ROWS)],
    }


def submitted(server: Server) -> list[dict[str, Any]]:
    return [json.loads(seen.body) for seen in server.seen if seen.method == "POST"]


def test_a_query_prints_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answers()) as server:
        command = ["sql", "SELECT :n AS x", "--param", "n=1", "--limit", "5", "--label", "by=me", "-m", server.url]
        assert run_app(command) == 0
        (job,) = submitted(server)
        assert capsys.readouterr().out.split() == ["x", "──────", "1", "NULL"]
        assert run_app(["sql", "SELECT 1", "--format", "csv", "-m", server.url]) == 0
        assert capsys.readouterr().out == 'x\n1\n""\n'

    assert job["steps"]["query"]["sql"] == "SELECT :n AS x"
    assert job["steps"]["result"]["result"] == {"limit": 5}
    assert (job["params"], job["labels"]) == ({"n": 1}, {"by": "me"})


def test_statements_come_from_a_file_or_a_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One job for each; nothing after the first failure."""
    (tmp_path / "two.sql").write_text("-- first\nSELECT 1;\nSELECT ';'")
    with serving(answers()) as server:
        assert run_app(["sql", "-f", str(tmp_path / "two.sql"), "-m", server.url]) == 0
        monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 3;"))
        assert run_app(["sql", "-m", server.url]) == 0
        queries = [job["steps"]["query"]["sql"] for job in submitted(server)]
    assert queries == ["-- first\nSELECT 1", "SELECT ';'", "SELECT 3"]
    with serving(answers("FAILED", failure=FAILURE)) as server:
        assert run_app(["sql", "SELECT y; SELECT 1", "-m", server.url]) == 1
        assert len(submitted(server)) == 1


@pytest.mark.parametrize("options", [("-o", "rows.csv"), ("-o", "rows", "--format", "csv"), ("--format", "arrow")])
def test_a_file_has_the_rows_of_one_statement(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Those of each statement would replace those of the one before."""
    monkeypatch.chdir(tmp_path)
    with serving(answers()) as server:
        assert run_app(["sql", "SELECT 1; SELECT 2", *options, "-m", server.url]) == 2
        assert "and there are 2 statements: give one" in capsys.readouterr().err
        assert run_app(["sql", "SELECT 1", "-o", "rows.xls", "-m", server.url]) == 2
        assert "does not say which format" in capsys.readouterr().err
        assert server.seen == []
        if "-o" in options:
            assert run_app(["sql", "SELECT 1;", *options, "-m", server.url]) == 0
            assert Path(options[1]).read_text() == 'x\n1\n""\n'


def test_the_prompt_writes_no_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flintlock.cli.jobs.sql.on_terminal", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    with serving({}) as server:
        assert run_app(["sql", "-o", "rows.csv", "-m", server.url]) == 2
    assert "at the prompt each statement has rows" in capsys.readouterr().err


def test_a_query_that_waits_says_so_off_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else is printed: most queries end within moments."""
    monkeypatch.setattr("flintlock.client.display.following.QUEUE_INTERVAL_S", 0.0)
    waiting: dict[str, Any] = {"jobid": JOB, "name": "sql", "status": "RUNNING", "regions": [], "waits-for": "slots"}
    more = answers()
    more[f"GET /jobs/{JOB}/attempts"] = [(200, waiting), (200, waiting), *more[f"GET /jobs/{JOB}/attempts"]]
    more[f"GET /jobs/{JOB}/execution-result"] = [(200, {"status": {"id": "IN_PROGRESS"}})]
    more["GET /resources"] = [(200, {"waiting": [{"jobid": JOB, "request": "a", "slots": 1}], "starting": 0})]
    with serving(more) as server:
        assert run_app(["sql", "SELECT 1", "--format", "csv", "-m", server.url]) == 0
    printed = capsys.readouterr()
    assert printed.out == 'x\n1\n""\n'
    assert printed.err == "sql: WAITING, 1st of 1 in the queue; needs 1 slot\n"


def test_a_failed_query_prints_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(answers("FAILED", failure=FAILURE)) as server:
        assert run_app(["sql", "SELECT y", "-m", server.url]) == 1
    assert "no such column" in capsys.readouterr().err


def test_there_has_to_be_a_statement(capsys: pytest.CaptureFixture[str]) -> None:
    with serving({}) as server:
        assert run_app(["sql", "/* nothing */", "-m", server.url]) == 2
        assert run_app(["sql", "SELECT 1", "-f", "x.sql", "-m", server.url]) == 2
        assert run_app(["sql", "-f", "nowhere.sql", "-m", server.url]) == 2
    printed = capsys.readouterr().err
    assert "there is no statement to run" in printed
    assert "give either a query or --file" in printed
    assert "'nowhere.sql' cannot be read" in printed


def typing(*lines: str | type[BaseException]) -> Callable[[str], str]:
    """Return what types these lines at a prompt, and then leaves."""
    left = iter([*lines, EOFError])

    def read(_: str) -> str:
        line = next(left)
        if isinstance(line, str):
            return line
        raise line

    return read


def test_a_statement_at_the_prompt_ends_with_a_semicolon() -> None:
    run: list[str] = []
    assert Prompt(run.append, typing("SELECT", "  1", "; SELECT 2; SELECT", "3;", "quit", "SELECT 4;")).loop() == 0
    assert run == ["SELECT\n  1", "SELECT 2", "SELECT\n3"]


def test_an_error_does_not_end_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does Ctrl-C, which drops what was typed, or cancels what runs."""
    run: list[str] = []

    def fail(statement: str) -> None:
        run.append(statement)
        if "bad" in statement:
            raise Refused("that is wrong")
        if "long" in statement:
            raise KeyboardInterrupt

    prompt = Prompt(fail, typing("bad; not run;", "half", KeyboardInterrupt, "long;", "good;"))
    assert prompt.loop() == 0
    assert run == ["bad", "long", "good"]
    assert "error: that is wrong" in capsys.readouterr().err


def test_a_result_is_written_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    with serving(answers()) as server:
        assert run_app(["result", JOB, "-o", str(path), "-m", server.url]) == 0
        assert path.read_text() == '{"x":1}\n{"x":null}\n'
        assert run_app(["result", JOB, "--format", "csv", "-o", str(path), "-m", server.url]) == 0
        assert path.read_text() == 'x\n1\n""\n'
        assert run_app(["result", JOB, "-o", str(tmp_path / "rows.xls"), "-m", server.url]) == 2
        assert run_app(["result", JOB, "--json", "-m", server.url]) == 0
    printed = capsys.readouterr()
    assert "does not say which format" in printed.err
    assert json.loads(printed.out)["rows"] == [[1], [None]]
