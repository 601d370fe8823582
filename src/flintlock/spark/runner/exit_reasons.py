"""Failures of runners that ended without reporting an outcome, and texts about their limits."""

from __future__ import annotations

import re
import signal
from typing import Final

from msgspec import structs

from flintlock.config.options import WORKER_MEMORY
from flintlock.host.memory_limit import size_text
from flintlock.model.ids import StepName
from flintlock.model.tasks import Failure, FailureKind
from flintlock.spark.runner_messages import Limits

#: A runner's exit code when its connection is closed although its TaskManager is alive.
DISCONNECTED: Final = 76

#: What libraries print before they abort because memory was refused to them.
_OUT_OF_MEMORY: Final = re.compile(
    r"std::bad_alloc|MemoryError|Cannot allocate memory|out of memory|memory allocation of \d+ bytes failed",
    re.IGNORECASE,
)
_ABORTED: Final = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGTRAP, -signal.SIGILL)


def ending(code: int) -> str:
    """Return how a process with this exit code ended (negated: with this signal), as the end of a sentence."""
    if code == DISCONNECTED:
        return "lost the connection to its TaskManager (user code closed a file descriptor that is not its own)"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (by hand, or by the kernel because memory ran out)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def lost(how: str, last_output: str, limits: Limits, *, code: int | None = None, oom_killed: bool = False) -> Failure:
    """Return the failure of a runner that ended without reporting an outcome; `how` completes "the runner …".

    `oom_killed`: the kernel has killed a process of its cgroup for lack of memory.
    """
    output = f"; its last output:\n{last_output}" if last_output else ""
    refused = limits.memory > 0 and code in _ABORTED and _OUT_OF_MEMORY.search(last_output) is not None
    if oom_killed or refused:
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=f"{memory_limit_text(limits)}: the runner {how}{output}")
    # A library that gets no memory may abort without printing anything.
    hint = f" ({memory_limit_text(limits)})" if limits.memory > 0 and code in _ABORTED else ""
    return Failure(kind=FailureKind.RUNNER_LOST, message=f"the runner {how} before its task was done{hint}{output}")


def program_exited(code: int, step: StepName, last_output: str) -> Failure:
    """Return the failure of a program that ended by itself with a code that is not zero."""
    output = f"; its last output:\n{last_output}" if last_output else ""
    return Failure(kind=FailureKind.USER_CODE, message=f"the program ended with exit code {code}{output}", step=step)


def memory_limit_text(limits: Limits) -> str:
    """Describe the memory limit that a runner has reached, and what sets it."""
    return f"the task's runner may use {size_text(limits.memory)} of memory ({limits.memory_from})"


def worker_memory_limit_text(limits: Limits) -> str:
    """Describe the memory limit that a Python worker of Spark has reached, and what sets it."""
    return f"each of Spark's Python workers may use {size_text(limits.worker_memory)} of memory ({WORKER_MEMORY.key})"


def with_limits(failure: Failure, limits: Limits, *, in_runner: bool) -> Failure:
    """Return the failure; an out-of-memory one names the limit that was reached. `in_runner`: it was raised there."""
    if failure.kind is not FailureKind.OUT_OF_MEMORY:
        return failure
    own = f": {failure.message}" if failure.message else ""
    if in_runner and limits.memory > 0:
        return structs.replace(failure, message=memory_limit_text(limits) + own)
    if not in_runner and limits.worker_memory > 0 and failure.exception.endswith("MemoryError"):
        return structs.replace(failure, message=worker_memory_limit_text(limits) + own)
    return failure
