"""Gives a task up whose own Spark driver waits for executors that do not come.

Spark itself waits for ever, for a free core of a standalone master or for the application's turn in a queue of YARN. In
the second case there is no SparkContext yet: its constructor waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from flintlock.spark.engine.executors.demand import ExecutorWatch, has_executors, watch_patience_s
from flintlock.spark.engine.metrics import executor_count, has_work
from flintlock.spark.runner_messages import DedicatedEngine

_INTERVAL_S: Final = 1.0


def watch_driver(conf: Mapping[str, str], engine: DedicatedEngine, give_up: Callable[[str], None]) -> None:
    """Start a thread that calls `give_up` with the reason, once; none for a driver without executors elsewhere."""
    if not has_executors(conf.get("spark.master", "local")):
        return
    patience_s = watch_patience_s(conf, lease_s=engine.lease_s, start_timeout_s=engine.start_timeout_s, on_demand=True)
    watch = ExecutorWatch(conf, patience_s, on_demand=True)
    threading.Thread(target=_watch, args=(watch, give_up), name="flintlock-executors", daemon=True).start()


def executors_and_work(context: Any) -> tuple[int, bool]:
    """Return how many executors a SparkContext of PySpark has, and whether it needs some."""
    if context is None:
        return 0, False
    java = getattr(context, "_jsc", None)
    if java is None:  # it is being made, or was stopped; one that was stopped is not active
        return 0, True
    driver = java.sc()
    if not has_executors(str(driver.master())):
        return 0, False  # user code has chosen another master
    return executor_count(driver), has_work(driver)


def _watch(watch: ExecutorWatch, give_up: Callable[[str], None]) -> None:
    from pyspark import SparkContext

    pause = threading.Event()
    while not pause.wait(_INTERVAL_S):
        try:
            executors, needed = executors_and_work(getattr(SparkContext, "_active_spark_context"))  # noqa: B009
        except Exception:  # noqa: BLE001, S112 - a driver that ends just now; if it has failed, the task fails
            continue
        problem = watch.problem(executors=executors, has_work=needed, now_s=time.monotonic())
        if problem is not None:
            give_up(f"the job's own Spark driver is given up: {problem}")
            return
