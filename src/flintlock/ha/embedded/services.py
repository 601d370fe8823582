"""HA services in a state directory: several JobManagers on one host, one file, one lock.

`<state-dir>/store.db` is an SQLite database (`sqlite_file`, `writer`, `stores`), `<state-dir>/leader.lock` the election
(`election`). A second JobManager on the same directory stands by. The directory must be on a local file system: on a
network one neither the lock nor the database can be trusted, and whether it is on one cannot be detected reliably.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from flintlock.ha.embedded.backend import STORE_FILE
from flintlock.ha.embedded.election import FileElection
from flintlock.ha.embedded.leader import SqliteLeaderRegister
from flintlock.ha.embedded.silent_holder import HeartbeatRow
from flintlock.ha.embedded.silent_leader_watch import ProcessCheck, SilentLeaderWatch
from flintlock.ha.embedded.sqlite_file import FileIdentity, open_reader, open_writer
from flintlock.ha.embedded.stores import SqliteStores, StoreFile, remove_all_records
from flintlock.ha.embedded.vacuum import VACUUM_PERIOD_S, return_free_pages
from flintlock.ha.embedded.writer import GroupWriter
from flintlock.ha.leader_info import LeaderCheck, LeaderInfo
from flintlock.model import log_events
from flintlock.model.errors import Refused
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)

LOCK_FILE: Final = "leader.lock"


async def never_answers(leader: LeaderInfo) -> bool:  # noqa: ARG001
    """Find no leader alive: for processes that cannot call others."""
    return False


class EmbeddedHaServices:
    """Election and stores of one state directory, as long as `embedded_ha` is open."""

    def __init__(self, file: StoreFile, election: FileElection, leader: SqliteLeaderRegister, silence_s: float) -> None:
        self._file: Final = file
        self.leader_timeout_s: Final = silence_s
        self.standstill_limit_s: Final = None  # `silent_leader_watch`
        self.election: Final = election
        self.leader: Final = leader
        self.blobs: Final = None
        self.blocking_jobs: Final = None

    def stores(self, token: FencingToken) -> SqliteStores:
        """Return the stores bound to a term."""
        return SqliteStores(self._file, token)

    async def cleanup_all_data(self, token: FencingToken) -> None:
        """Empty the database, in one transaction."""
        await remove_all_records(self._file, token)


@asynccontextmanager
async def embedded_ha(
    state_dir: Path,
    *,
    new_session: Callable[[], str],
    now_ms: Callable[[], int],
    poll_s: float = 0.05,
    heartbeat_s: float = 1.0,
    silence_s: float = 10.0,
    leader_answers: LeaderCheck = never_answers,
    is_blocked: ProcessCheck = lambda _: False,
    vacuum_s: float = VACUUM_PERIOD_S,
) -> AsyncGenerator[EmbeddedHaServices]:
    """Open the state directory, creating it if it does not exist; on exit all writes are durable and it is closed.

    A standby polls every `poll_s` whether it can lead, and kills a leader whose heartbeat has not changed for
    `silence_s` if `silent_leader_watch` proves that it is frozen, where the system can do that safely; `is_blocked`
    says of a process whether its work on one job does not end. Raises Refused,
    with the reason, for a store that this version must not touch; Unavailable for one that cannot be opened now.
    """
    path = state_dir / STORE_FILE
    _check_not_lost(path, state_dir / LOCK_FILE)
    writer = GroupWriter(await asyncio.to_thread(open_writer, path))
    identity = FileIdentity(path)
    writer.start()
    readers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")
    try:
        reader = await asyncio.get_running_loop().run_in_executor(readers, open_reader, path)
        try:
            file = StoreFile(writer, reader, readers)
            register = SqliteLeaderRegister(file, poll_s)
            election = FileElection(
                path=state_dir / LOCK_FILE,
                writer=writer,
                identity=identity,
                new_session=new_session,
                now_ms=now_ms,
                poll_s=poll_s,
                heartbeat_s=heartbeat_s,
                watch=SilentLeaderWatch(
                    store=path,
                    lock=state_dir / LOCK_FILE,
                    writer=writer,
                    poll_s=max(heartbeat_s / 2, poll_s),
                    silence_s=silence_s,
                    heartbeat=partial(_heartbeat, file),
                    leader=register.current,
                    answers=leader_answers,
                    is_blocked=is_blocked,
                ),
                chores=lambda token: return_free_pages(file, token, vacuum_s),
            )
            yield EmbeddedHaServices(file, election, register, silence_s)
        finally:
            readers.shutdown(wait=True)  # reads are short
            reader.close()
    finally:
        readers.shutdown(wait=True)
        await writer.close()


def _check_not_lost(store: Path, lock: Path) -> None:
    """Refuse, or warn of, a state directory that has been used and has no store any more.

    Opening creates an empty store. Beside a write-ahead log without its database, it would remove what is left.
    """
    if _size(store):
        return
    if _size(store.with_name(f"{store.name}-wal")):
        raise Refused(
            f"{store} is missing or empty, but {store.name}-wal beside it has data of it: put the file back, or remove"
            " both to start with an empty cluster"
        )
    if lock.exists():
        log.warning(
            log_events.STORE_MISSING,
            store=str(store),
            reason="a JobManager has led here before: its jobs are unknown from now on",
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def _heartbeat(file: StoreFile) -> HeartbeatRow | None:
    rows = await file.rows("SELECT epoch, session, pid, at_ms FROM heartbeat")
    return HeartbeatRow(*rows[0]) if rows else None
