"""Group commit: writes that wait together become durable together.

Flushing to the disk is what a commit costs. While one is under way, new writes queue; all of them then go into the next
transaction, each in a savepoint of its own, so that one that fails does not affect the others. A caller gets its
result only after the COMMIT of its write has returned.

The threads: the loop's thread applies small writes (some microseconds each, in memory), the writer thread commits.
sqlite3 releases the interpreter's lock several times in each statement; a thread that ran them all would have to get it
back each time from a busy loop, and wait up to 5 ms each time (measured: 70 writes a second beside a busy loop). Large
writes, and waiting for another process that has locked the file, are left to the writer thread as a whole.

When the transaction as a whole fails (a full disk, an I/O error), its writes are retried one by one: a large one that
fails must not fail the small ones beside it. SQLite has rolled back by then, so nothing is done twice.

Rejected: a commit for each write (8 clients would wait for each other's flushes); a timer that collects writes (adds
its delay to a single write, and collects no more than the flush itself does).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

from flintlock.ha.embedded.sqlite_file import BUSY_TIMEOUT_MS, translated
from flintlock.model.errors import Unavailable

T = TypeVar("T")

Write: TypeAlias = Callable[[sqlite3.Connection], T]
"""Reads and writes on the connection; neither begins nor ends a transaction. May be called again after a rollback."""

#: Bounds one transaction, not the queue.
MAX_BATCH: Final = 256

#: The most bytes that are applied on the loop's thread at once.
MAX_INLINE_BYTES: Final = 256 << 10

#: The size of a write that may take long, however little it stores.
LARGE: Final = MAX_INLINE_BYTES + 1


class _Queued:
    """A queued write and the future of its caller. `value` or `error` is set when the future is about to be."""

    __slots__ = ("error", "future", "size", "value", "write")

    def __init__(self, write: Write[Any], size: int, future: asyncio.Future[Any]) -> None:
        self.write = write
        self.size = size
        self.future = future
        self.value: Any = None
        self.error: BaseException | None = None


class GroupWriter:
    """Owns the writing connection, from `start` to `close`. Belongs to the loop that started it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: Final = connection  # the loop's, and the thread's while a batch is with it
        self._batches: Final[queue.SimpleQueue[tuple[list[_Queued], bool] | None]] = queue.SimpleQueue()
        self._thread: Final = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_Queued] = []  # filled by `write`, emptied by `_begin`
        self._idle: Final = asyncio.Event()  # clear while a batch is about to begin or under way
        self._closed: str | None = None  # why nothing is accepted any more
        self.failure: str | None = None  # why the thread has ended by an error of its own; nothing is written any more
        self.commits = 0  # transactions committed

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._connection.execute("PRAGMA busy_timeout=0")  # the loop's thread never waits for a lock
        self._idle.set()
        self._thread.start()

    async def write(self, write: Write[T], size: int = 0) -> T:
        """Return what `write` returned, once it is durable. `size` is about how many bytes it stores.

        Raises what `write` raised, with nothing of it stored; Unavailable with the reason if the store cannot be
        written now. If the caller is cancelled, it is unknown whether its write takes place. After Unavailable from an
        I/O error it is unknown, too, whether the write is found when the store is next opened; whole, or not at all.
        """
        if self._closed is not None or self._loop is None:
            raise Unavailable(self._closed or "the store is not open")
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(_Queued(write, size, future))
        if self._idle.is_set():
            self._idle.clear()
            self._loop.call_soon(self._begin)  # one iteration later, so that other writes of this one are included
        return await future

    async def close(self) -> None:
        """Finish queued writes, then close the connection. Idempotent."""
        self._closed = self._closed or "the store is closed"
        try:
            await self._idle.wait()
        finally:
            self._batches.put(None)
        await asyncio.shield(asyncio.to_thread(self._thread.join))
        self._connection.close()

    def _begin(self) -> None:
        """Pass queued writes to the thread as the next batch. On the loop's thread, while no batch runs."""
        batch: list[_Queued] = []
        taken = 0
        for item in self._waiting:
            taken += 1
            if not item.future.cancelled():
                batch.append(item)
                if len(batch) == MAX_BATCH:
                    break
        del self._waiting[:taken]
        if not batch:
            self._idle.set()
            return
        small = sum(item.size for item in batch) <= MAX_INLINE_BYTES
        self._batches.put((batch, small and self._try_apply(batch)))

    def _try_apply(self, batch: list[_Queued]) -> bool:
        """Apply the batch, up to its COMMIT. Returns False, without an open transaction, if the thread has to do it."""
        try:
            self._apply_all(batch)
        except Exception:  # noqa: BLE001  # the thread runs into it again, and reports it
            return False
        return True

    def _run(self) -> None:
        """The thread: finish batches, one after the other."""
        while (job := self._batches.get()) is not None:
            batch, applied = job
            ended: str | None = None
            try:
                self._finish(batch, applied=applied)
            except BaseException as error:
                ended = f"the store's writer has failed: {error!r}"
                raise  # a bug: it is logged, and the store accepts no more writes
            finally:
                with suppress(RuntimeError):  # the loop is closed: no caller is left
                    _loop_of(batch).call_soon_threadsafe(self._answer, batch, ended)

    def _answer(self, batch: list[_Queued], ended: str | None) -> None:
        """Wake the callers, begin the next batch."""
        if ended is not None:
            self._closed = self.failure = ended
            batch, self._waiting = batch + self._waiting, []
            for item in batch:
                item.error = Unavailable(ended)
        for item in batch:
            if item.future.done():
                continue
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.value)
        _loop_of(batch).call_soon(self._begin)  # after the callers have run, so that what they write next is included

    def _finish(self, batch: list[_Queued], *, applied: bool) -> None:
        """Make the batch durable; every item has its value or its error afterwards."""
        if applied and self._commit(batch):
            return
        self._connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        try:
            if not self._apply_and_commit(batch):
                for item in batch:
                    self._apply_and_commit([item])
        finally:
            self._connection.execute("PRAGMA busy_timeout=0")

    def _apply_and_commit(self, batch: list[_Queued]) -> bool:
        """Try the batch in one transaction. Returns False if trying its items one by one may help some of them."""
        try:
            self._apply_all(batch)
        except sqlite3.Error as error:
            _fail(batch, error)
            # Locked by another process for the whole busy timeout: each item alone would wait as long again.
            return error.sqlite_errorcode == sqlite3.SQLITE_BUSY or len(batch) == 1
        return self._commit(batch) or len(batch) == 1

    def _apply_all(self, batch: list[_Queued]) -> None:
        """Begin a transaction and apply the batch. Raises, without an open transaction, if that fails as a whole."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for item in batch:
                self._apply(item)
        except BaseException:
            self._roll_back()
            raise

    def _apply(self, item: _Queued) -> None:
        """Do one write in its savepoint. Raises sqlite3.Error only if the whole transaction was rolled back."""
        connection = self._connection
        item.error = None
        connection.execute("SAVEPOINT one")
        try:
            item.value = item.write(connection)
        except Exception as error:
            if not connection.in_transaction:  # SQLite itself rolled everything back
                raise
            connection.execute("ROLLBACK TO one")
            if isinstance(error, sqlite3.Error):
                _fail([item], error)
            else:
                item.error = error
        connection.execute("RELEASE one")

    def _commit(self, batch: list[_Queued]) -> bool:
        """Commit; if that fails, every item has the reason as its error, and no transaction is open."""
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            _fail(batch, error)
            return False
        self.commits += 1
        return True

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _loop_of(batch: list[_Queued]) -> asyncio.AbstractEventLoop:
    return batch[0].future.get_loop()


def _fail(batch: Iterable[_Queued], cause: sqlite3.Error) -> None:
    for item in batch:  # each caller gets an exception of its own: raising one adds to its traceback
        item.error = translated(cause, "writing")
        item.error.__cause__ = cause
