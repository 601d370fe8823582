"""Spark's daemon of Python workers, with a limit on the memory of each worker, and with output that reaches its job.

A local engine starts this module instead of `pyspark.daemon` (`spark.python.daemon.module`); the limit, and where the
output of workers goes (`worker_output`), come in the environment. Rejected: `spark.executor.pyspark.memory`, which
limits address space (see `host.memory_limit`): with 512 MiB a worker cannot even import pandas and allocate an Arrow
array.

Executors of a standalone cluster start it as well, and those on YARN of TaskManagers in containers: there it ends once
it has had no worker for a while. Spark starts a daemon for each session, ends none, and starts one that has ended
again; those of a local engine are ended with their sessions (`python_workers`).
"""

from __future__ import annotations

import os
import signal
import socket
from types import FrameType
from typing import Any, Final

import psutil

from flintlock.spark.engine.python.worker_output import PIPES_VARIABLE, WorkerStream, install

MEMORY_VARIABLE: Final = "FLINTLOCK_PYTHON_WORKER_MEMORY"
IDLE_VARIABLE: Final = "FLINTLOCK_PYTHON_DAEMON_IDLE_S"
MODULE: Final = "flintlock.spark.engine.python.python_daemon"

#: How often within its idle time a daemon checks whether it has workers.
_CHECKS: Final = 4


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
    idle_s = float(os.environ.get(IDLE_VARIABLE, "0"))
    if idle_s > 0:
        end_when_idle(idle_s)
    spark_daemon.manager()


def end_when_idle(idle_s: float) -> None:
    """Have this process terminate once it has had no child for so long. Children do not inherit it.

    By a timer's signal: a thread would have to survive the forks of workers.
    """
    without = 0  # checks in a row that found no child

    def check(_number: int, _frame: FrameType | None) -> None:
        nonlocal without
        without = 0 if psutil.Process().children() else without + 1
        if without > _CHECKS:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGALRM, check)
    signal.setitimer(signal.ITIMER_REAL, idle_s / _CHECKS, idle_s / _CHECKS)


if __name__ == "__main__":
    main()
