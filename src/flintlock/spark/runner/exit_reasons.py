"""What it means that a runner ended without its last word, or said that it is over in a way of its own."""

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

#: A runner's exit code when it finds that its connection is gone though its TaskManager is not.
DISCONNECTED: Final = 76

#: What libraries print when memory is refused to them and they know no better than to abort.
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
    """Return the failure of a runner that ended without its last word; `how` completes "the runner …".

    `oom_killed`: the kernel has killed a process of its cgroup for lack of memory.
    """
    told = f"; its last output:\n{last_output}" if last_output else ""
    refused = limits.memory > 0 and code in _ABORTED and _OUT_OF_MEMORY.search(last_output) is not None
    if oom_killed or refused:
        return Failure(kind=FailureKind.OUT_OF_MEMORY, message=f"{memory_met(limits)}: the runner {how}{told}")
    # A library that gets no memory may abort without a word.
    hint = f" ({memory_met(limits)})" if limits.memory > 0 and code in _ABORTED else ""
    return Failure(kind=FailureKind.RUNNER_LOST, message=f"the runner {how} before its task was done{hint}{told}")


def program_exited(code: int, step: StepName, last_output: str) -> Failure:
    """Return the failure of a program that ended by itself with a code that is not zero."""
    told = f"; its last output:\n{last_output}" if last_output else ""
    return Failure(kind=FailureKind.USER_CODE, message=f"the program ended with exit code {code}{told}", step=step)


def memory_met(limits: Limits) -> str:
    """Return which limit a runner has met, and who set it."""
    return f"the task's runner may use {size_text(limits.memory)} of memory ({limits.memory_from})"


def worker_memory_met(limits: Limits) -> str:
    """Return which limit a Python worker of Spark has met, and who set it."""
    return f"each of Spark's Python workers may use {size_text(limits.worker_memory)} of memory ({WORKER_MEMORY.key})"


def with_limits(failure: Failure, limits: Limits, *, in_runner: bool) -> Failure:
    """Return the failure; one for lack of memory names the limit that was met. `in_runner`: it was raised there."""
    if failure.kind is not FailureKind.OUT_OF_MEMORY:
        return failure
    own = f": {failure.message}" if failure.message else ""
    if in_runner and limits.memory > 0:
        return structs.replace(failure, message=memory_met(limits) + own)
    if not in_runner and limits.worker_memory > 0 and failure.exception.endswith("MemoryError"):
        return structs.replace(failure, message=worker_memory_met(limits) + own)
    return failure
