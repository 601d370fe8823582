"""Blocking work in a thread that no exit waits for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from flintlock.host.daemon_threads import run_in_daemon_thread

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


def test_a_thread_that_hangs_does_not_keep_the_process() -> None:
    program = """
import asyncio, threading
from flintlock.host.daemon_threads import run_in_daemon_thread
async def main():
    try:
        async with asyncio.timeout(0.01):
            await run_in_daemon_thread(threading.Event().wait, name="hanging")
    except TimeoutError:
        print("given up")
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert ended.stdout == "given up\n"
