"""A watchdog is there as long as its TaskManager: one that dies or stops is replaced, and gets the same deadline."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes import watchdog_client
from flintlock.host.processes.children import record_child
from flintlock.host.processes.process import LocalProcesses
from flintlock.host.processes.watchdog_client import WatchdogClient, running_watchdog


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        record_child(tmp_path, "engine", process.pid)
        yield process
        process.kill()


async def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0.02)


async def replaced(client: WatchdogClient, number: signal.Signals) -> None:
    """Send the watchdog a signal, and wait for another one."""
    await until(lambda: client.pid is not None)
    former = client.pid
    assert former is not None
    os.kill(former, number)
    if number is signal.SIGSTOP:
        await until(lambda: LocalProcesses().is_stopped(former))
        client.watch(boot_time_s() + 600)
    await until(lambda: client.pid not in (None, former))
    assert not psutil.pid_exists(former)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_watchdog_that_is_gone_or_stopped_is_replaced(
    number: signal.Signals, tmp_path: Path, engine: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine keeps running, and the new watchdog kills it at its deadline."""
    monkeypatch.setattr(watchdog_client, "ACKNOWLEDGE_S", 0.5)

    async def run_scenario() -> None:
        async with running_watchdog(tmp_path, "") as client:
            client.watch(boot_time_s() + 600)
            await replaced(client, number)
            assert engine.poll() is None
            client.watch(boot_time_s())
            await until(lambda: engine.poll() is not None)

    asyncio.run(run_scenario())


def test_a_new_watchdog_gets_the_deadline_of_the_one_before(tmp_path: Path, engine: subprocess.Popen[bytes]) -> None:
    """Killed at any time, it leaves no gap longer than its replacement takes."""

    async def run_scenario() -> None:
        async with running_watchdog(tmp_path, "") as client:
            await until(lambda: client.pid is not None)
            client.watch(boot_time_s() + 1.0)
            await replaced(client, signal.SIGKILL)
            await until(lambda: engine.poll() is not None)

    asyncio.run(run_scenario())


def test_a_watchdog_ends_with_its_scope(tmp_path: Path, engine: subprocess.Popen[bytes]) -> None:
    """With everything that is recorded in its directory."""

    async def run_scenario() -> int:
        async with running_watchdog(tmp_path, "") as client:
            await until(lambda: client.pid is not None)
            client.watch(math.inf)
            assert client.pid is not None
            return client.pid

    watchdog = asyncio.run(run_scenario())

    assert not psutil.pid_exists(watchdog)
    assert engine.wait(10) == -signal.SIGKILL
