from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flintlock.ha.embedded.sqlite_file import APPLICATION_ID, SCHEMA_VERSION, open_reader, open_writer
from flintlock.model.errors import Incompatible, Refused, Unavailable


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_file_is_durable_strict_and_ours(tmp_path: Path) -> None:
    connection = open_writer(tmp_path / "state" / "store.db")

    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == 2
    assert pragma(connection, "foreign_keys") == 1
    assert pragma(connection, "user_version") == SCHEMA_VERSION
    assert pragma(connection, "application_id") == APPLICATION_ID
    tables = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    assert tables
    assert all(sql.endswith("STRICT") for (sql,) in tables)
    connection.close()


def test_the_directories_that_lead_to_a_new_file_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)

    open_writer(tmp_path / "new" / "state" / "store.db").close()

    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "state"} <= set(synced)


def test_opening_again_keeps_what_is_there(tmp_path: Path) -> None:
    first = open_writer(tmp_path / "store.db")
    first.execute("UPDATE leadership SET epoch = 7")
    first.close()

    second = open_writer(tmp_path / "store.db")

    assert second.execute("SELECT epoch FROM leadership").fetchone() == (7,)
    second.close()


def test_a_file_of_an_older_schema_is_brought_up_and_keeps_what_is_there(tmp_path: Path) -> None:
    first = open_writer(tmp_path / "store.db")
    first.execute("UPDATE leadership SET epoch = 7")
    first.execute("DROP TABLE leader_info")  # what version 2 has added
    first.execute("DROP TABLE job_operations")  # what version 3 has added
    first.execute("DROP TABLE retention_clock")  # what version 4 has added
    first.execute("DROP TABLE job_histories")  # what version 5 has added
    first.execute("DROP TABLE access_tokens")  # what version 6 has added
    first.execute("DROP TABLE savepoint_disposals")  # what version 7 has added
    first.execute("PRAGMA user_version=1")
    first.close()

    second = open_writer(tmp_path / "store.db")

    assert second.execute("SELECT epoch FROM leadership").fetchone() == (7,)
    assert second.execute("SELECT count(*) FROM leader_info").fetchone() == (0,)
    assert second.execute("SELECT count(*) FROM job_operations").fetchone() == (0,)
    assert second.execute("SELECT count(*) FROM retention_clock").fetchone() == (0,)
    assert second.execute("SELECT count(*) FROM job_histories").fetchone() == (0,)
    assert second.execute("SELECT count(*) FROM access_tokens").fetchone() == (0,)
    assert second.execute("SELECT count(*) FROM savepoint_disposals").fetchone() == (0,)
    assert pragma(second, "user_version") == SCHEMA_VERSION
    second.close()


def test_a_file_of_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    newer = open_writer(path)
    newer.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    newer.close()
    before = path.read_bytes()

    with pytest.raises(Incompatible, match=f"newer Flintlock \\(schema {SCHEMA_VERSION + 1}\\)"):
        open_writer(path)

    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(Refused, match="another program"):
        open_writer(path)

    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"not a database at all" * 100)

    with pytest.raises(Refused, match="not an SQLite database"):
        open_writer(path)

    assert path.read_bytes() == b"not a database at all" * 100


def test_a_file_that_cannot_be_opened_is_unavailable_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.mkdir()

    with pytest.raises(Unavailable, match=str(path)):
        open_writer(path)


def test_of_processes_that_start_together_one_creates_and_the_others_find_it_done(tmp_path: Path) -> None:
    for attempt in range(5):
        path = tmp_path / str(attempt) / "store.db"
        with ThreadPoolExecutor(8) as pool:
            connections = list(pool.map(open_writer, [path] * 8))

        for connection in connections:
            assert connection.execute("SELECT epoch FROM leadership").fetchall() == [(0,)]
            connection.close()


def test_the_reader_cannot_write(tmp_path: Path) -> None:
    open_writer(tmp_path / "store.db").close()
    reader = open_reader(tmp_path / "store.db")

    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("UPDATE leadership SET epoch = 7")

    reader.close()
