"""The stores of one term in SQLite.

Every write is one function that runs in the writer's transaction: it checks the token, then does its work. Payloads
are encoded before and decoded after, by the caller. Reads use a connection and a thread of their own and see what was
last committed.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from flintlock.ha import payloads
from flintlock.ha.embedded.sqlite_file import translated
from flintlock.ha.embedded.writer import LARGE, GroupWriter, Write
from flintlock.ha.payloads import Payload
from flintlock.ha.protocols import KnownKey, Quarantined
from flintlock.ha.store_rules import (
    SLICE,
    batched,
    duplicate_job,
    fence,
    key_reused,
    no_job_for_operations,
    not_quarantined,
    still_cleaned_up,
)
from flintlock.model.commands import JobOperations
from flintlock.model.errors import InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobs import JobHistory, JobResult, JobSnapshot, JobSummary, StoredJob
from flintlock.model.tasks import RegionRecord, ResultRows

T = TypeVar("T")

Row = tuple[Any, ...]

#: Jobs whose end is old, with a bound: a transaction of a million removals would hold up all other writes.
_EXPIRED: Final = " UNION ".join(
    f"SELECT * FROM (SELECT job_id FROM {table} AS old WHERE end_ms < :before"  # noqa: S608  # names of ours
    " AND NOT EXISTS (SELECT 1 FROM job_results WHERE job_id = old.job_id AND dirty)"
    " AND NOT EXISTS (SELECT 1 FROM job_graphs WHERE job_id = old.job_id)"
    " AND NOT EXISTS (SELECT 1 FROM quarantined_graphs WHERE job_id = old.job_id)"
    " ORDER BY end_ms LIMIT :limit)"
    for table in ("ended_jobs", "job_results")
)
#: Whether a job has ended, and whether it is quarantined.
_KNOWN: Final = (
    "SELECT EXISTS (SELECT 1 FROM job_results WHERE job_id = :job),"
    " EXISTS (SELECT 1 FROM quarantined_graphs WHERE job_id = :job)"
)
_NEVER_MS: Final = (1 << 63) - 1
_IDS_AT_ONCE: Final = 500  # SQLite limits the parameters of a statement


class StoreFile:
    """The open database: a writer, a reader. Built and closed by `services`."""

    def __init__(self, writer: GroupWriter, reader: sqlite3.Connection, readers: ThreadPoolExecutor) -> None:
        self.writer: Final = writer
        self._reader: Final = reader
        self._readers: Final = readers  # one thread: a connection serves one at a time

    async def rows(self, query: str, *values: object) -> list[Row]:
        """Return the rows of a query over what is committed. Raises Unavailable, Corrupt."""

        def read() -> list[Row]:
            try:
                return self._reader.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise translated(error, "reading") from error

        try:
            reading = self._readers.submit(read)
        except RuntimeError as error:  # what an executor raises after its shutdown
            raise Unavailable("the store is closed") from error
        return await asyncio.wrap_future(reading)


class _TermStore:
    """What the stores share: writes under one token, reads without."""

    def __init__(self, file: StoreFile, token: FencingToken) -> None:
        self._file: Final = file
        self._token: Final = token

    async def _write(self, work: Write[T], size: int = 0) -> T:
        def fenced(connection: sqlite3.Connection) -> T:
            check_token(connection, self._token)
            return work(connection)

        return await self._file.writer.write(fenced, size)

    async def _first(self, query: str, *values: object) -> Row | None:
        rows = await self._file.rows(query, *values)
        return rows[0] if rows else None


def check_token(connection: sqlite3.Connection, token: FencingToken) -> None:
    """Refuse a token that was superseded, or that differs within its epoch; adopt a newer one."""
    stored = FencingToken(*connection.execute("SELECT epoch, session FROM leadership").fetchone())
    if fence(stored, token) != stored:
        connection.execute("UPDATE leadership SET epoch = ?, session = ?", (token.epoch, token.session))


async def remove_all_records(file: StoreFile, token: FencingToken) -> None:
    """Empty every table but those of the election."""

    def work(connection: sqlite3.Connection) -> None:
        check_token(connection, token)
        tables = connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('leadership', 'heartbeat')"
        ).fetchall()
        for (name,) in tables:
            connection.execute(f"DELETE FROM {name}")  # noqa: S608 (a name of our own schema)

    await file.writer.write(work)


class SqliteJobGraphStore(_TermStore):
    """Graphs, quarantined ones included, and idempotency keys."""

    async def put(self, job: StoredJob) -> None:
        """Add a job with its key."""
        job_id, key, payload = job.graph.job_id, job.idempotency_key, payloads.STORED_JOB.encode(job)

        def work(connection: sqlite3.Connection) -> None:
            ended, quarantined = connection.execute(_KNOWN, {"job": job_id}).fetchone()
            if ended or quarantined:
                raise duplicate_job(job_id, ended=bool(ended))
            try:
                connection.execute("INSERT INTO job_graphs VALUES (?, ?)", (job_id, payload))
            except sqlite3.IntegrityError:
                raise duplicate_job(job_id, ended=False) from None
            if key is not None:
                _store_key(connection, key, job_id, job.digest)

        await self._write(work, len(payload))

    async def replace(self, job: StoredJob) -> None:
        """Replace a stored job."""
        job_id, payload = job.graph.job_id, payloads.STORED_JOB.encode(job)

        def work(connection: sqlite3.Connection) -> None:
            done = connection.execute("UPDATE job_graphs SET payload = ? WHERE job_id = ?", (payload, job_id))
            if done.rowcount == 0:
                raise NotFound(f"no graph is stored for job {job_id}")

        await self._write(work, len(payload))

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all stored graphs."""
        return tuple(JobId(row[0]) for row in await self._file.rows("SELECT job_id FROM job_graphs ORDER BY rowid"))

    async def recover(self, job_id: JobId) -> StoredJob:
        """Return a stored job."""
        row = await self._first("SELECT payload FROM job_graphs WHERE job_id = ?", job_id)
        if row is None:
            raise NotFound(f"no graph is stored for job {job_id}")
        return payloads.STORED_JOB.decode(row[0], f"job {job_id}")

    async def remove(self, job_id: JobId) -> None:
        """Remove a graph, and its key if it has no result."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM job_graphs WHERE job_id = ?", (job_id,))
            if not _exists(connection, "SELECT 1 FROM job_results WHERE job_id = ?", job_id):
                connection.execute("DELETE FROM idempotency_keys WHERE job_id = ?", (job_id,))

        await self._write(work)

    async def quarantine(self, job_id: JobId, reason: str) -> None:
        """Quarantine a graph."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO quarantined_graphs SELECT job_id, ?, payload FROM job_graphs WHERE job_id = ?"
                " ON CONFLICT DO NOTHING",
                (reason, job_id),
            )
            connection.execute("DELETE FROM job_graphs WHERE job_id = ?", (job_id,))

        await self._write(work)

    async def quarantined(self) -> tuple[Quarantined, ...]:
        """Return the quarantined graphs."""
        rows = await self._file.rows("SELECT job_id, reason FROM quarantined_graphs ORDER BY rowid")
        return tuple(Quarantined(job_id=JobId(job_id), reason=reason) for job_id, reason in rows)

    async def read_quarantined(self, job_id: JobId) -> StoredJob:
        """Return a quarantined job."""
        row = await self._first("SELECT payload FROM quarantined_graphs WHERE job_id = ?", job_id)
        if row is None:
            raise not_quarantined(job_id)
        return payloads.STORED_JOB.decode(row[0], f"job {job_id}")

    async def restore(self, job_id: JobId) -> None:
        """Take a graph out of quarantine."""

        def work(connection: sqlite3.Connection) -> None:
            if _exists(connection, "SELECT 1 FROM job_graphs WHERE job_id = ?", job_id):
                return
            if not _exists(connection, "SELECT 1 FROM quarantined_graphs WHERE job_id = ?", job_id):
                raise not_quarantined(job_id)
            if _exists(connection, "SELECT 1 FROM job_results WHERE dirty AND job_id = ?", job_id):
                raise still_cleaned_up(job_id)
            connection.execute(
                "INSERT INTO job_graphs SELECT job_id, payload FROM quarantined_graphs WHERE job_id = ?", (job_id,)
            )
            for table in ("quarantined_graphs", "job_results", "ended_jobs", "job_operations"):
                connection.execute(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))  # noqa: S608  # a name of ours

        await self._write(work, LARGE)

    async def discard_quarantined(self, result: JobResult) -> None:
        """Remove a quarantined graph; a dirty result takes its place."""
        values = (result.job_id, result.retained_from_ms, payloads.JOB_RESULT.encode(result))

        def work(connection: sqlite3.Connection) -> None:
            done = connection.execute("DELETE FROM quarantined_graphs WHERE job_id = ?", (result.job_id,))
            if done.rowcount:
                connection.execute(
                    "INSERT OR REPLACE INTO job_results (job_id, dirty, end_ms, payload) VALUES (?, 1, ?, ?)", values
                )

        await self._write(work)

    async def key(self, key: str) -> KnownKey | None:
        """Return the job of a key."""
        row = await self._first("SELECT job_id, digest FROM idempotency_keys WHERE key = ?", key)
        return None if row is None else KnownKey(job_id=JobId(row[0]), digest=row[1])


class SqliteJobResultStore(_TermStore):
    """Results, dirty and clean."""

    async def create_dirty(self, result: JobResult) -> None:
        """Add a dirty entry."""
        values = (result.job_id, result.retained_from_ms, payloads.JOB_RESULT.encode(result))

        def work(connection: sqlite3.Connection) -> None:
            try:
                connection.execute(
                    "INSERT INTO job_results (job_id, dirty, end_ms, payload) VALUES (?, 1, ?, ?)", values
                )
            except sqlite3.IntegrityError:
                raise InvariantBroken(f"job {result.job_id} has a result already") from None

        await self._write(work)

    async def mark_clean(self, job_id: JobId) -> None:
        """Record that cleanup is done."""

        def work(connection: sqlite3.Connection) -> None:
            if connection.execute("UPDATE job_results SET dirty = 0 WHERE job_id = ?", (job_id,)).rowcount == 0:
                raise NotFound(f"job {job_id} has no result to mark as clean")

        await self._write(work)

    async def get(self, job_id: JobId) -> JobResult | None:
        """Return the job's entry."""
        row = await self._first("SELECT payload FROM job_results WHERE job_id = ?", job_id)
        return None if row is None else payloads.JOB_RESULT.decode(row[0], f"job {job_id}")

    async def dirty(self) -> tuple[JobResult, ...]:
        """Return all dirty entries that can be read."""
        rows = await self._file.rows("SELECT job_id, payload FROM job_results WHERE dirty ORDER BY job_id")
        return payloads.JOB_RESULT.readable(rows)

    async def known(self, job_ids: Collection[JobId]) -> frozenset[JobId]:
        """Return those of the ids that have an entry."""
        found: set[JobId] = set()
        for some in batched(job_ids, _IDS_AT_ONCE):
            marks = ", ".join("?" * len(some))
            rows = await self._file.rows(f"SELECT job_id FROM job_results WHERE job_id IN ({marks})", *some)  # noqa: S608
            found.update(JobId(job_id) for (job_id,) in rows)
        return frozenset(found)


class SqliteJobProgressStore(_TermStore):
    """Records of regions."""

    async def record(self, record: RegionRecord) -> None:
        """Replace the record of one region."""
        payload = payloads.REGION_RECORD.encode(record)
        values = (record.job_id, record.region, payload)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO region_records VALUES (?, ?, ?)", values)

        await self._write(work, len(payload))

    async def read(self, job_id: JobId) -> tuple[RegionRecord, ...]:
        """Return all records of a job, by region."""
        rows = await self._file.rows(
            "SELECT region, payload FROM region_records WHERE job_id = ? ORDER BY region", job_id
        )
        return tuple(
            payloads.REGION_RECORD.decode(payload, f"job {job_id}, region {region}") for region, payload in rows
        )

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs with records."""
        rows = await self._file.rows("SELECT job_id FROM region_records UNION SELECT job_id FROM job_histories")
        return tuple(JobId(row[0]) for row in rows)

    async def record_history(self, history: JobHistory) -> None:
        """Replace what is stored of the job's history."""
        payload = payloads.JOB_HISTORY.encode(history)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO job_histories VALUES (?, ?)", (history.job_id, payload))

        await self._write(work, len(payload))

    async def read_history(self, job_id: JobId) -> JobHistory | None:
        """Return the job's history."""
        row = await self._first("SELECT payload FROM job_histories WHERE job_id = ?", job_id)
        return None if row is None else payloads.JOB_HISTORY.decode(row[0], f"job {job_id}")

    async def remove(self, job_id: JobId) -> None:
        """Remove all records of a job, and its history."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM region_records WHERE job_id = ?", (job_id,))
            connection.execute("DELETE FROM job_histories WHERE job_id = ?", (job_id,))

        await self._write(work)


class SqliteEndedJobStore(_TermStore):
    """Ended jobs: a small row with the summary; snapshot and rows in other tables."""

    async def put(self, snapshot: JobSnapshot, results: tuple[ResultRows, ...]) -> None:
        """Store an ended job."""
        job_id = snapshot.graph.job_id
        summary = payloads.JOB_SUMMARY.encode(snapshot.summary())
        payload = payloads.JOB_SNAPSHOT.encode(snapshot)
        rows = [(job_id, result.name, payloads.RESULT_ROWS.encode(result)) for result in results]

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM ended_jobs WHERE job_id = ?", (job_id,))  # and all that refers to it
            connection.execute("INSERT INTO ended_jobs VALUES (?, ?, ?)", (job_id, snapshot.retained_from_ms, summary))
            connection.execute("INSERT INTO ended_snapshots VALUES (?, ?)", (job_id, payload))
            connection.executemany("INSERT INTO ended_rows VALUES (?, ?, ?)", rows)

        await self._write(work, len(payload) + sum(len(encoded) for _, _, encoded in rows))

    async def get(self, job_id: JobId) -> JobSnapshot | None:
        """Return an ended job."""
        row = await self._first("SELECT payload FROM ended_snapshots WHERE job_id = ?", job_id)
        return None if row is None else payloads.JOB_SNAPSHOT.decode(row[0], f"job {job_id}")

    async def result(self, job_id: JobId, name: str) -> ResultRows | None:
        """Return the rows of a result."""
        row = await self._first("SELECT payload FROM ended_rows WHERE job_id = ? AND name = ?", job_id, name)
        return None if row is None else payloads.RESULT_ROWS.decode(row[0], f"job {job_id}, result {name!r}")

    async def summaries(self) -> AsyncGenerator[tuple[JobSummary, ...]]:
        """Yield the summaries, a query for each slice."""
        end_ms, job_id = _NEVER_MS, ""
        while rows := await self._file.rows(
            "SELECT job_id, summary, end_ms FROM ended_jobs WHERE (end_ms, job_id) < (?, ?)"
            " ORDER BY end_ms DESC, job_id DESC LIMIT ?",
            end_ms,
            job_id,
            SLICE,
        ):
            yield payloads.JOB_SUMMARY.readable((row[0], row[1]) for row in rows)
            job_id, _, end_ms = rows[-1]

    async def expire(self, before_ms: int) -> tuple[JobId, ...]:
        """Remove jobs that ended before then."""

        def work(connection: sqlite3.Connection) -> tuple[JobId, ...]:
            # A result without an ended job exists when archiving failed; an ended job without a result when the
            # process died between the two, and then its graph exists too.
            rows = connection.execute(_EXPIRED, {"before": before_ms, "limit": SLICE}).fetchall()
            for table in ("ended_jobs", "job_results", "idempotency_keys", "job_operations"):
                connection.executemany(f"DELETE FROM {table} WHERE job_id = ?", rows)  # noqa: S608  # a name of ours
            return tuple(JobId(job_id) for (job_id,) in rows)

        return await self._write(work, LARGE)


class SqliteJobOperationStore(_TermStore):
    """Operations of jobs."""

    async def put(self, operations: JobOperations) -> None:
        """Replace what is stored of a job's operations."""
        job_id, payload = operations.job_id, payloads.JOB_OPERATIONS.encode(operations)

        def work(connection: sqlite3.Connection) -> None:
            if not (
                _exists(connection, "SELECT 1 FROM job_graphs WHERE job_id = ?", job_id)
                or _exists(connection, "SELECT 1 FROM job_results WHERE job_id = ?", job_id)
            ):
                raise no_job_for_operations(job_id)
            connection.execute("INSERT OR REPLACE INTO job_operations VALUES (?, ?)", (job_id, payload))

        await self._write(work, len(payload))

    async def read(self, job_id: JobId) -> JobOperations | None:
        """Return the operations of a job."""
        row = await self._first("SELECT payload FROM job_operations WHERE job_id = ?", job_id)
        return None if row is None else payloads.JOB_OPERATIONS.decode(row[0], f"job {job_id}")

    async def ids(self) -> tuple[JobId, ...]:
        """Return the ids of all jobs that have operations."""
        return tuple(JobId(row[0]) for row in await self._file.rows("SELECT job_id FROM job_operations"))


class SqliteClusterRecordStore(_TermStore, Generic[T]):
    """One record of the cluster: the row of a table of its own."""

    def __init__(self, file: StoreFile, token: FencingToken, table: str, kind: Payload[T]) -> None:
        super().__init__(file, token)
        self._replace: Final = f"INSERT OR REPLACE INTO {table} VALUES (1, ?)"  # noqa: S608  # a name of ours
        self._select: Final = f"SELECT payload FROM {table}"  # noqa: S608  # a name of ours
        self._kind: Final = kind

    async def record(self, value: T) -> None:
        """Replace what is stored."""
        payload = self._kind.encode(value)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(self._replace, (payload,))

        await self._write(work, len(payload))

    async def read(self) -> T | None:
        """Return what was recorded last."""
        row = await self._first(self._select)
        return None if row is None else self._kind.decode(row[0], "the cluster")


class SqliteStores:
    """All stores of one term."""

    def __init__(self, file: StoreFile, token: FencingToken) -> None:
        self.graphs: Final = SqliteJobGraphStore(file, token)
        self.results: Final = SqliteJobResultStore(file, token)
        self.progress: Final = SqliteJobProgressStore(file, token)
        self.ended: Final = SqliteEndedJobStore(file, token)
        self.operations: Final = SqliteJobOperationStore(file, token)
        self.retention_clock: Final = SqliteClusterRecordStore(
            file, token, "retention_clock", payloads.RETENTION_READING
        )
        self.access_tokens: Final = SqliteClusterRecordStore(file, token, "access_tokens", payloads.ACCESS_TOKENS)
        self.disposals: Final = SqliteClusterRecordStore(
            file, token, "savepoint_disposals", payloads.SAVEPOINT_DISPOSALS
        )
        self._file: Final = file
        self._token: Final = token

    async def confirm_term(self) -> None:
        """Check the token in a transaction of its own."""
        await self._file.writer.write(lambda connection: check_token(connection, self._token))


def _exists(connection: sqlite3.Connection, query: str, value: str) -> bool:
    return connection.execute(query, (value,)).fetchone() is not None


def _store_key(connection: sqlite3.Connection, key: str, job_id: JobId, digest: str) -> None:
    known = connection.execute("SELECT job_id FROM idempotency_keys WHERE key = ?", (key,)).fetchone()
    if known is not None and known[0] != job_id:
        raise key_reused(key, known[0])
    connection.execute("INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, ?)", (key, job_id, digest))
