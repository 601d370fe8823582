"""A process whose event loop stands still while its other threads run: they keep its session alive, and end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from flintlock.monitoring.standstill import LONGEST_GAP_S, Standstill
from flintlock.testing.simulation.ha import SimulatedHa
from flintlock.testing.simulation.network import SimulatedProcess


async def block_loop(process: SimulatedProcess, ha: SimulatedHa, length_s: float, end: Callable[[], None]) -> None:
    """Let the loop stand still for a while, or until the thread that watches it ends the process by `end`.

    To all others it is as if the process were frozen, but for its session.
    """
    loop = asyncio.get_running_loop()
    standstill, due_s = Standstill(), loop.time()
    process.freeze()
    try:
        while process.alive and loop.time() < due_s + length_s:
            ha.link.ping_beside_the_loop()
            if standstill.look(loop.time(), due_s) >= ha.standstill_limit_s:
                end()
                return
            await asyncio.sleep(LONGEST_GAP_S)
    finally:  # the run may end meanwhile
        process.thaw()
