"""Election among the JobManagers of one host: the process that holds the lock file leads.

Leadership is an flock on a file of its own. The kernel releases it when its holder dies, however it dies, so a standby
leads as soon as it polls next. Gaining the lock is not enough to write: the epoch is raised in the store in a
transaction, and from then on the stores refuse the former leader.

The holder updates a heartbeat row (pid, time), through the stores' own fencing check: a leader that was superseded,
because an operator removed the lock file under it, finds out there and steps down. The row also tells a standby which
process to kill when the holder lives but does nothing (`silent_leader_watch`).

With each heartbeat the leader checks that the store's file is still at its path: one that was removed stays open, and
would take writes that are lost with the process.

The lock is not inherited: the descriptor closes on exec, and a JobManager never forks without exec.

Rejected: waiting in a blocking flock (needs a thread that nothing can interrupt); SQLite's own locks as leadership
(they are held for a transaction, and a backup or a shell takes them too).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import structlog

from flintlock.ha.embedded.silent_leader_watch import SilentLeaderWatch
from flintlock.ha.embedded.sqlite_file import FileIdentity, check_version
from flintlock.ha.embedded.stores import check_token
from flintlock.ha.embedded.writer import GroupWriter
from flintlock.ha.terms import Offer, RevocableScope
from flintlock.model import log_events
from flintlock.model.backoff import Backoff
from flintlock.model.errors import Fenced, FlintlockError, InvariantBroken, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import Epoch, FencingToken

log = structlog.get_logger(__name__)

#: The longest pause before a store that could not be written is tried again.
_RETRY_S: Final = 2.0


class LockFile:
    """An flock on a path, held from a successful `take` to `release`."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path
        self._descriptor: int | None = None  # open while the lock is held

    def take(self) -> bool:
        """Try to take the lock, without waiting. Raises OSError if the file cannot be made or opened."""
        if self._descriptor is not None:
            raise InvariantBroken(f"the lock {self._path} is held already")
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A lock on a file that was removed meanwhile excludes no process that opens the path now.
            if not os.path.samestat(os.fstat(descriptor), self._path.stat()):
                raise FileNotFoundError(self._path)
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: removing it would let two processes lock two files."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            # Closing alone would leave it to a child that is between its fork and its exec.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


class FileElection:
    """A LeaderElection by lock file. One in each process."""

    def __init__(
        self,
        *,
        path: Path,
        writer: GroupWriter,
        identity: FileIdentity,
        new_session: Callable[[], str],
        now_ms: Callable[[], int],
        poll_s: float,
        heartbeat_s: float,
        watch: SilentLeaderWatch,
        chores: Callable[[FencingToken], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._lock: Final = LockFile(path)
        self._writer: Final = writer
        self._identity: Final = identity  # of the store's file
        self._new_session: Final = new_session
        self._now_ms: Final = now_ms
        self._poll_s: Final = poll_s
        self._heartbeat_s: Final = heartbeat_s
        self._watch: Final = watch  # of the leader, while this process stands by
        self._chores: Final = chores  # run during each term, and end with it
        self._backoff: Final = Backoff(initial_s=poll_s, maximum_s=_RETRY_S)
        self._resigned = False  # set by `resign`, for good

    def resign(self) -> None:
        """Give leadership up at once, though the term's body has not ended, and never contend again. Idempotent.

        For a process that shuts down: the next leader need not wait until it has cleaned up. What the body still does
        is safe, the stores refuse it once a newer epoch has begun.
        """
        self._resigned = True
        self._lock.release()

    async def terms(self) -> AsyncIterator[AbstractAsyncContextManager[FencingToken]]:
        """Yield a term each time the lock is gained and the epoch raised."""
        while True:
            offer = Offer(await self._gain(), give_up=self._lock.release)
            try:
                yield self._term(offer)
            finally:
                offer.withdraw()
            await asyncio.sleep(2 * self._poll_s)  # a process that gives leadership up lets the others try first

    def paused(self, token: FencingToken) -> str | None:  # noqa: ARG002  # a Protocol's
        """Return None: the holder of the lock leads, and the store is on the same disk."""
        return None

    async def _gain(self) -> FencingToken:
        """Return the token of a new term, once the lock was taken; a leader that is frozen is killed meanwhile."""
        token: FencingToken | None = None
        failure: Exception | None = None  # of taking it: it is raised as it is, not in the TaskGroup's group
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(self._watch.run(), name="silent-leader-watch")
                try:
                    token = await self._take()
                except Exception as error:  # noqa: BLE001  # raised again below
                    failure = error
                finally:
                    watching.cancel()
        except BaseException:
            self._lock.release()
            raise
        if token is None:
            raise failure or InvariantBroken("the lock was neither taken nor refused")
        return token

    async def _take(self) -> FencingToken:
        """Poll the lock until it is free and the epoch is raised."""
        failures, problem = 0, RepeatedFailure()
        while True:
            if self._resigned:
                await asyncio.get_running_loop().create_future()  # until cancelled
            try:
                if self._lock.take():
                    return await self._begin()
                failures = 0  # another process leads
                problem.ended()
            except (OSError, Unavailable) as error:
                # A full disk, or a store that is locked: another JobManager may succeed, and so may this one later.
                failures += 1
                reason = str(error)
                if problem.occurred(reason, asyncio.get_running_loop().time()):
                    log.warning(log_events.LEADERSHIP_NOT_TAKEN, reason=reason)
            await asyncio.sleep(self._backoff.delay_s(failures) if failures else self._poll_s)

    async def _begin(self) -> FencingToken:
        """Raise the epoch; the first heartbeat is part of it. If that fails the lock is released.

        Raises Refused if the store's file was removed or replaced.
        """
        session, pid, at_ms = self._new_session(), os.getpid(), self._now_ms()

        def work(connection: sqlite3.Connection) -> FencingToken:
            check_version(connection)  # the store may have been upgraded while this process stood by
            (epoch,) = connection.execute(
                "UPDATE leadership SET epoch = epoch + 1, session = ? RETURNING epoch", (session,)
            ).fetchone()
            token = FencingToken(Epoch(epoch), session)
            connection.execute("DELETE FROM leader_info")  # what the former leader published
            _write_heartbeat(connection, token, pid, at_ms)
            return token

        try:
            self._identity.check()
            return await self._writer.write(work)
        except BaseException:
            self._lock.release()
            raise

    @asynccontextmanager
    async def _term(self, offer: Offer) -> AsyncGenerator[FencingToken]:
        failure: Exception | None = None  # the body's own: it is raised as it is, not in the TaskGroup's group
        with offer as token:
            async with RevocableScope() as scope, asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._beat(token, scope), name=f"heartbeat-{token.epoch}")]
                if self._chores is not None:
                    beside.append(tasks.create_task(self._chores(token), name=f"chores-{token.epoch}"))
                try:
                    yield token
                except Exception as error:  # noqa: BLE001  # raised again below
                    failure = error
                finally:
                    for task in beside:
                        task.cancel()
                    await self._withdraw_info(token)
        if failure is not None:
            raise failure

    async def _withdraw_info(self, token: FencingToken) -> None:
        """Remove what the leader published about itself. If that fails the next term does it."""

        def work(connection: sqlite3.Connection) -> None:
            check_token(connection, token)
            connection.execute("DELETE FROM leader_info")

        with suppress(FlintlockError):
            await self._writer.write(work)

    async def _beat(self, token: FencingToken, scope: RevocableScope) -> None:
        """Write heartbeats; step down when a newer epoch has begun.

        Raises Refused if the store's file is gone, InvariantBroken if this process can never write to it again.
        """
        problem = RepeatedFailure()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._identity.check()
            pid, at_ms = os.getpid(), self._now_ms()

            def work(connection: sqlite3.Connection, pid: int = pid, at_ms: int = at_ms) -> None:
                check_token(connection, token)
                _write_heartbeat(connection, token, pid, at_ms)

            try:
                await self._writer.write(work)
            except Fenced as error:
                log.warning(log_events.LEADERSHIP_LOST, epoch=token.epoch, reason=error.public)
                scope.revoke()
                return
            except FlintlockError as error:
                if self._writer.failure is not None:  # for good, and in this process only: another one has to lead
                    raise InvariantBroken(self._writer.failure) from error
                # The lock is still held. Whether jobs can go on, their own writes will show.
                if problem.occurred(error.public, asyncio.get_running_loop().time()):
                    log.warning(log_events.LEADER_HEARTBEAT_NOT_WRITTEN, epoch=token.epoch, reason=error.public)
            else:
                if problem.ended():
                    log.info(log_events.LEADER_HEARTBEAT_WRITTEN_AGAIN, epoch=token.epoch)


def _write_heartbeat(connection: sqlite3.Connection, token: FencingToken, pid: int, at_ms: int) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO heartbeat VALUES (1, ?, ?, ?, ?)", (token.epoch, token.session, pid, at_ms)
    )
