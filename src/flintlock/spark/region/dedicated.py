"""A Spark driver of a task's own: its JVM is this runner's child, and ends with it.

`start` returns at once (and must be called while the process has one thread); `session` waits until the JVM answers.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flintlock.model.tasks import DeployTask, FailureKind, TaskMetrics
from flintlock.spark.engine.class_archive import archive_in_use
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import DriverJvm, JvmDied, JvmSettings, start_jvm
from flintlock.spark.engine.metrics import count, flush_events, job_ids
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.backend import ClassicBackend
from flintlock.spark.region.failures import TaskError
from flintlock.spark.region.programs import gateway_environment
from flintlock.spark.region.session_config import session_config
from flintlock.spark.runner_messages import DedicatedEngine

_started: Final[list[DriverJvm]] = []  # the one of this process, if it has one
_counted: Final[dict[str, TaskMetrics]] = {}  # by application, as they end


def start(engine: DedicatedEngine | None, task: DeployTask, scratch: str, log_path: str, artifacts: Artifacts) -> None:
    """Start the JVM: as many cores as the task has slots, the job's settings over the cluster's. Raises TaskError."""
    if engine is None:
        raise TaskError(FailureKind.CONFIGURATION, "this TaskManager starts no dedicated engines")
    modules = ",".join(str(path) for path in artifacts.uploads)
    conf = {
        "spark.master": f"local[{max(len(task.slots), 1)}]",
        "spark.app.name": task.graph.name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **engine.conf,
        **session_config(task),
    }
    if modules:
        conf["spark.submit.pyFiles"] = ",".join(filter(None, (conf.get("spark.submit.pyFiles"), modules)))
    java = find_java(os.environ)
    settings = JvmSettings(
        java=java,
        conf=conf,
        scratch_dir=str(Path(scratch) / ".driver"),
        log_file=log_path,
        run_dir=engine.run_dir,
        name="driver",
        heap_bytes=engine.heap_bytes,
        python=sys.executable,
        working_dir=engine.working_dir,
        environment=dict(os.environ),
        class_archive=archive_in_use(engine.archive_dir, java),
    )
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # PySpark tells Spark which Python its workers are
    _started.append(start_jvm(settings))


def connect() -> None:
    """Wait until the driver's JVM answers, and have PySpark in this process use it."""
    try:
        gateway = _started[0].gateway()
    except JvmDied as error:
        raise TaskError(FailureKind.CONFIGURATION, f"the job's own Spark driver did not start: {error}") from error
    os.environ.update(gateway_environment(gateway.port, gateway.secret))
    keep_counting()


def session() -> ClassicBackend:
    """Return the driver's session, for a region, once `connect` has found it."""
    from pyspark.sql import SparkSession

    handler = signal.getsignal(signal.SIGINT)
    session = SparkSession.builder.getOrCreate()
    signal.signal(signal.SIGINT, handler)  # a SparkContext installs a handler that calls the JVM; ours only raises
    return ClassicBackend(session)


def keep_counting() -> None:
    """Count what Spark did when user code stops its context, too: later there is nobody to ask."""
    from pyspark import SparkContext

    stop = SparkContext.stop

    def counted_stop(self: SparkContext) -> None:
        _note(self)
        stop(self)

    SparkContext.stop = counted_stop


def metrics() -> TaskMetrics:
    """Return what Spark did for this task; nothing if it cannot be asked."""
    from pyspark import SparkContext

    context: Any = getattr(SparkContext, "_active_spark_context")  # noqa: B009 - not one that would be made now
    if context is not None:
        _note(context)
    return TaskMetrics(
        **{name: sum(getattr(one, name) for one in _counted.values()) for name in TaskMetrics.__struct_fields__}
    )


def _note(context: Any) -> None:
    with suppress(Exception):  # numbers are worth less than the task
        driver = context._jsc.sc()
        flush_events(driver)
        _counted[str(context.applicationId)] = count(driver, job_ids(driver))


def interrupt() -> None:
    """Cancel all jobs of the driver, if there is one that runs."""
    from pyspark import SparkContext

    context: Any = getattr(SparkContext, "_active_spark_context")  # noqa: B009 - not one that would be made now
    if context is not None:
        context.cancelAllJobs()
