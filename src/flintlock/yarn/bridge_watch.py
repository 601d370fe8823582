"""Notices a bridge to YARN that hangs, and ends it.

Calls of YARN's classes may block for long: while its ResourceManager is away, a heartbeat does. The bridge itself
answers all the same. If it does not, nothing is requested, released or noticed any more, and YARN would wait for many
minutes before it starts another attempt.

Rejected: a limit for heartbeats, which would have to be longer than any absence of the ResourceManager.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.host.processes.daemon_threads import DaemonThreads
from flintlock.model import log_events
from flintlock.model.errors import Unavailable
from flintlock.yarn.gateways import ApplicationMasterGateway

log: FilteringBoundLogger = structlog.get_logger()

#: How often an answer is looked for within the limit. A pause of this process counts as one look, however long it was.
_LOOKS: Final = 5


async def watch_bridge(gateway: ApplicationMasterGateway, limit_s: float) -> NoReturn:
    """Watch until cancelled. Raises Unavailable if the bridge has ended; one that does not answer is ended first."""
    threads = DaemonThreads(1, "yarn-bridge-watch")
    look_s = limit_s / _LOOKS
    while True:
        answer = asyncio.wrap_future(threads.submit(gateway.check_bridge))
        for _ in range(_LOOKS):
            await asyncio.wait({answer}, timeout=look_s)
            if answer.done():
                break
        else:
            answer.cancel()
            reason = f"the bridge to YARN has not answered for {limit_s:g} s, and was ended"
            log.error(log_events.YARN_BRIDGE_SILENT, reason=reason)
            gateway.end_bridge()
            raise Unavailable(reason)
        await answer
        await asyncio.sleep(look_s)
