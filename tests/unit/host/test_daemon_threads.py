"""Blocking work in a thread that no exit waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from flintlock.host.processes.daemon_threads import DaemonThreads, run_in_daemon_thread

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_caller_gets_the_value_or_the_error() -> None:
    def fail() -> None:
        raise OSError("no")

    assert await run_in_daemon_thread(lambda: 7, name="work") == 7
    with pytest.raises(OSError, match="no"):
        await run_in_daemon_thread(fail, name="work")


async def test_a_caller_that_gives_up_does_not_wait_for_the_thread() -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(release.wait, name="hanging")
    release.set()


def test_a_pool_does_all_work_with_a_limited_number_of_threads() -> None:
    threads = DaemonThreads(3, "pool")
    used = {future.result() for future in [threads.submit(threading.get_ident) for _ in range(200)]}
    assert 1 <= len(used) <= 3
    assert threads.close(10.0)
    with pytest.raises(RuntimeError):
        threads.submit(lambda: None)


def test_closing_finishes_what_was_submitted_but_does_not_wait_for_what_hangs() -> None:
    threads, release, done = DaemonThreads(1, "pool"), threading.Event(), threading.Event()
    threads.submit(release.wait)
    threads.submit(done.set)
    assert not threads.close(0.01)
    release.set()
    assert done.wait(10.0)


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    program = """
import asyncio, threading
from flintlock.host.processes.daemon_threads import run_in_daemon_thread
async def main():
    try:
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(threading.Event().wait, name="hanging")
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == "given up\n"
