"""Noticing a death at once: one call is open that is never answered while whoever was asked lives.

When a process dies, the kernel closes its connections, and the call breaks. That alone proves nothing (a switch may
have done it), so the question is put again a few times, within a short grace. Only an answer that proves something
counts then. All other trouble (no answer, a network that is cut) may be a machine that is busy, frozen or far away:
the question stays open, and its silence is left to others.

Rejected: short calls every second (each would have to fail twice before it means anything, and a thousand processes
would be asked a thousand times a second).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

ATTENDING_S: Final = 3600.0
"""How long such a call stays open. Longer than any timeout that could hide a death."""

_PAUSE_S: Final = 1.0  # between two rounds that proved nothing


async def attended(ask: Callable[[], Awaitable[T | None]], again_s: Sequence[float]) -> T:
    """Return what `ask` has found, once it finds the same kind of thing at the end of a whole round.

    `ask` waits for an answer and returns what it proves, None if nothing. `again_s` are the waits before it is asked
    again, once an open call has ended; their sum is the grace.
    """
    loop = asyncio.get_running_loop()
    again = 0
    while True:
        begun_s = loop.time()
        found = await ask()
        if loop.time() - begun_s > sum(again_s):
            again = 0  # it was there meanwhile, or is only silent
        if again < len(again_s):
            await asyncio.sleep(again_s[again])
            again += 1
        elif found is not None:
            return found
        else:
            await asyncio.sleep(_PAUSE_S)
            again = 0
