"""The streaming examples, as their first lines say: every row that is due is there, once.

Each runs twice: undisturbed, and stopped with a savepoint in between, on the same clicks. Both have to write the same.
"""

from __future__ import annotations

import importlib.util
import json
import sqlite3
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet
import pytest
from pyspark.sql import Row
from tests.cluster.commands import flintlock
from tests.cluster.processes import ROOT, Processes, until

from flintlock.testing import rest_requests

EXAMPLES = ROOT / "examples"
MINUTES = 25
STOPPED_AFTER = 14


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[datetime, str, str]]]:
    """The directory with the files, and the clicks in them: time, user, page."""
    generated = _module("streaming_clicks")
    directory = tmp_path_factory.mktemp("clicks")
    generated.write(directory, MINUTES)
    rows = [
        (datetime.fromisoformat(click["ts"]), click["user"], click["page"])
        for file in sorted(directory.glob("*.json"))
        for click in map(json.loads, file.read_text().splitlines())
    ]
    assert len(rows) > 100
    return directory, rows


def _run(standing: Processes, name: str, clicks: Path, out: Path, cwd: Path) -> None:
    _command(standing, "run", f"{EXAMPLES / name}.py:job", *_params(name, clicks, out), cwd=cwd)


def _run_with_a_stop(standing: Processes, name: str, out: Path, cwd: Path, *more: str) -> dict[str, Any]:
    """Run it on the first minutes until it is stopped, and on all of them from there; return the savepoint of the stop.

    At first it waits for clicks, as in production: it has another trigger. `more` is for the job that is restored.
    """
    clicks = cwd / "clicks"
    generated = _module("streaming_clicks")
    generated.write(clicks, STOPPED_AFTER)
    text = (EXAMPLES / f"{name}.py").read_text()
    waiting = text.replace('{"availableNow": True}', '{"processingTime": "1 second"}')
    assert waiting != text
    (cwd / f"{name}_waiting.py").write_text(waiting)

    target = f"{cwd / name}_waiting.py:job"
    stopped = _command(standing, "run", "-d", target, *_params(name, clicks, out), cwd=cwd).split()[-1]
    read = sum(len(file.read_text().splitlines()) for file in clicks.glob("*.json"))
    until("all clicks of the first minutes", lambda: _input_rows(standing, stopped) >= read or None, 240)
    savepoint = _command(standing, "stop", stopped, cwd=cwd).split()[-1]
    generated.write(clicks, MINUTES)
    target = f"{EXAMPLES / name}.py:job"
    restored = ("--json", "-s", savepoint, *more)
    ran = json.loads(_command(standing, "run", *restored, target, *_params(name, clicks, out), cwd=cwd))
    checkpoints = rest_requests.get(f"{standing.url}/jobs/{ran['jobid']}/checkpoints").json()
    queries = rest_requests.get(f"{standing.url}/jobs/{ran['jobid']}/queries").json()["queries"]
    made = rest_requests.get(f"{standing.url}/jobs/{stopped}/checkpoints").json()["latest"]["savepoint"]

    inspected = json.loads(_command(standing, "savepoint", "inspect", savepoint, "--json", cwd=cwd))
    (query,) = inspected["queries"]
    assert inspected["job_id"] == stopped
    assert checkpoints["counts"]["restored"] == 1
    assert checkpoints["latest"]["restored"]["id"] == query["batch"] + 1, "it goes on after the last batch of the other"
    assert checkpoints["latest"]["restored"]["external_path"] == made["external_path"] == savepoint
    assert [shown["query-id"] == query["query_id"] for shown in queries] == ["--claim" in more]
    return inspected


def _input_rows(standing: Processes, job_id: str) -> int:
    found = rest_requests.get(f"{standing.url}/jobs/{job_id}/checkpoints").json()
    return sum(batch["input-rows"] for batch in found["history"])


def _params(name: str, clicks: Path, out: Path) -> tuple[str, ...]:
    params = {"clicks": clicks} if name == "streaming_upsert" else {"clicks": clicks, "out": out}
    return tuple(part for key, value in params.items() for part in ("--param", f"{key}={value}"))


def _command(standing: Processes, verb: str, *arguments: str, cwd: Path) -> str:
    where = () if (verb, arguments[0]) == ("savepoint", "inspect") else ("-m", standing.url)
    ran = flintlock(verb, *where, *arguments, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def _written(out: Path) -> list[Path]:
    """The files that the log of the sink names: others are of attempts that were not committed."""
    log = [*(out / "_spark_metadata").glob("[0-9]*")]
    lines = [line for file in log for line in file.read_text().splitlines()[1:]]
    return [Path(json.loads(line)["path"].removeprefix("file://")) for line in lines]


def test_windows_are_written_once_when_the_watermark_has_passed_them(
    standing: Processes, tmp_path: Path, clicks: tuple[Path, list[tuple[datetime, str, str]]]
) -> None:
    directory, rows = clicks
    _run(standing, "streaming_windows", directory, tmp_path / "out", tmp_path)
    saved = _run_with_a_stop(standing, "streaming_windows", tmp_path / "stopped", tmp_path)

    due = max(at for at, _, _ in rows) - timedelta(minutes=2)
    expected = Counter((at.replace(second=0), page) for at, _, page in rows if _end_of_minute(at) <= due)
    for out in (tmp_path / "out", tmp_path / "stopped"):
        tables: list[Any] = [pyarrow.parquet.read_table(file) for file in _written(out)]
        found: list[dict[str, Any]] = [row for table in tables for row in table.to_pylist()]
        assert Counter({(_utc(row["minute"]), row["page"]): row["clicks"] for row in found}) == expected
        assert len(found) == len(expected)
    assert sum(state["rows"] for state in saved["states"]) > 0, "windows were open when it was stopped"


def _utc(found: object) -> datetime:
    """A timestamp of Parquet, which has no time zone there."""
    return datetime.fromisoformat(str(found)).replace(tzinfo=UTC)


def _end_of_minute(at: datetime) -> datetime:
    return at.replace(second=0) + timedelta(minutes=1)


def test_sessions_are_written_once_when_their_user_is_away(
    standing: Processes, tmp_path: Path, clicks: tuple[Path, list[tuple[datetime, str, str]]]
) -> None:
    """Values and timers of `transformWithState` are in the savepoint, in column families of their own."""
    directory, rows = clicks
    _run(standing, "streaming_sessions", directory, tmp_path / "out", tmp_path)
    _run_with_a_stop(standing, "streaming_sessions", tmp_path / "stopped", tmp_path)

    gap_ms = _module("streaming_sessions").GAP_MS
    watermark_ms = int((max(at for at, _, _ in rows) - timedelta(minutes=1)).timestamp() * 1000)
    expected = sorted(session for session in _sessions(rows, gap_ms) if session[2] + gap_ms <= watermark_ms)
    assert len(expected) > 5
    assert any(start < _at_ms(STOPPED_AFTER) < end for _, start, end, _ in expected), "one was open meanwhile"
    for out in (tmp_path / "out", tmp_path / "stopped"):
        lines = [line for file in _written(out) for line in file.read_text().splitlines()]
        found = sorted((row["user"], row["start_ms"], row["end_ms"], row["clicks"]) for row in map(json.loads, lines))
        assert found == expected


def _at_ms(minute: int) -> int:
    return int((_module("streaming_clicks").START + timedelta(minutes=minute)).timestamp() * 1000)


def _sessions(rows: list[tuple[datetime, str, str]], gap_ms: int) -> list[tuple[str, int, int, int]]:
    sessions: list[tuple[str, int, int, int]] = []
    for user in {user for _, user, _ in rows}:
        open_session: tuple[str, int, int, int] | None = None
        for at_ms in sorted(int(at.timestamp() * 1000) for at, name, _ in rows if name == user):
            if open_session is not None and at_ms - open_session[2] <= gap_ms:
                open_session = (user, open_session[1], at_ms, open_session[3] + 1)
            else:
                sessions += [] if open_session is None else [open_session]
                open_session = (user, at_ms, at_ms, 1)
        sessions += [] if open_session is None else [open_session]
    return sessions


def test_totals_in_sqlite_are_those_of_all_clicks(
    standing: Processes,
    tmp_path: Path,
    clicks: tuple[Path, list[tuple[datetime, str, str]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job that is restored claims the savepoint: its query goes on under the id that it had."""
    directory, rows = clicks
    monkeypatch.setenv("CLICKS_DB", str(tmp_path / "clicks.db"))
    _run(standing, "streaming_upsert", directory, tmp_path / "out", tmp_path)
    monkeypatch.setenv("CLICKS_DB", str(tmp_path / "stopped.db"))
    saved = _run_with_a_stop(standing, "streaming_upsert", tmp_path / "stopped", tmp_path, "--claim")

    for name in ("clicks.db", "stopped.db"):
        with closing(sqlite3.connect(tmp_path / name)) as database:
            found = dict(database.execute("SELECT user, clicks FROM totals").fetchall())
        assert found == Counter(user for _, user, _ in rows)
    with closing(sqlite3.connect(tmp_path / "stopped.db")) as database:
        (latest,) = database.execute("SELECT batch FROM latest").fetchone()
    assert latest > saved["queries"][0]["batch"], "batches were applied after the savepoint"


def test_no_other_try_of_a_batch_writes_between_reading_the_latest_one_and_writing_the_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try of a batch may still be committing when it is repeated: one of the two waits, and ignores it."""
    monkeypatch.setenv("CLICKS_DB", str(tmp_path / "clicks.db"))
    example = _module("streaming_upsert")
    example.upsert(_Batch(("u", 1)), 0)
    refused: list[str] = []

    class Watched(sqlite3.Connection):
        """A connection during which another one tries to write, just before the totals are written."""

        def executemany(self, *parameters: Any) -> sqlite3.Cursor:
            with closing(connect(tmp_path / "clicks.db", timeout=0)) as other:
                try:
                    with other:
                        other.execute("UPDATE latest SET batch = 1")
                except sqlite3.OperationalError as error:
                    refused.append(str(error))
            return super().executemany(*parameters)

    connect = sqlite3.connect

    def watched(place: str, timeout: float) -> sqlite3.Connection:
        return connect(place, timeout, factory=Watched)

    monkeypatch.setattr(sqlite3, "connect", watched)
    example.upsert(_Batch(("u", 3)), 1)
    example.upsert(_Batch(("u", 5)), 1)

    assert refused == ["database is locked"]
    with closing(connect(tmp_path / "clicks.db")) as database:
        assert database.execute("SELECT * FROM totals").fetchall() == [("u", 3)]


class _Batch:
    """The rows of one batch, as a function gets them."""

    def __init__(self, *rows: tuple[str, int]) -> None:
        self._rows = rows

    def collect(self) -> list[Row]:
        return [Row(user=user, clicks=clicks) for user, clicks in self._rows]
