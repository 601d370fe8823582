"""Ends the Python workers that a closed session leaves behind.

Spark starts a Python daemon, which forks workers, for each session that calls a Python function, and never ends it: an
engine that serves a thousand such jobs would have a thousand of them. They are children of a local engine's JVM and
carry the session's id (the server's, not the client's) in their environment, so those of a released session can be
identified exactly. Only these are ended: a streaming query's workers carry the id of a session that is listed nowhere.

Rejected: one daemon for all sessions (`spark.sql.artifact.isolation.enabled=false`): faster, but jobs would share
modules and files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import psutil

#: The variable by which a worker identifies the files of its session.
SESSION_VARIABLE: Final = "SPARK_JOB_ARTIFACT_UUID"

#: How long a daemon may take to end with its workers before it is killed.
END_S: Final = 2.0


def daemons(jvm_pid: int) -> Iterator[tuple[psutil.Process, str]]:
    """Yield the Python processes that the JVM has started, with the server's id of their session."""
    try:
        children = psutil.Process(jvm_pid).children()
    except psutil.Error:
        return
    for child in children:
        with suppress(psutil.Error, OSError):
            session = child.environ().get(SESSION_VARIABLE)
            if session:
                yield child, session


def end_workers(jvm_pid: int, sessions: frozenset[str]) -> int:
    """End the daemons of these sessions, each with its workers; return their number. Idempotent."""
    ending = [process for process, session in daemons(jvm_pid) if session in sessions]
    for process in ending:
        with suppress(psutil.Error):
            process.terminate()  # at which a daemon ends its workers
    for process in psutil.wait_procs(ending, timeout=END_S)[1]:
        with suppress(psutil.Error):
            process.kill()
    return len(ending)
