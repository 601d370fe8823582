"""What holds for every test: no process stays behind, cheap tests run first, CI draws the same examples.

A process that a test started is found in two ways: as a descendant of this one, and by a variable in its
environment, which it keeps when its parent dies and init adopts it. Rejected: looking for command lines that
mention Flintlock or Spark; those may belong to another user of the machine.
"""

import gc
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import hypothesis
import psutil
import pytest

SESSION_VARIABLE: Final = "PYTEST_FLINTLOCK_SESSION"
GRACE_S: Final = 5.0
TESTS: Final = Path(__file__).parent

#: Cheap tests first. A folder that is not named here runs before the cluster tests.
ORDER: Final = ("unit", "simulation", "contract")
#: The first of the cluster tests: at the end no process waits long for the other.
LONGEST: Final = ("test_chaos.py", "test_streaming_kills.py", "test_standalone.py", "test_yarn.py")

pytest_plugins = ["pytester"]

hypothesis.settings.register_profile("flintlock", deadline=None, print_blob=True)
hypothesis.settings.register_profile("flintlock-ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("flintlock-ci" if os.environ.get("CI") else "flintlock")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts a cluster, and run tests/cluster last."""

    def folder(item: pytest.Item) -> str:
        return item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""

    def rank(item: pytest.Item) -> int:
        name = folder(item)
        if name == "cluster":
            return len(ORDER) + (1 if item.path.name in LONGEST else 2)
        return ORDER.index(name) if name in ORDER else len(ORDER)

    for item in items:
        if folder(item) == "cluster":
            item.add_marker(pytest.mark.cluster)
    items.sort(key=rank)


@pytest.fixture(scope="session", autouse=True)
def interrupts_reach_child_processes() -> None:
    """Restore Ctrl-C where a shell that runs the tests in the background has made it ignored: children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def short_running_jvms() -> None:
    """Have the JVMs of tests spend no time on code that runs for hours: most of them run for a minute."""
    os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session", autouse=True)
def no_process_left_behind() -> Iterator[None]:
    """Fail the run if a process that a test started outlives the last test by GRACE_S, and kill it."""
    session = str(uuid.uuid4())
    os.environ[SESSION_VARIABLE] = session
    yield
    give_up_s = time.monotonic() + GRACE_S
    while (left := leftovers(session)) and time.monotonic() < give_up_s:
        psutil.wait_procs(left, timeout=0.2)
    if not left:
        return
    report = "\n".join(f"  {process.pid}  {command_line(process)}" for process in left)
    for process in left:
        end(process)
    pytest.fail(f"processes left behind by the tests (now killed):\n{report}", pytrace=False)


@pytest.fixture(scope="module", autouse=True)
def no_socket_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the last test of a file that leaves a socket or a file open, and not a later test at random.

    The collection finds what is left open; that is an error, since all warnings are. Files of unit tests, which are
    many, do without it.
    """
    yield
    if request.path.relative_to(TESTS).parts[0] not in ("unit", "contract"):
        gc.collect()


def leftovers(session: str) -> list[psutil.Process]:
    """Return the living processes that this test session started, in order of their age."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        if process.pid != os.getpid() and belongs_to(process, session):
            found[process.pid] = process
    return sorted((p for p in found.values() if alive(p)), key=lambda p: p.create_time())


def belongs_to(process: psutil.Process, session: str) -> bool:
    """Return whether the session started the process, by its environment; one that hides it does not count."""
    try:
        return process.environ().get(SESSION_VARIABLE) == session
    except (psutil.Error, OSError):
        return False


def alive(process: psutil.Process) -> bool:
    """Return whether the process runs; one that only waits to be reaped does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> str:
    """Return the command line as far as it can still be read."""
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone)"


def end(process: psutil.Process) -> None:
    """Kill the process if it is still the one that was found; its number may have been given to another."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
