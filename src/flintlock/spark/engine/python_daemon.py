"""Spark's daemon of Python workers, with a limit on the memory of each worker, and with output that reaches its job.

A local engine starts this module instead of `pyspark.daemon` (`spark.python.daemon.module`); the limit, and where the
output of workers goes (`worker_output`), come in the environment. Rejected: `spark.executor.pyspark.memory`, which
limits address space (see `host.memory_limit`): with 512 MiB a worker cannot even import pandas and allocate an Arrow
array.
"""

from __future__ import annotations

import os
import socket
from typing import Any, Final

from flintlock.spark.engine.worker_output import PIPES_VARIABLE, WorkerStream, install

MEMORY_VARIABLE: Final = "FLINTLOCK_PYTHON_WORKER_MEMORY"
MODULE: Final = "flintlock.spark.engine.python_daemon"


def main() -> None:
    """Run the daemon until Spark ends it."""
    from pyspark import daemon

    from flintlock.host.memory_limit import EAGER_COMMIT, limit_memory

    limit = int(os.environ.get(MEMORY_VARIABLE, "0"))
    pipes = os.environ.get(PIPES_VARIABLE, "")
    if limit > 0:
        os.environ.setdefault(*EAGER_COMMIT)  # workers import Arrow after they are forked
    spark_daemon: Any = daemon
    spark_worker = spark_daemon.worker
    streams: list[WorkerStream] = []  # of this worker; empty in the daemon itself

    def worker(sock: socket.socket, authenticated: bool) -> int:
        """Run one Spark task: a forked process calls this for each of its tasks."""
        limit_memory(limit)
        if pipes and not streams:
            streams.extend(install(pipes))
        try:
            return spark_worker(sock, authenticated)
        finally:
            for stream in streams:
                stream.end_line()

    spark_daemon.worker = worker
    spark_daemon.manager()


if __name__ == "__main__":
    main()
