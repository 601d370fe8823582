"""Returns unused pages of the store to the file system: the file shrinks after jobs were forgotten.

Removed records leave free pages in the file, which SQLite uses again but never returns by itself. The leader checks
once a minute, and returns them in small steps, each a write like any other: between two of them other writes take
place, and a step that is lost in a crash is simply done again. Some pages are left, so that a store with constant use
does not shrink and grow all the time.

Rejected: `VACUUM`. It writes the whole file again, and locks the store meanwhile.
"""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Final

import structlog

from flintlock.ha.embedded.stores import StoreFile, check_token
from flintlock.ha.embedded.writer import LARGE
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError
from flintlock.model.ids import FencingToken

log = structlog.get_logger(__name__)

VACUUM_PERIOD_S: Final = 60.0
_PAUSE_S: Final = 0.05  # between two steps
_STEP: Final = 500  # pages of one step: 2 MB
_LEFT: Final = 2_000  # free pages that stay


async def return_free_pages(file: StoreFile, token: FencingToken, period_s: float) -> None:
    """Return free pages again and again, until cancelled. Errors are logged: it is tried again."""
    while True:
        await asyncio.sleep(period_s)
        try:
            returned = await _return_once(file, token)
        except FlintlockError as error:
            log.warning(log_events.STORE_NOT_SHRUNK, reason=error.public)
        else:
            if returned:
                log.info(log_events.STORE_SHRUNK, pages=returned)


async def _return_once(file: StoreFile, token: FencingToken) -> int:
    """Return free pages until few are left; return how many."""
    before = free = await _free_pages(file)
    while free > max(_LEFT, before // 20):
        await file.writer.write(lambda connection: _step(connection, token), LARGE)
        left = await _free_pages(file)
        if left >= free:  # a file of a version that did not ask for it when it created the file
            break
        free = left
        await asyncio.sleep(_PAUSE_S)
    return before - free


async def _free_pages(file: StoreFile) -> int:
    return int((await file.rows("PRAGMA freelist_count"))[0][0])


def _step(connection: sqlite3.Connection, token: FencingToken) -> None:
    check_token(connection, token)
    for _ in range(_STEP):  # Python's sqlite3 ends the statement after one page, whatever number it names
        connection.execute("PRAGMA incremental_vacuum(1)")
