"""A process whose event loop stands still while its other threads run: they keep its session alive, and end it.

Some loops stand still in the work on one job, which costs each leader that runs it. Promised is that two are the most.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from random import Random
from typing import Final, Protocol

from flintlock.dispatcher.recovery import MAX_LOST_LEADERS
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.monitoring.standstill import LONGEST_GAP_S, Standstill
from flintlock.testing.simulation.ha import DurableCluster, SimulatedHa
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


class Led(Protocol):
    """The part of a simulated cluster that one of its jobs blocks."""

    violations: list[str]
    durable: DurableCluster

    def leader(self) -> str:
        """Return which JobManager was the latest to lead."""
        ...

    def leads(self, name: str) -> FencingToken | None:
        """Return the token under which a JobManager leads, with all jobs recovered; None if it does not."""
        ...

    def live_jobs(self) -> list[JobId]:
        """Return the jobs that a leader runs, or would recover."""
        ...

    async def block_loop(self, name: str, length_s: float, on_end: Callable[[], None]) -> None:
        """Let the event loop of a JobManager stand still. `on_end` is called if its process is ended for that."""
        ...


class BlockingJob:
    """A job that blocks the loop of each leader that runs it, and the records of that (`monitoring.blocking_jobs`)."""

    def __init__(self, cluster: Led) -> None:
        self.random = Random(0)
        self._cluster: Final = cluster
        self._records: Final[Counter[JobId]] = Counter()
        self.last_lost: Final[dict[JobId, Epoch]] = {}  # jobs that have cost two leaders: the term in which that was so

    async def lost_leaders(self, job_ids: Collection[JobId]) -> Mapping[JobId, int]:
        """Return how many leaders each of these jobs has cost; remove the records of all others."""
        for job_id in self._records.keys() - set(job_ids):
            del self._records[job_id]
        return dict(self._records)

    async def run(self, times: int, until_s: float) -> None:
        """Block so many leaders, one after another, by one job as long as it is live."""
        loop, job_id = asyncio.get_running_loop(), JobId("")
        while times and loop.time() < until_s:
            await asyncio.sleep(self.random.uniform(0.2, 2.0))
            name, live = self._cluster.leader(), sorted(self._cluster.live_jobs())
            token = self._cluster.leads(name)
            if token is None or not live:
                continue
            job_id = job_id if job_id in live else self.random.choice(live)
            if self._records[job_id] >= MAX_LOST_LEADERS and token.epoch > self.last_lost[job_id]:
                self._cluster.violations.append(f"job {job_id} has cost two leaders, and epoch {token.epoch} runs it")
                return
            await self._cluster.block_loop(name, math.inf, partial(self._lose, job_id))
            times -= 1

    def _lose(self, job_id: JobId) -> None:
        self._records[job_id] += 1
        if self._records[job_id] >= MAX_LOST_LEADERS:
            self.last_lost[job_id] = self._cluster.durable.token.epoch  # of a successor, if there is one already
