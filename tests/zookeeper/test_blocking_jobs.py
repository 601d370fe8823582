"""Jobs that block leaders of several hosts are known to all of them, also where the loops of these stand still."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.contract.records import JOB_A, JOB_B
from tests.zookeeper.cluster_harness import ClusterHarness, running_cluster
from tests.zookeeper.servers import Ensemble, running_ensemble

from flintlock.ha.zookeeper.blocking_jobs import ANSWER_LIMIT_S, ZooKeeperBlockingJobs
from flintlock.ha.zookeeper.tree import Tree
from flintlock.monitoring.current_job import CurrentJob
from flintlock.monitoring.loop_monitor import BlockingJobWatcher, LoopMonitor
from flintlock.monitoring.standstill import StandstillLimit

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def harness(zookeeper: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(zookeeper.quorum, tmp_path) as harness:
        yield harness


async def block(records: ZooKeeperBlockingJobs, work: Callable[[threading.Event], None]) -> None:
    """Work on a job until the process of this loop would have been ended, and leave its record."""
    current, over, ended = CurrentJob(), threading.Event(), list[str]()

    def end(reason: str) -> None:
        ended.append(reason)
        over.set()

    watcher, limit = BlockingJobWatcher(current, records), StandstillLimit(lambda: 0.5, end)
    monitor = LoopMonitor(warn_after_s=0.05, watcher=watcher, limit=limit)
    with capture_logs():
        await monitor.__aenter__()  # not left: the process would have ended
        await asyncio.sleep(0.02)
        with current.working_on(JOB_A):
            work(over)
        await asyncio.sleep(0.05)
    assert len(ended) == 1


def compute(over: threading.Event) -> None:
    end_s = time.monotonic() + 60
    while not over.is_set() and time.monotonic() < end_s:
        pass


async def test_leaders_of_two_hosts_that_a_job_has_blocked_are_counted_as_two(harness: ClusterHarness) -> None:
    """They share no directory: each has written its record while its loop stood still."""
    processes = [await harness.process(timeout_s=15) for _ in range(3)]
    for process in processes[:2]:
        await block(process.blocking_jobs, compute)

    successor = processes[2].blocking_jobs
    assert await asyncio.to_thread(successor.lost_leaders, (JOB_A, JOB_B)) == {JOB_A: 2}


async def test_work_that_ends_leaves_no_record_and_other_jobs_are_forgotten(harness: ClusterHarness) -> None:
    process = await harness.process(timeout_s=15)
    records, path = process.blocking_jobs, Tree("/flintlock", harness.cluster_id).blocking_jobs

    def work() -> dict[str, int]:
        ended, written = records.name(JOB_A), records.name(JOB_A)
        for record in (ended, written, written, records.name(JOB_B)):  # repeated: the answer was lost
            records.write(record)
        records.remove(ended)
        records.remove(ended)
        return {**records.lost_leaders((JOB_A,))}

    assert await asyncio.to_thread(work) == {JOB_A: 1}
    assert len(await process.link.children(path)) == 1
    leader = harness.contend(process)
    await leader.until(lambda leader: leader.leads)
    await process.cleanup_all_data(leader.tokens[-1])
    assert await process.link.children(path) == []


async def test_ensemble_that_does_not_answer_holds_a_thread_up_for_a_bounded_time(tmp_path: Path) -> None:
    with running_ensemble(tmp_path / "ensemble") as ensemble:
        async with running_cluster(ensemble.quorum, tmp_path) as harness:
            records = (await harness.process(timeout_s=15)).blocking_jobs
            ensemble.servers[0].signal(signal.SIGSTOP)
            try:
                began_s = time.monotonic()
                with pytest.raises(OSError, match="ZooKeeper"):
                    await asyncio.to_thread(records.write, records.name(JOB_A))
                assert time.monotonic() - began_s < ANSWER_LIMIT_S + 5
            finally:
                ensemble.servers[0].signal(signal.SIGCONT)
