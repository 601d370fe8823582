"""Noticing the death of a process at once: one call stays open that its peer does not answer while it lives.

When a process dies, the kernel closes its connections, and the open call breaks. That alone proves nothing (a switch
may have closed them), so the call is repeated a few times within a short grace period, and only an answer that proves
something counts then. Every other failure (no answer, a partitioned network) may be a machine that is busy, frozen or
far away: the call is opened again, and timeouts elsewhere deal with the silence.

Rejected: short calls every second (each would have to fail twice before it means anything, and a thousand processes
would receive a thousand calls a second).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

LIVENESS_CALL_TIMEOUT_S: Final = 3600.0
"""How long such a call stays open. Longer than any timeout that could hide a death."""


async def wait_for_verdict(
    probe: Callable[[], Awaitable[T | None]], retry_delays_s: Sequence[float], pause_s: float = 1.0
) -> T:
    """Return what `probe` has proved, once it proves something after a whole round of retries.

    `probe` waits for an answer and returns what that proves, None if nothing. `retry_delays_s` are the pauses before
    it is repeated, once an open call has ended; their sum is the grace period. After that it is repeated every
    `pause_s` for as long as it fails at once.
    """
    loop = asyncio.get_running_loop()
    retries = 0
    while True:
        begun_s = loop.time()
        verdict = await probe()
        if loop.time() - begun_s > sum(retry_delays_s):
            retries = 0  # the peer was there meanwhile, or is only silent
        if retries < len(retry_delays_s):
            await asyncio.sleep(retry_delays_s[retries])
            retries += 1
        elif verdict is not None:
            return verdict
        else:
            await asyncio.sleep(pause_s)
