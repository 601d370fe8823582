"""An event loop that does nothing, measured as that of a JobManager is: how long this machine lets a process wait.

python -m bench.idle_loop    prints the longest delay in milliseconds when its input is closed
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from flintlock.monitoring.loop_monitor import LoopMonitor


@contextmanager
def idle_loop() -> Generator[Callable[[], float]]:
    """Run one in a process of its own; yield what ends it and returns its longest delay in milliseconds."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.idle_loop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield lambda: float(process.communicate()[0])
        finally:
            process.kill()


async def _run() -> float:
    async with LoopMonitor() as monitor:
        await asyncio.to_thread(sys.stdin.read)
        return monitor.longest_s * 1000


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(_run())}\n")
