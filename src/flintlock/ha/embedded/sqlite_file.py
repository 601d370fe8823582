"""The database file of the embedded store: how it is opened, its schema, which versions it may have.

SQLite in WAL mode with `synchronous=FULL`: a commit that returns has been flushed, readers never wait for the writer,
and several processes of one host may have it open. A PRAGMA that SQLite cannot apply is not an error, it answers
with the value that is in effect instead; so each answer is checked.

The state directory must be on a local file system. WAL needs memory shared between processes and reliable locks,
which network file systems do not have; whether a directory is on one cannot be detected reliably, so it is not tried.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from flintlock.host.files.private_files import make_private_file
from flintlock.model.errors import Corrupt, FlintlockError, Incompatible, InvariantBroken, Refused, Unavailable

SCHEMA_VERSION: Final = 7
APPLICATION_ID: Final = 0x464C4E54  # "FLNT": distinguishes our file from any other SQLite database
BUSY_TIMEOUT_MS: Final = 5_000
MAX_WAL_BYTES: Final = 64 << 20  # to which the log of writes is cut after it grew beyond
_BUSY_PAUSE_S: Final = 0.02
_WRITE_LOCK_BYTE: Final = 120  # of the -shm file
_BAD_TEXT: Final = "Could not decode to UTF-8"  # what Python says of a damaged text, without a code
OLDEST_SQLITE: Final = (3, 37, 0)  # STRICT tables

#: `idempotency_keys` refers to no graph: a key outlives its job. Large payloads have tables of their own, so that a
#: listing reads small rows only. `end_ms` is when the job's retention began (`retained_from_ms`).
_SCHEMA: Final = """
CREATE TABLE leadership (
    id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL, session TEXT NOT NULL) STRICT;
INSERT INTO leadership VALUES (1, 0, '');
CREATE TABLE heartbeat (
    id INTEGER PRIMARY KEY CHECK (id = 1), epoch INTEGER NOT NULL, session TEXT NOT NULL,
    pid INTEGER NOT NULL, at_ms INTEGER NOT NULL) STRICT;
CREATE TABLE job_graphs (job_id TEXT PRIMARY KEY, payload BLOB NOT NULL) STRICT;
CREATE TABLE quarantined_graphs (job_id TEXT PRIMARY KEY, reason TEXT NOT NULL, payload BLOB NOT NULL) STRICT;
CREATE TABLE idempotency_keys (key TEXT PRIMARY KEY, job_id TEXT NOT NULL, digest TEXT NOT NULL) STRICT;
CREATE INDEX idempotency_keys_by_job ON idempotency_keys (job_id);
CREATE TABLE job_results (
    job_id TEXT PRIMARY KEY, dirty INTEGER NOT NULL, end_ms INTEGER NOT NULL, payload BLOB NOT NULL) STRICT;
CREATE INDEX dirty_results ON job_results (job_id) WHERE dirty;
CREATE INDEX results_by_end ON job_results (end_ms);
CREATE TABLE region_records (
    job_id TEXT NOT NULL, region INTEGER NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (job_id, region)) STRICT;
CREATE TABLE ended_jobs (job_id TEXT PRIMARY KEY, end_ms INTEGER NOT NULL, summary BLOB NOT NULL) STRICT;
CREATE INDEX ended_by_end ON ended_jobs (end_ms);
CREATE TABLE ended_snapshots (
    job_id TEXT PRIMARY KEY REFERENCES ended_jobs ON DELETE CASCADE, payload BLOB NOT NULL) STRICT;
CREATE TABLE ended_rows (
    job_id TEXT NOT NULL REFERENCES ended_jobs ON DELETE CASCADE, name TEXT NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (job_id, name)) STRICT;
"""


#: What each version added to the one before it: a file is upgraded step by step.
_ADDED: Final = {
    2: "CREATE TABLE leader_info (id INTEGER PRIMARY KEY CHECK (id = 1), payload BLOB NOT NULL) STRICT;\n",
    3: "CREATE TABLE job_operations (job_id TEXT PRIMARY KEY, payload BLOB NOT NULL) STRICT;\n",
    4: "CREATE TABLE retention_clock (id INTEGER PRIMARY KEY CHECK (id = 1), payload BLOB NOT NULL) STRICT;\n",
    5: "CREATE TABLE job_histories (job_id TEXT PRIMARY KEY, payload BLOB NOT NULL) STRICT;\n",
    6: "CREATE TABLE access_tokens (id INTEGER PRIMARY KEY CHECK (id = 1), payload BLOB NOT NULL) STRICT;\n",
    7: "CREATE TABLE savepoint_disposals (id INTEGER PRIMARY KEY CHECK (id = 1), payload BLOB NOT NULL) STRICT;\n",
}


def open_writer(path: Path) -> sqlite3.Connection:
    """Open the file for writing, creating it if it does not exist.

    Raises Refused, naming the reason, for a file of a newer version or another program and where SQLite cannot give
    its guarantees; Unavailable where the file cannot be opened now.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise Refused(f"the embedded store needs SQLite {oldest} or newer; this Python has {sqlite3.sqlite_version}")
    give_up_s = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            return _open_writer(path)
        except Unavailable as error:
            # Of processes that set the mode of a new file together all but one fail at once, without SQLite's own wait.
            if not is_busy(error) or time.monotonic() > give_up_s:
                raise
        time.sleep(_BUSY_PAUSE_S)  # noqa: TID251 (a lock of SQLite ends without an event; called in a thread)


def is_busy(error: Unavailable) -> bool:
    """Return whether another process holds a lock of the file."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.Error) and cause.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


def _open_writer(path: Path) -> sqlite3.Connection:
    connection = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _close_to_other_users(path)
        connection = _connect(path)
        _check_owner(connection, path)
        if _pragma(connection, "page_count") == 0:  # in a file that exists it cannot be changed
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        _set(connection, path, "journal_mode", "WAL", "wal")
        _set(connection, path, "journal_size_limit", str(MAX_WAL_BYTES), MAX_WAL_BYTES)
        _set(connection, path, "synchronous", "FULL", 2)
        _set(connection, path, "foreign_keys", "ON", 1)
        # Only macOS knows a difference: there a plain fsync does not empty the drive's cache.
        _set(connection, path, "fullfsync", "ON", 1)
        _set(connection, path, "checkpoint_fullfsync", "ON", 1)
        _create_schema(connection, path)
        _sync_directory(path.parent)
        for parent in path.parent.parents:  # any of them may be new: a loss of power must not undo the first start
            with suppress(PermissionError):  # made by another user, and so not now
                _sync_directory(parent)
    except (sqlite3.Error, OSError, FlintlockError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, FlintlockError):
            raise
        raise Unavailable(f"the store {path} cannot be opened: {reason_of(error)}") from error
    return connection


class FileIdentity:
    """Which file was opened at a path. One that was removed or replaced stays open, and takes writes that no one finds.

    Made when the file has just been opened.
    """

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._opened: Final = path.stat()

    def check(self) -> None:
        """Raise Refused if the path does not lead to the opened file any more."""
        try:
            same = os.path.samestat(self._opened, self._path.stat())
        except FileNotFoundError:
            same = False
        except OSError:
            return  # the file system does not answer: that says nothing about the file
        if not same:
            raise Refused(
                f"the store {self._path} was removed or replaced while this JobManager had it open: what is written to"
                " the old file is lost. Put it back, or start with another state directory"
            )


def rewrite_header(connection: sqlite3.Connection) -> None:
    """Write a page of the file without changing it, so that a transaction has something to commit."""
    check_version(connection)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def write_lock_holder(path: Path) -> int | None:
    """Return the process that has the write lock of the file now; None if there is none, or the system hides it.

    The lock is one byte of SQLite's shared memory (https://sqlite.org/walformat.html). It is not read by fcntl: closing
    the descriptor used for that would release the locks of this process's own connections.
    """
    try:
        inode = path.with_name(f"{path.name}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, place, first, last] if (
                place.rpartition(":")[2] == str(inode)
                and int(first) <= _WRITE_LOCK_BYTE
                and last != "EOF"
                and int(last) >= _WRITE_LOCK_BYTE
            ):
                return int(pid)
            case _:
                continue
    return None


def open_reader(path: Path) -> sqlite3.Connection:
    """Open the existing file for reading only."""
    try:
        connection = _connect(path)
        _set(connection, path, "query_only", "ON", 1)
    except sqlite3.Error as error:
        raise Unavailable(f"the store {path} cannot be opened: {reason_of(error)}") from error
    return connection


def translated(error: sqlite3.Error, doing: str) -> FlintlockError:
    """Return an SQLite error as one of ours: Corrupt for a damaged file, InvariantBroken for a bug, or Unavailable."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.InterfaceError):
        return InvariantBroken(f"the store was misused, {doing}: {reason_of(error)}")
    if _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error).startswith(_BAD_TEXT):
        return Corrupt(f"the store is damaged, {doing}: {reason_of(error)}")
    return Unavailable(f"the store did not answer, {doing}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return the error's text, with SQLite's own name for it where it has one."""
    name = getattr(error, "sqlite_errorname", None)
    return f"{error} ({name})" if name else str(error)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the upper bits distinguish variants of one error


def _connect(path: Path) -> sqlite3.Connection:
    # No implicit transactions; our own threads make sure that only one uses a connection at a time.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=BUSY_TIMEOUT_MS / 1000)
    try:
        _set(connection, path, "busy_timeout", str(BUSY_TIMEOUT_MS), BUSY_TIMEOUT_MS)
    except BaseException:
        connection.close()
        raise
    return connection


def _close_to_other_users(path: Path) -> None:
    """Graphs, parameters and results are in the file. SQLite gives its other files the rights that this one has."""
    make_private_file(path)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).chmod(0o600)


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return None if row is None else row[0]


def _set(connection: sqlite3.Connection, path: Path, name: str, value: str, expected: object) -> None:
    connection.execute(f"PRAGMA {name}={value}").fetchall()
    answer = _pragma(connection, name)
    if answer != expected:
        raise Refused(
            f"the store {path} cannot be trusted with jobs: SQLite answers {answer!r} to {name}={value}."
            " Is the state directory on a local file system?"
        )


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse another program's file before anything in it is changed."""
    try:
        connection.execute("BEGIN")  # one snapshot: another process may be creating the schema
        owner, version = _pragma(connection, "application_id"), _pragma(connection, "user_version")
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if _primary_code(error) != sqlite3.SQLITE_NOTADB:
            raise
        raise Refused(f"{path} is not an SQLite database: it is damaged, or another program's") from error
    if owner != APPLICATION_ID and (owner or version or tables):
        raise Refused(f"{path} is a database of another program, not a store of Flintlock")
    _check_version(version, f"the store {path}")


def check_version(connection: sqlite3.Connection) -> None:
    """Raise Incompatible if a newer version has taken the store over since it was opened."""
    _check_version(_pragma(connection, "user_version"), "the store")


def _check_version(version: object, store: str) -> None:
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise Incompatible(
            f"{store} was written by a newer Flintlock (schema {version}); this one reads up to schema"
            f" {SCHEMA_VERSION}. Use the newer version, or another state directory"
        )


def _create_schema(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "user_version") == SCHEMA_VERSION:
        return  # nothing to write: a standby can start while another process holds the write lock
    connection.execute("BEGIN IMMEDIATE")  # of two processes that start together one creates it, the other finds it
    try:
        found = _pragma(connection, "user_version")
        script = _SCHEMA if found == 0 else ""
        script += "".join(added for version, added in _ADDED.items() if not isinstance(found, int) or version > found)
        if script:
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    if _pragma(connection, "user_version") != SCHEMA_VERSION:
        raise Refused(f"the store {path} did not take its schema version")


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
