"""A task's dedicated Spark driver: its JVM is a child of this runner, and ends with it.

`start` returns at once (and must be called while the process has one thread); `connect` waits until the JVM responds.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from flintlock.model.checking.dependencies import PACKAGES, has_environment
from flintlock.model.tasks import DeployTask, FailureKind, TaskMetrics
from flintlock.spark import state_repartition
from flintlock.spark.engine.class_archive import archive_in_use
from flintlock.spark.engine.class_path import missing_jar, missing_jar_text, resolving, unresolved, with_class_path
from flintlock.spark.engine.conf import dedicated_conf
from flintlock.spark.engine.executors.demand import has_executors, unusable_settings
from flintlock.spark.engine.java import find_java
from flintlock.spark.engine.jvm import DriverJvm, JvmDied, JvmSettings, start_jvm
from flintlock.spark.engine.metrics import count, flush_events, job_ids
from flintlock.spark.region import unshared_paths
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.backend import ClassicBackend
from flintlock.spark.region.driver_watch import watch_driver
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.errors.spark_errors import SparkError
from flintlock.spark.region.programs.program import gateway_environment
from flintlock.spark.region.session_config import cores_of, session_config
from flintlock.spark.region.streaming.rescaling import RescaleFailed
from flintlock.spark.runner_messages import DedicatedEngine, Run


class _Driver(NamedTuple):
    jvm: DriverJvm
    conf: Mapping[str, str]
    engine: DedicatedEngine


_started: Final[list[_Driver]] = []  # the driver of this process, if it has one
_resolving: Final = ExitStack()  # closed once the packages of that driver are resolved
_not_counted: Final[set[int]] = set()  # Spark jobs that have only tested paths
_counted: Final[dict[str, TaskMetrics]] = {}  # by application id, recorded when it is stopped or asked for


def start(message: Run, artifacts: Artifacts, *, directory: str) -> None:
    """Start the JVM with the cores of the task, the job's settings over the cluster's. Raises TaskError.

    `directory`: where its relative paths start; where empty, they are refused.
    """
    engine, task = message.dedicated, message.task
    if engine is None:
        raise TaskError(FailureKind.CONFIGURATION, "this TaskManager starts no dedicated engines")
    modules = ",".join(str(path) for path in artifacts.uploads)
    given = {**engine.conf, **session_config(task, message.cores)}
    problem = unusable_settings(given, engine.lease_s, python_is_shipped=engine.python_is_shipped)
    if problem is not None:
        raise TaskError(FailureKind.CONFIGURATION, f"the job's own Spark driver cannot be started: {problem}")
    conf = dedicated_conf(
        task.graph.name,
        given,
        cores=cores_of(task, message.cores),
        lease_s=engine.lease_s,
        cluster_master=engine.conf.get("spark.master", ""),
    )
    conf = with_class_path(conf, jars=artifacts.jars, packages=task.graph.packages, cache=engine.packages_dir)
    if (missing := missing_jar(conf, directory)) is not None:
        raise TaskError(FailureKind.CONFIGURATION, missing_jar_text(missing))
    if modules:
        conf["spark.submit.pyFiles"] = ",".join(filter(None, (conf.get("spark.submit.pyFiles"), modules)))
    if files := ",".join(path.as_uri() for path in artifacts.files):
        conf["spark.files"] = ",".join(filter(None, (conf.get("spark.files"), files)))  # for `SparkFiles.get`
    java = find_java(os.environ)
    settings = JvmSettings(
        java=java,
        conf=conf,
        scratch_dir=str(Path(message.scratch) / ".driver"),
        log_file=message.log_path,
        captured=True,  # under the limit of the attempt's own output
        run_dir=engine.run_dir,
        name="driver",
        heap_bytes=engine.heap_bytes,
        python=sys.executable,
        working_dir=directory,
        environment=dict(os.environ),
        class_archive=archive_in_use(engine.archive_dir, java),
    )
    if has_environment(task.graph):
        os.environ["PYSPARK_PYTHON"] = sys.executable
    elif "spark.pyspark.python" in conf:
        os.environ["PYSPARK_PYTHON"] = conf["spark.pyspark.python"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # PySpark passes it to Spark as the Python of its workers
    _resolving.enter_context(resolving(conf))  # until the driver responds
    _started.append(_Driver(start_jvm(settings), conf, engine))


def connect(artifacts: Artifacts, give_up: Callable[[str], None]) -> None:
    """Wait until the driver's JVM responds, and make PySpark in this process use it.

    `give_up` is called, by another thread and with the reason, if the driver waits for executors that do not come.
    """
    driver = _started[0]
    packages = driver.conf.get(PACKAGES, "")
    try:
        gateway = driver.jvm.gateway()
    except JvmDied as error:
        why = unresolved(str(error), packages)
        if why is not None:
            raise TaskError(FailureKind.CONFIGURATION, why) from error
        also = f", with the packages {packages}," if packages else ""
        message = f"the job's own Spark driver{also} did not start: {error}"
        raise TaskError(FailureKind.CONFIGURATION, message) from error
    finally:
        _resolving.close()
    os.environ.update(gateway_environment(gateway.port, gateway.secret))
    count_when_stopped()
    _hide_archives_of_contexts(artifacts)
    watch_driver(driver.conf, driver.engine, give_up)


def session() -> ClassicBackend:
    """Return the driver's session for a region. Must be called after `connect`."""
    from pyspark.sql import SparkSession

    handler = signal.getsignal(signal.SIGINT)
    session = SparkSession.builder.getOrCreate()
    signal.signal(signal.SIGINT, handler)  # a SparkContext installs a handler that calls the JVM; ours only raises
    return ClassicBackend(session)


def refuse_unshared_paths(task: DeployTask, backend: ClassicBackend) -> None:
    """Refuse a job with paths that executors on other machines do not share. Raises TaskError.

    What was run for that counts neither as the job's work nor as that of its first output.
    """
    if not has_executors(_started[0].conf["spark.master"]):
        return
    unshared_paths.refuse_unshared_paths(task, backend.spark)
    backend.take_write_metrics()
    _not_counted.update(backend.counted)


def repartition_state(checkpoint: str, partitions: int) -> None:
    """Give the state in a checkpoint, which no query uses, another number of partitions. Raises RescaleFailed."""
    from pyspark.sql import SparkSession

    try:
        session: Any = SparkSession.builder.getOrCreate()
        state_repartition.repartition_state(session._jsparkSession, checkpoint, partitions)
    except Exception as error:
        raise RescaleFailed(SparkError(error).message) from error


def _hide_archives_of_contexts(artifacts: Artifacts) -> None:
    """Have modules imported from where they are unpacked, also once user code has made a SparkContext."""
    from pyspark import SparkContext

    begin: Callable[..., None] = SparkContext.__init__

    def begin_without_archives(self: SparkContext, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        artifacts.hide_archives()

    setattr(SparkContext, "__init__", begin_without_archives)  # noqa: B010


def count_when_stopped() -> None:
    """Record Spark's metrics when user code stops its context, too: a stopped context has none to return."""
    from pyspark import SparkContext

    stop = SparkContext.stop

    def counted_stop(self: SparkContext) -> None:
        _record_metrics(self)
        stop(self)

    SparkContext.stop = counted_stop


def metrics() -> TaskMetrics:
    """Return the metrics of this task's Spark jobs; zeros if Spark does not return them."""
    from pyspark import SparkContext

    context: Any = getattr(SparkContext, "_active_spark_context")  # noqa: B009 - does not create one
    if context is not None:
        _record_metrics(context)
    return TaskMetrics(
        **{name: sum(getattr(one, name) for one in _counted.values()) for name in TaskMetrics.__struct_fields__}
    )


def _record_metrics(context: Any) -> None:
    with suppress(Exception):  # missing metrics must not fail the task
        driver = context._jsc.sc()
        flush_events(driver)
        _counted[str(context.applicationId)] = count(
            driver, [job for job in job_ids(driver) if job not in _not_counted]
        )


def interrupt() -> None:
    """Cancel all jobs of the driver, if it has a context."""
    from pyspark import SparkContext

    context: Any = getattr(SparkContext, "_active_spark_context")  # noqa: B009 - does not create one
    if context is not None:
        context.cancelAllJobs()
