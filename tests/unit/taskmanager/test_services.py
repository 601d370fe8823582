"""What a TaskManager does on its own disk."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path, PosixPath

import pytest

from flintlock.taskmanager.services import make_linked_log, make_log_directory


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


@pytest.mark.anyio
async def test_the_output_of_an_attempt_is_in_the_log_directory_after_the_job_is_forgotten(tmp_path: Path) -> None:
    """YARN aggregates the files of a container's log directory, and none of its directories."""
    path = tmp_path / "log" / "jobs" / "ab" / "0-1.log"
    for _ in range(2):  # an order that was repeated
        await make_linked_log(path)
    with path.open("a") as file:
        file.write("printed\n")
    shutil.rmtree(path.parent)
    linked = tmp_path / "log" / "job-ab-0-1.log"
    assert linked.read_text() == "printed\n"
    assert linked.stat().st_mode & 0o077 == 0
