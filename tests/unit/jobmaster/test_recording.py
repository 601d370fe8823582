"""What is recorded of a job, in which order, and when it counts as durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flintlock.ha.leader_gate import LeaderGate
from flintlock.jobmaster.events import Record, RecordHistory
from flintlock.jobmaster.recording import ProgressRecorder
from flintlock.model.ids import InstanceId, JobId, RegionId, TaskManagerId
from flintlock.model.jobs import JobHistory
from flintlock.model.tasks import RegionPhase, RegionRecord
from flintlock.testing.fakes.fake_stores import FakeProgressStore
from flintlock.testing.virtual_time import virtual_time

JOB = JobId("a" * 32)
REGION = RegionId(0)


def spawn(work: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
    async def run() -> None:
        await work()

    return asyncio.get_running_loop().create_task(run(), name=name)


def history(restarts: int) -> RecordHistory:
    return RecordHistory(JobHistory(job_id=JOB, infrastructure_restarts=restarts))


def ignore(_: RegionRecord) -> None:
    """Take note of a durable record."""


def deployed(attempt: int) -> RegionRecord:
    return RegionRecord(
        job_id=JOB,
        region=REGION,
        phase=RegionPhase.DEPLOYED,
        attempt=attempt,
        task_manager=TaskManagerId("tm"),
        instance=InstanceId("tm-1"),
    )


@virtual_time
async def test_an_attempt_is_durable_only_after_the_history_before_it() -> None:
    store, durable = FakeProgressStore(), list[int]()
    recorder = ProgressRecorder(store, LeaderGate())
    store.history_gate.clear()
    recorder.begin(history(1), spawn, ignore)
    recorder.begin(Record(deployed(1)), spawn, lambda record: durable.append(record.attempt))
    await asyncio.sleep(1)
    assert store.history == []

    store.history_gate.set()
    assert await recorder.wait_until_durable(REGION)
    assert (durable, store.histories) == ([1], [history(1).history])
    assert recorder.unfinished == ()


@virtual_time
async def test_a_history_that_is_begun_while_the_last_one_is_awaited_is_awaited_too() -> None:
    store = FakeProgressStore()
    recorder = ProgressRecorder(store, LeaderGate())
    store.history_gate.clear()
    recorder.begin(history(1), spawn, ignore)
    first = recorder.unfinished[0]
    first.add_done_callback(lambda _: recorder.begin(history(2), spawn, ignore))  # before the waiting caller goes on
    waiting = asyncio.get_running_loop().create_task(recorder.wait_until_durable(REGION))
    await asyncio.sleep(1)

    store.history_gate.set()
    assert await waiting, "nothing was cut short"
    assert store.histories == [history(1).history, history(2).history]


@virtual_time
async def test_what_was_cut_short_is_not_durable() -> None:
    store = FakeProgressStore()
    recorder = ProgressRecorder(store, LeaderGate())
    store.gate.clear()
    recorder.begin(Record(deployed(0)), spawn, ignore)
    await asyncio.sleep(1)
    for task in recorder.unfinished:
        task.cancel()

    assert not await recorder.wait_until_durable(REGION)
