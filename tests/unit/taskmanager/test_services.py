"""What a TaskManager does on its own disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path, PosixPath

import pytest

from flintlock.taskmanager.services import make_log_directory


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class StalledPath(PosixPath):
    """A path on a disk that does not answer until it is resumed."""

    begun = threading.Event()
    resumed = threading.Event()

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Wait for the disk."""
        self.begun.set()
        self.resumed.wait(10)
        super().mkdir(mode, parents, exist_ok)


@pytest.mark.anyio
async def test_a_disk_that_stalls_holds_up_an_attempt_and_not_the_event_loop(tmp_path: Path) -> None:
    log = StalledPath(tmp_path, "jobs", "attempt.log")
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        making = tasks.create_task(make_log_directory(log))
        while not StalledPath.begun.is_set():  # noqa: ASYNC110 (of a thread)
            await asyncio.sleep(0.01)
        assert not making.done()
        StalledPath.resumed.set()
        await making
    assert (tmp_path / "jobs").is_dir()
