"""Limits the memory of one Python process of ours, where there is no cgroup that does.

The kernel's limit on a process's data (RLIMIT_DATA) counts private, writable memory, whether only requested or also
touched. Allocations beyond it fail: Python raises MemoryError, and the task can report what happened. Rejected: the
limit on address space (RLIMIT_AS, which is what Spark's own `spark.executor.pyspark.memory` sets in its workers): it
counts what is merely reserved, such as 72 MiB for every thread, so that a process with PySpark, Arrow and gRPC in it
exceeds a gigabyte before it has done anything.

Arrow's allocator would request a gigabyte of data at once; `EAGER_COMMIT` prevents that. Memory that a process has
requested but does not use when its limit is set is not counted against it.
"""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path
from typing import Final

#: For the environment of a process that imports Arrow: reserve address space only, and take memory as it is used.
EAGER_COMMIT: Final = ("MIMALLOC_ARENA_EAGER_COMMIT", "0")

#: What a process that reached its limit may use in addition, to report it.
REPORT_BYTES: Final = 64 << 20

_MIB: Final = 1 << 20


def limit_memory(limit: int) -> None:
    """Limit this process, and each that it forks, to `limit` bytes of memory. 0: no limit.

    Does nothing on other systems than Linux, which alone counts data as memory.
    """
    if limit <= 0 or sys.platform != "linux":
        return
    data, resident = _own_memory()
    most = max(data - resident, 0) + limit
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = most + REPORT_BYTES
    if hard != resource.RLIM_INFINITY:
        most, ceiling = min(most, hard), min(ceiling, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, ceiling))


def relax_memory() -> None:
    """Raise the limit a little for a process that has reached it, so that it can report that. Idempotent."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def size_text(size: int) -> str:
    """Return a number of bytes as options write it, exactly where that is possible."""
    for unit, letter in ((1 << 30, "g"), (_MIB, "m"), (1 << 10, "k")):
        if size >= unit and size % unit == 0:
            return f"{size // unit}{letter}"
    return f"{size / _MIB:.1f}m" if size >= _MIB else f"{size} bytes"


def _own_memory() -> tuple[int, int]:
    """Return how much data this process has requested, and how much of its memory is in use."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = {name: int(kib) << 10 for name, kib in re.findall(r"^(VmData|RssAnon):\s+(\d+) kB", status, re.MULTILINE)}
    return found.get("VmData", 0), found.get("RssAnon", 0)
