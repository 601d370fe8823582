"""A process that leads and writes without end, and says what happens: `frozen_leader.py <quorum> <cluster> <dir> <s>`.

Each line of its output is one of: `leads <epoch> <session>`, `wrote`, `refused <error>`, `over`.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import suppress

import structlog
from tests.contract.records import JOB_A, region_record

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.zookeeper.services import zookeeper_ha
from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes.parent_death import die_with_parent
from flintlock.model.errors import FlintlockError


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


async def main(quorum: str, cluster_id: str, storage_dir: str, timeout_s: str) -> None:
    async with zookeeper_ha(
        quorum,
        root="/flintlock",
        cluster_id=cluster_id,
        storage_dir=storage_dir,
        session_timeout_s=float(timeout_s),
        connection_timeout_s=15,
        new_session=lambda: uuid.uuid4().hex,
        clock_s=boot_time_s,
    ) as ha:
        async with await anext(ha.election.terms()) as token:
            await ha.leader.publish(LeaderInfo(token=token, rpc="helper:1", rest="http://helper"))
            say(f"leads {token.epoch} {token.session}")
            progress = ha.stores(token).progress
            with suppress(asyncio.CancelledError):
                for attempt in range(1 << 30):
                    try:
                        await progress.record(region_record(JOB_A, attempt=attempt))
                        say("wrote")
                    except FlintlockError as error:
                        say(f"refused {type(error).__name__} {error.public}")
                    await asyncio.sleep(0.02)
        say("over")


if __name__ == "__main__":
    # The output has these lines only: log lines, which another thread writes, could come between a line and its end.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    die_with_parent(int(sys.argv[1]))
    asyncio.run(main(*sys.argv[2:]))
