"""Limits on memory, in processes of their own: what is refused, what is not, and how it is reported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flintlock.host.memory_limit import size_text
from flintlock.model.ids import StepName
from flintlock.model.tasks import Failure, FailureKind
from flintlock.spark.runner.exit_reasons import DISCONNECTED, ending, lost, program_exited, with_limits
from flintlock.spark.runner_messages import Limits

LIMITS = Limits(memory=256 << 20, memory_from="taskmanager.runner.memory", worker_memory=128 << 20)
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts data as memory")


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@linux
def test_memory_beyond_the_limit_is_refused_and_below_it_is_not() -> None:
    ran = child("""
from flintlock.host.memory_limit import limit_memory, relax_memory
limit_memory(128 << 20)
kept = [bytes(1 << 20) for _ in range(64)]
try:
    kept += [bytes(1 << 20) for _ in range(128)]
except MemoryError:
    print("refused")
relax_memory()
kept += [bytes(1 << 20) for _ in range(32)]
print("relaxed")
try:
    kept += [bytes(1 << 20) for _ in range(128)]
except MemoryError:
    print("refused again")
""")
    assert ran.stdout.split("\n")[:-1] == ["refused", "relaxed", "refused again"], ran.stderr


@linux
def test_the_limit_holds_for_arrow_and_leaves_it_room_to_work() -> None:
    """Arrow's allocator reserves a gigabyte: the limit counts what is used."""
    ran = child("""
import os
from flintlock.host.memory_limit import EAGER_COMMIT, limit_memory
os.environ.setdefault(*EAGER_COMMIT)
import pyarrow as pa
pa.array(range(1000))
limit_memory(256 << 20)
kept = [pa.array(range(100_000)) for _ in range(50)]
print("works")
try:
    kept += [pa.array(range(100_000)) for _ in range(400)]
except MemoryError as error:
    kept.clear()
    print(type(error).__name__)
""")
    assert ran.stdout.split() == ["works", "ArrowMemoryError"], ran.stderr


@linux
def test_no_limit_is_none() -> None:
    ran = child("""
import resource
from flintlock.host.memory_limit import limit_memory
before = resource.getrlimit(resource.RLIMIT_DATA)
limit_memory(0)
assert resource.getrlimit(resource.RLIMIT_DATA) == before
""")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("size", "text"),
    [(1 << 30, "1g"), (1536 << 20, "1536m"), (4096, "4k"), (100, "100 bytes"), ((1 << 20) + 1, "1.0m")],
)
def test_sizes_are_written_as_in_options(size: int, text: str) -> None:
    assert size_text(size) == text


def test_an_abort_for_lack_of_memory_is_reported_as_such() -> None:
    failure = lost(ending(-6), "terminate called after throwing 'std::bad_alloc'", LIMITS, code=-6)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert "256m" in failure.message
    assert "taskmanager.runner.memory" in failure.message


@pytest.mark.parametrize(
    ("code", "last", "limits"),
    [(-6, "assertion failed", LIMITS), (-6, "std::bad_alloc", Limits()), (3, "MemoryError", LIMITS)],
)
def test_other_ends_are_not_blamed_on_memory(code: int, last: str, limits: Limits) -> None:
    assert lost(ending(code), last, limits, code=code).kind is FailureKind.RUNNER_LOST


def test_a_limit_that_an_abort_may_be_due_to_is_mentioned() -> None:
    assert "may use 256m" in lost(ending(-6), "", LIMITS, code=-6).message
    assert "may use" not in lost(ending(3), "", LIMITS, code=3).message


def test_a_kill_by_the_cgroup_is_lack_of_memory_whatever_was_printed() -> None:
    assert lost(ending(-9), "", LIMITS, code=-9, oom_killed=True).kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("code", "expected"),
    [(-11, "SIGSEGV"), (-9, "SIGKILL (by hand"), (7, "exit code 7"), (-250, "signal 250"), (DISCONNECTED, "closed a")],
)
def test_exit_codes_are_described(code: int, expected: str) -> None:
    assert expected in ending(code)


def test_a_programs_exit_code_is_its_users_business() -> None:
    failure = program_exited(3, StepName("script"), "bye")
    assert (failure.kind, failure.step) == (FailureKind.USER_CODE, "script")
    assert failure.message == "the program ended with exit code 3; its last output:\nbye"


def memory_failure(exception: str) -> Failure:
    return Failure(kind=FailureKind.OUT_OF_MEMORY, message="no room", exception=exception)


def test_the_limit_that_was_met_is_named() -> None:
    runner = with_limits(memory_failure("MemoryError"), LIMITS, in_runner=True)
    assert runner.message == "the task's runner may use 256m of memory (taskmanager.runner.memory): no room"
    worker = with_limits(memory_failure("MemoryError"), LIMITS, in_runner=False)
    assert "128m" in worker.message
    assert "taskmanager.python-worker.memory" in worker.message
    assert with_limits(memory_failure("SparkException"), LIMITS, in_runner=False).message == "no room"
    assert with_limits(memory_failure("MemoryError"), Limits(), in_runner=True).message == "no room"
