"""Keeps the log files of this process below the configured size and age, while a context lasts.

A process whose output goes elsewhere (to a service manager, a terminal) is left alone: its receiver limits
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import structlog

from flintlock.config.configuration import Configuration
from flintlock.config.options import LOG_FILE_INTERVAL, LOG_FILE_SIZE, LOG_FILES
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.logs.log_rotation import RotationTime, log_of, rotate_copied, rotate_own
from flintlock.model import log_events
from flintlock.model.failures.repeated_failures import RepeatedFailure

log = structlog.get_logger()

_CHECK_S: Final = 10.0
_STDOUT: Final = 1
_STDERR: Final = 2


class Rotation(Protocol):
    """Rotates one file if it is full; returns whether it was."""

    def __call__(self, *, max_bytes: int) -> bool:
        """Raises OSError."""
        ...


@asynccontextmanager
async def rotating_logs(configuration: Configuration, directory: Path, *others: Path) -> AsyncGenerator[None]:
    """Rotate what this process writes into the directory, and the logs of its children, which it passes as `others`."""
    max_bytes, keep = configuration.get(LOG_FILE_SIZE), configuration.get(LOG_FILES)
    rotations: list[Rotation] = [partial(rotate_copied, path, keep=keep) for path in others]
    own = log_of(directory, _STDERR)
    if own is not None:
        descriptors = [number for number in (_STDOUT, _STDERR) if log_of(directory, number) == own]
        rotations.append(partial(rotate_own, own, descriptors, keep=keep))
    async with asyncio.TaskGroup() as tasks:
        work = _rotate(rotations, max_bytes, configuration.get(LOG_FILE_INTERVAL))
        rotating = tasks.create_task(work, name="log-rotation")
        try:
            yield
        finally:
            rotating.cancel()


async def _rotate(rotations: list[Rotation], max_bytes: int, interval_s: float) -> None:
    failure = RepeatedFailure()
    ages = [RotationTime(interval_s, boot_time_s()) for _ in rotations]
    while True:
        for rotate, age in zip(rotations, ages, strict=True):
            try:
                if await asyncio.to_thread(rotate, max_bytes=age.limit(max_bytes, boot_time_s())):
                    age.rotated(boot_time_s())
            except OSError as error:  # a full disk: tried again
                if failure.occurred(str(error), boot_time_s()):
                    log.warning(log_events.LOG_NOT_ROTATED, reason=str(error))
        await asyncio.sleep(_CHECK_S)
