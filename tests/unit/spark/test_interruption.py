"""Interrupts reach user code, whatever it waits in, and nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import suppress

import pytest

from flintlock.model.tasks import TaskMetrics, TaskProgress
from flintlock.spark.region.errors.failures import Interrupted
from flintlock.spark.region.progress import Progress
from flintlock.spark.runner.interruption import Interruption


@pytest.fixture(autouse=True)
def own_handler() -> Generator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted_while(user_code: Callable[[], object], stop_spark: Callable[[], None]) -> None:
    """Run user code as a runner does, and interrupt it from another thread."""
    interruption = Interruption()
    with interruption.armed():
        threading.Thread(target=interruption.request, args=(stop_spark,)).start()
        user_code()


def waits() -> None:
    threading.Event().wait(60)


def test_waiting_user_code_is_interrupted_and_spark_is_stopped() -> None:
    stopped = threading.Event()
    with pytest.raises(Interrupted):
        interrupted_while(waits, stopped.set)
    assert stopped.wait(60)


def test_a_broad_except_does_not_swallow_it() -> None:
    def careless() -> None:
        try:
            waits()
        except Exception:  # noqa: BLE001 - as users write it
            pytest.fail("swallowed")

    with pytest.raises(Interrupted):
        interrupted_while(careless, lambda: None)


def test_an_early_interrupt_prevents_user_code_from_running() -> None:
    interruption = Interruption()
    interruption.request(lambda: None)
    with pytest.raises(Interrupted), interruption.armed():
        pytest.fail("user code ran")


def test_an_interrupt_after_the_end_has_no_effect() -> None:
    interruption = Interruption()
    with interruption.armed():
        pass
    interruption.request(lambda: None)
    signal.raise_signal(signal.SIGINT)


def test_an_engine_that_does_not_respond_does_not_prevent_the_interrupt() -> None:
    def fails() -> None:
        raise ConnectionError

    with pytest.raises(Interrupted):
        interrupted_while(waits, fails)


def test_spark_is_stopped_again_where_the_exception_was_lost() -> None:
    """Python ignores what is raised in a finalizer: user code goes on, and Spark's work begins after it was stopped."""
    interruption, stopped = Interruption(), threading.Semaphore(0)
    with interruption.armed():
        with suppress(Interrupted):
            threading.Thread(target=interruption.request, args=(stopped.release,)).start()
            waits()
        for _ in range(2):
            assert stopped.acquire(timeout=60), "Spark's work was not stopped again"


class Stage:
    """As PySpark reports one."""

    def __init__(self, stage_id: int, done: int) -> None:
        self.stage_id = stage_id
        self.num_tasks = 4
        self.num_completed_tasks = done
        self.num_bytes_read = 10 * done
        self.done = done == 4


def test_stages_add_up_over_actions() -> None:
    reports: list[TaskProgress] = []
    progress = Progress(reports.append)
    progress.begin("writing a")
    progress([Stage(1, 2)], inflight_tasks=2, operation_id="x", done=False)
    progress([Stage(1, 4), Stage(2, 1)], inflight_tasks=1, operation_id="x", done=False)
    progress.begin("writing b")
    progress([Stage(3, 0)], inflight_tasks=1, operation_id="y", done=True)
    assert (reports[0].activity, reports[-1].activity) == ("writing a", "writing b")
    assert progress.metrics == TaskMetrics(read_bytes=50, stages_done=1, stages_total=3, tasks_done=5, tasks_total=12)
