"""The streaming examples, as their first lines say: every row that is due is there, once."""

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
from tests.cluster.commands import flintlock
from tests.cluster.processes import ROOT, Processes

EXAMPLES = ROOT / "examples"
MINUTES = 25


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
    params = ("--param", f"clicks={clicks}", *(("--param", f"out={out}") if name != "streaming_upsert" else ()))
    ran = flintlock("run", "-m", standing.url, f"{EXAMPLES / name}.py:job", *params, cwd=cwd)
    assert ran.returncode == 0, ran.stdout + ran.stderr


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

    due = max(at for at, _, _ in rows) - timedelta(minutes=2)
    expected = Counter((at.replace(second=0), page) for at, _, page in rows if _end_of_minute(at) <= due)
    tables: list[Any] = [pyarrow.parquet.read_table(file) for file in _written(tmp_path / "out")]
    found: list[dict[str, Any]] = [row for table in tables for row in table.to_pylist()]
    assert Counter({(_utc(row["minute"]), row["page"]): row["clicks"] for row in found}) == expected
    assert len(found) == len(expected)


def _utc(found: object) -> datetime:
    """A timestamp of Parquet, which has no time zone there."""
    return datetime.fromisoformat(str(found)).replace(tzinfo=UTC)


def _end_of_minute(at: datetime) -> datetime:
    return at.replace(second=0) + timedelta(minutes=1)


def test_sessions_are_written_once_when_their_user_is_away(
    standing: Processes, tmp_path: Path, clicks: tuple[Path, list[tuple[datetime, str, str]]]
) -> None:
    directory, rows = clicks
    _run(standing, "streaming_sessions", directory, tmp_path / "out", tmp_path)

    lines = [line for file in _written(tmp_path / "out") for line in file.read_text().splitlines()]
    found = sorted((row["user"], row["start_ms"], row["end_ms"], row["clicks"]) for row in map(json.loads, lines))
    gap_ms = _module("streaming_sessions").GAP_MS
    watermark_ms = int((max(at for at, _, _ in rows) - timedelta(minutes=1)).timestamp() * 1000)
    expected = sorted(session for session in _sessions(rows, gap_ms) if session[2] + gap_ms <= watermark_ms)
    assert len(expected) > 5
    assert found == expected


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
    directory, rows = clicks
    monkeypatch.setenv("CLICKS_DB", str(tmp_path / "clicks.db"))
    _run(standing, "streaming_upsert", directory, tmp_path / "out", tmp_path)

    with closing(sqlite3.connect(tmp_path / "clicks.db")) as database:
        found = dict(database.execute("SELECT user, clicks FROM totals").fetchall())
    assert found == Counter(user for _, user, _ in rows)
