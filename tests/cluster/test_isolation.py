"""Bad jobs beside good ones, submitted together: every good one finishes, every bad one fails as what it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import DataFrame
from tests.cluster.processes import Processes, running_processes, until

import flintlock as fl
from flintlock.model.states import JobStatus

#: Of each kind of bad job so many, and as many good ones as bad ones: more than fifty of both.
ROUNDS = 4
PATIENCE_S = 900.0
SETTINGS = (
    "taskmanager.runner.memory=400m",
    "taskmanager.python-worker.memory=384m",
    "taskmanager.task-output.max-bytes=256k",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Processes]:
    with running_processes(tmp_path_factory.mktemp("isolation"), settings=SETTINGS) as processes:
        yield processes


@pytest.fixture
def client(cluster: Processes) -> Generator[fl.Client]:
    with fl.connect(cluster.url) as connected:
        yield connected


def raises(_: DataFrame) -> DataFrame:
    raise ValueError("no")


def imports(_: DataFrame) -> DataFrame:
    import nowhere_to_be_found  # type: ignore[import-not-found]

    return nowhere_to_be_found.frame  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def exits(_: DataFrame) -> DataFrame:
    raise SystemExit(3)


def leaves(_: DataFrame) -> DataFrame:
    os._exit(3)


def kills_itself(_: DataFrame) -> DataFrame:
    import signal

    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def crashes(_: DataFrame) -> DataFrame:
    import ctypes

    ctypes.string_at(0)
    raise AssertionError


def leaks(numbers: DataFrame) -> DataFrame:
    kept = [bytes(1 << 20) for _ in range(4000)]
    return numbers.limit(len(kept))


def floods(_: DataFrame) -> DataFrame:
    line = "x" * 1000
    for _number in range(50_000):
        print(line)  # noqa: T201 - to be captured, and cut
    raise ValueError("enough")


def closes(numbers: DataFrame) -> DataFrame:
    os.closerange(0, 4096)
    return numbers


def forks(_: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Leave children behind that have got away from the process group."""
    for _child in range(3):
        if os.fork() == 0:
            os.setsid()
            Path(params["marks"], f"{os.getpid()}").touch()
            os.execvp("sleep", ["sleep", "100000"])
    while len(list(Path(params["marks"]).iterdir())) < 3:
        os.sched_yield()
    os._exit(0)


def udf_leaves(numbers: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf

    def leave(_: int) -> int:
        os._exit(7)

    return numbers.select(udf(leave, "long")("id").alias("n"))


def udf_leaks(numbers: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf

    def leak(_: int) -> int:
        return len([bytes(1 << 20) for _ in range(4000)])

    return numbers.select(udf(leak, "long")("id").alias("n"))


def misnames(numbers: DataFrame) -> DataFrame:
    return numbers.select("nope")


def divides(numbers: DataFrame) -> DataFrame:
    return numbers.selectExpr("1 / (id - id) AS x")


#: The kind of failure that each of them is reported as.
BAD: dict[Callable[..., DataFrame], str] = {
    raises: "user code",
    imports: "user code",
    exits: "user code",
    divides: "user code",
    floods: "user code",
    misnames: "analysis",
    leaves: "runner lost",
    kills_itself: "runner lost",
    crashes: "runner lost",
    closes: "runner lost",
    forks: "runner lost",
    leaks: "out of memory",
    udf_leaves: "spark task failure",
    udf_leaks: "out of memory",
}


def plus_one(numbers: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf

    def plus(x: int) -> int:
        return x + 1

    return numbers.select(udf(plus, "long")("id").alias("id"))


def job(name: str, function: Callable[..., DataFrame] | None, marks: Path) -> fl.Job:
    """Return a job of one slot: some numbers, a function over them, and its rows."""
    made = fl.Job(name, parallelism=1, params={"marks": str(marks)})
    numbers = made.sql("numbers", "SELECT id FROM range(1000)")
    if function is None:
        last = made.sql("last", "SELECT sum(id) AS id FROM numbers", inputs=[numbers])
    else:
        last = made.step(inputs=[numbers], name="last")(function)
    made.result("rows", last, limit=2000)
    return made


def ended(handle: fl.JobHandle) -> None:
    """Wait for a job's end, whatever it is."""
    until(f"the end of {handle}", lambda: handle.ended_within(10.0), PATIENCE_S)


def test_bad_jobs_harm_no_other_job(cluster: Processes, client: fl.Client, tmp_path: Path) -> None:
    """And leave nothing behind."""
    bad: list[tuple[str, str, Any]] = []
    good: list[tuple[bool, Any]] = []
    marks = tmp_path / "marks"
    for number in range(ROUNDS):
        hanging = tmp_path / f"forked-{number}"
        hanging.mkdir()
        for function, kind in BAD.items():
            name = function.__name__
            bad.append((name, kind, client.submit(job(name, function, hanging))))
            with_udf = function is udf_leaves
            good.append((with_udf, client.submit(job("good", plus_one if with_udf else None, marks))))

    for with_udf, handle in good:
        ended(handle)
        assert handle.status is JobStatus.FINISHED, f"{handle.attempts().failure}\n{cluster.logs()}"
        rows = handle.result("rows").rows()
        assert sum(row[0] for row in rows) == (500_500 if with_udf else 499_500)
    misreported: list[tuple[str, str, str]] = []
    for name, kind, handle in bad:
        ended(handle)
        assert handle.status is JobStatus.FAILED, f"{name} is {handle.status}"
        failure = handle.attempts().failure
        assert failure is not None
        if failure.kind != kind:
            misreported.append((name, failure.kind, failure.message))
    assert misreported == []

    forked = [int(mark.name) for mark in tmp_path.glob("forked-*/*")]
    assert len(forked) == 3 * ROUNDS
    until("the end of what was left", lambda: not any(_alive(pid) for pid in forked), 10.0)
    logs = [*cluster.state_dir.glob("log/jobs/**/*.log")]
    assert max(log.stat().st_size for log in logs) < (256 << 10) + (16 << 10)


def test_a_job_that_hangs_is_cancelled_with_all_it_started(client: fl.Client, tmp_path: Path) -> None:
    """One that takes no notice of being interrupted."""

    def hangs(_: DataFrame, params: dict[str, Any]) -> DataFrame:
        import subprocess
        import threading

        child = subprocess.Popen(["sleep", "100000"])
        Path(params["marks"], str(child.pid)).touch()
        while True:
            try:
                threading.Event().wait()
            except BaseException:  # noqa: BLE001 - that is what is bad about it
                continue

    handle = client.submit(job("hangs", hangs, tmp_path))
    until("its child", lambda: any(tmp_path.iterdir()), PATIENCE_S)
    (child,) = (int(mark.name) for mark in tmp_path.iterdir())
    handle.cancel()
    ended(handle)
    assert handle.status is JobStatus.CANCELED
    until("the end of its child", lambda: not _alive(child), 10.0)


def test_nothing_of_a_cluster_is_left_when_it_ends(tmp_path: Path) -> None:
    """Not even of a job that is in the middle of something bad."""

    def forks_on(_: DataFrame, params: dict[str, Any]) -> DataFrame:
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "100000"])
        Path(params["marks"], "forked").touch()
        while True:
            pass

    with running_processes(tmp_path / "cluster", settings=SETTINGS) as processes:
        assert processes.taskmanager is not None
        with fl.connect(processes.url) as client:
            client.submit(job("forks", forks_on, tmp_path))
        until("its child", (tmp_path / "forked").exists, PATIENCE_S)
        taskmanager = psutil.Process(processes.taskmanager.pid)

        def with_child() -> list[psutil.Process] | None:
            found = taskmanager.children(recursive=True)
            return found if any(process.name() == "sleep" for process in found) else None

        family = until("its child's name", with_child, PATIENCE_S)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
