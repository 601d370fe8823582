"""Refuses a job whose paths the executors of its own Spark driver do not see as this machine does.

As an engine tests the paths of its jobs (`engine.executors.shared_paths`), but in the driver's session, and with the
job's own directory for blocking results: a TaskManager whose engine is local has never tested that. The driver has
begun once all its executors were there, or had not come for a while (`engine.executors.demand`): those that come later
are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from flintlock.model.files.job_paths import sources_of, targets_of
from flintlock.model.jobgraph import Exchange
from flintlock.model.tasks import DeployTask, FailureKind
from flintlock.spark.engine.executors.shared_paths import PATH_NOT_SHARED, SharedPaths, not_shared
from flintlock.spark.engine.publication.hadoop_files import FileFailure, HadoopFiles
from flintlock.spark.region.errors.failures import TaskError


def refuse_unshared_paths(task: DeployTask, session: Any) -> None:
    """Test the paths of a job on its driver, a classic session of PySpark. Raises TaskError."""
    from pyspark.errors import PySparkException

    context = session.sparkContext
    targets, sources = targets_of(task.graph, task.checkpoint_dir), sources_of(task.graph)
    has_results = any(vertex.exchange is Exchange.BLOCKING for vertex in task.graph.vertices)
    work = (task.work_dir,) if has_results else ()
    files = HadoopFiles(context._jvm, context._jsc.sc().hadoopConfiguration(), task.work_dir)

    def run(*queries: str) -> None:
        """Run them without changing the session of the job, or what PySpark knows of its sessions."""
        own = session._jsparkSession.newSession()
        for query in queries:
            own.sql(query).collect()

    paths = SharedPaths(
        _LocalPaths(files),
        run,
        lambda: int(context.defaultParallelism),
        errors=(Py4JJavaError, PySparkException),  # PySpark translates those of the JVM that it knows
    )
    path = paths.find_unshared((*targets, *work), sources)
    if path is not None:
        step = targets.get(path) or sources.get(path)
        message = not_shared(str(context.master), path)
        raise TaskError(FailureKind.CONFIGURATION, message, step, exception=PATH_NOT_SHARED)


class _LocalPaths:
    """As `HadoopFiles` finds them, in a process in which PySpark translates some exceptions of the JVM."""

    def __init__(self, files: HadoopFiles) -> None:
        self._files: Final = files

    def local_path(self, path: str) -> Path | None:
        """Return a path as the operating system knows it; None if it is on another file system."""
        from pyspark.errors import PySparkException

        try:
            return self._files.local_path(path)
        except PySparkException as error:
            raise FileFailure(str(error)) from error
