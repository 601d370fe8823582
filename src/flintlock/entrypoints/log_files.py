"""Keeps the log files of this process below the configured size, while a context lasts.

A process whose output goes elsewhere (to a service manager, a terminal) is left alone: its receiver limits
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from flintlock.config.configuration import Configuration
from flintlock.config.options import LOG_FILE_SIZE, LOG_FILES
from flintlock.host.logs.log_rotation import log_of, rotate_copied, rotate_own
from flintlock.model import log_events
from flintlock.model.repeated_failures import RepeatedFailure

log = structlog.get_logger()

_CHECK_S: Final = 10.0
_STDOUT: Final = 1
_STDERR: Final = 2


@asynccontextmanager
async def rotating_logs(configuration: Configuration, directory: Path, *others: Path) -> AsyncGenerator[None]:
    """Rotate what this process writes into the directory, and the logs of its children, which it passes as `others`."""
    max_bytes, keep = configuration.get(LOG_FILE_SIZE), configuration.get(LOG_FILES)
    rotations = [partial(rotate_copied, path, max_bytes=max_bytes, keep=keep) for path in others]
    own = log_of(directory, _STDERR)
    if own is not None:
        descriptors = [number for number in (_STDOUT, _STDERR) if log_of(directory, number) == own]
        rotations.append(partial(rotate_own, own, descriptors, max_bytes=max_bytes, keep=keep))
    async with asyncio.TaskGroup() as tasks:
        rotating = tasks.create_task(_rotate(rotations), name="log-rotation")
        try:
            yield
        finally:
            rotating.cancel()


async def _rotate(rotations: list[Callable[[], bool]]) -> None:
    failure = RepeatedFailure()
    while True:
        for rotate in rotations:
            try:
                await asyncio.to_thread(rotate)
            except OSError as error:  # a full disk: tried again
                if failure.occurred(str(error), asyncio.get_running_loop().time()):
                    log.warning(log_events.LOG_NOT_ROTATED, reason=str(error))
        await asyncio.sleep(_CHECK_S)
