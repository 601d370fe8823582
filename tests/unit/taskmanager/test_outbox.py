"""Reports are repeated until they are answered, in order; superseded progress is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from tests.unit.taskmanager.orders import attempt_id, failed

from flintlock.model.errors import Fenced, FlintlockError, NotFound, Refused, TooLarge, Unavailable
from flintlock.model.ids import AttemptId, InstanceId, TaskManagerId
from flintlock.model.tasks import (
    Failure,
    FailureKind,
    FilesPublished,
    TaskFailed,
    TaskFinished,
    TaskMetrics,
    TaskNews,
    TaskProgress,
    TaskReport,
    TaskRunning,
)
from flintlock.taskmanager.outbox import Outbox
from flintlock.testing.fakes.fake_jobmaster import FakeJobMaster
from flintlock.testing.virtual_time import run_virtual, virtual_time

A, B = attempt_id(0), attempt_id(1)


def progress(number: int) -> TaskProgress:
    return TaskProgress(metrics=TaskMetrics(tasks_done=number))


def report(news: TaskNews, attempt: AttemptId = A) -> TaskReport:
    return TaskReport(attempt=attempt, task_manager=TaskManagerId("tm"), instance=InstanceId("1"), news=news)


@asynccontextmanager
async def outbox_to(masters: FakeJobMaster) -> AsyncGenerator[Outbox]:
    """An outbox that is closed at the end."""
    async with asyncio.TaskGroup() as tasks:
        outbox = Outbox(tasks, lambda: masters)
        try:
            yield outbox
        finally:
            outbox.close()


def news(masters: FakeJobMaster, attempt: AttemptId = A) -> list[TaskNews]:
    return [item.news for item in masters.reports_of(attempt)]


@pytest.mark.parametrize("error", [Unavailable("no answer"), Fenced("not any more")])
def test_reports_are_repeated_until_they_are_answered(error: FlintlockError) -> None:
    """None is lost and none overtakes another, however long there is no answer."""
    masters = FakeJobMaster()

    async def run_scenario() -> None:
        async with outbox_to(masters) as outbox:
            masters.fail_with = error
            outbox.send(report(TaskRunning()))
            outbox.send(report(TaskFinished()))
            await asyncio.sleep(120)
            assert masters.reports == []
            masters.fail_with = None
            await outbox.drained()

    run_virtual(run_scenario())

    assert news(masters) == [TaskRunning(), TaskFinished()]
    assert masters.tries > 100


@virtual_time
async def test_attempts_do_not_wait_for_each_other() -> None:
    """Order is kept within an attempt only."""
    masters = FakeJobMaster()
    masters.delay_s = 1
    async with outbox_to(masters) as outbox:
        for number in range(10):
            outbox.send(report(TaskRunning(), attempt_id(number)))
        await asyncio.sleep(1.5)

        assert len(masters.reports) == 10


@virtual_time
async def test_only_the_latest_progress_waits() -> None:
    """Progress that was not delivered yet is replaced; other reports are not."""
    masters = FakeJobMaster()
    masters.delay_s = 10
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskRunning()))
        await asyncio.sleep(1)
        for number in range(100):
            outbox.send(report(progress(number)))
        outbox.send(report(TaskFinished()))
        outbox.send(report(FilesPublished(done=1, total=3)))
        outbox.send(report(FilesPublished(done=2, total=3)))
        outbox.send(report(FilesPublished(done=3, total=3, complete=True)))
        await outbox.drained()

    assert news(masters) == [
        TaskRunning(),
        progress(99),
        TaskFinished(),
        FilesPublished(done=2, total=3),
        FilesPublished(done=3, total=3, complete=True),
    ]


@virtual_time
async def test_progress_under_way_is_not_replaced() -> None:
    """What is being delivered is delivered; the newest one follows."""
    masters = FakeJobMaster()
    masters.delay_s = 10
    async with outbox_to(masters) as outbox:
        outbox.send(report(progress(1)))
        await asyncio.sleep(1)
        outbox.send(report(progress(2)))
        outbox.send(report(progress(3)))
        await outbox.drained()

    assert news(masters) == [progress(1), progress(3)]


@virtual_time
async def test_reports_to_a_job_without_jobmaster_are_dropped() -> None:
    """The next report is sent nevertheless."""
    masters = FakeJobMaster()
    masters.fail_with = NotFound("no JobMaster runs it")
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskRunning()))
        await outbox.drained()
        masters.fail_with = None
        outbox.send(report(TaskFinished()))
        await outbox.drained()

    assert news(masters) == [TaskFinished()]


@virtual_time
async def test_cleared_reports_are_not_sent() -> None:
    """Reports that are queued later are sent."""
    masters = FakeJobMaster()
    masters.fail_with = Unavailable("no answer")
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskRunning()))
        outbox.send(report(TaskRunning(), B))
        await asyncio.sleep(1)
        outbox.clear()
        masters.fail_with = None
        outbox.send(report(TaskFinished(), B))
        await outbox.drained()

    assert [(item.attempt, item.news) for item in masters.reports] == [(B, TaskFinished())]


@virtual_time
async def test_a_closed_outbox_sends_nothing() -> None:
    """Even while a report is under way; later ones are dropped."""
    masters = FakeJobMaster()
    masters.delay_s = 3600
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskRunning()))
        await asyncio.sleep(1)
        outbox.send(report(TaskRunning(), B))
        outbox.close()
        outbox.send(report(TaskFinished(), attempt_id(2)))
        await outbox.drained()

    assert asyncio.get_running_loop().time() < 10
    assert masters.reports == []


class NarrowJobMasters(FakeJobMaster):
    """Takes no results and no stack traces."""

    async def report(self, message: TaskReport) -> None:
        match message.news:
            case TaskFinished():
                raise TooLarge("the request has 99 bytes, more than the 10 allowed")
            case TaskFailed(failure=Failure(stack_trace=str(trace))) if trace:
                raise TooLarge("the request has 99 bytes, more than the 10 allowed")
            case _:
                await super().report(message)


@virtual_time
async def test_a_result_too_large_to_be_sent_is_a_failure() -> None:
    """A JobMaster never waits for ever for an outcome that cannot be sent: it receives the reason."""
    masters = NarrowJobMasters()
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskFinished()))
        await outbox.drained()

    (sent,) = news(masters)
    assert isinstance(sent, TaskFailed)
    assert sent.failure.kind is FailureKind.CONFIGURATION
    assert "99 bytes" in sent.failure.message
    assert "sink" in sent.failure.message


@virtual_time
async def test_a_failure_too_large_to_be_sent_loses_its_stack_traces() -> None:
    """The user's own part of it arrives."""
    masters = NarrowJobMasters()
    long = Failure(kind=FailureKind.USER_CODE, message="boom", exception="ValueError", stack_trace="x" * 99)
    async with outbox_to(masters) as outbox:
        outbox.send(report(TaskFailed(failure=long)))
        await outbox.drained()

    (sent,) = news(masters)
    assert isinstance(sent, TaskFailed)
    assert (sent.failure.message, sent.failure.stack_trace) == ("boom", "")


@virtual_time
async def test_a_refused_report_is_not_repeated_for_ever() -> None:
    """What can never be accepted is dropped, and the next ones are sent."""
    masters = FakeJobMaster()
    masters.fail_with = Refused("no")
    async with outbox_to(masters) as outbox:
        outbox.send(report(failed()))
        await outbox.drained()

    assert masters.tries == 1
