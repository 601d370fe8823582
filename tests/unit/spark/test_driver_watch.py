"""A dedicated driver on a cluster: what is refused before it starts, and when it waits for executors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flintlock.model.ids import AttemptId, JobId, RegionId
from flintlock.model.jobgraph import EngineKind, JobGraph
from flintlock.model.regions import Region
from flintlock.model.tasks import DeployTask, FailureKind
from flintlock.spark.region import dedicated
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.driver_watch import executors_and_work
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.runner_messages import DedicatedEngine, Run

JOB = JobId("ab" * 16)


class Driver:
    """A SparkContext of the JVM, as far as it is asked, with everything that its methods return."""

    def __init__(self, master: str, executors: int, waiting: int) -> None:
        self._master: Final = master
        self._blocks: Final = executors + 1  # the driver has one, too
        self._waiting: Final = waiting

    def master(self) -> str:
        return self._master

    def getExecutorMemoryStatus(self) -> Driver:  # noqa: N802 - Spark's name
        return self

    def size(self) -> int:
        return self._blocks

    def taskScheduler(self) -> Driver:  # noqa: N802
        return self

    def rootPool(self) -> Driver:  # noqa: N802
        return self

    def getSortedTaskSetQueue(self) -> Driver:  # noqa: N802
        return self

    def iterator(self) -> ScalaIterator:
        return ScalaIterator(iter(range(self._waiting)), self._waiting)


class ScalaIterator:
    def __init__(self, values: Iterator[int], left: int) -> None:
        self._values, self._left = values, left

    def hasNext(self) -> bool:  # noqa: N802
        return self._left > 0

    def next(self) -> int:
        self._left -= 1
        return next(self._values)


class Context:
    """PySpark's context: without `_jsc` while its constructor runs."""

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver
        if driver is not None:
            self._jsc = self

    def sc(self) -> Driver | None:
        return self._driver


STANDALONE = "spark://there:7077"


@pytest.mark.parametrize(
    ("context", "seen"),
    [
        (None, (0, False)),  # the program has made none yet
        (Context(), (0, True)),  # it waits in a queue of YARN
        (Context(Driver(STANDALONE, 0, 1)), (0, True)),
        (Context(Driver(STANDALONE, 2, 1)), (2, True)),
        (Context(Driver(STANDALONE, 0, 0)), (0, False)),
        (Context(Driver("local[2]", 0, 1)), (0, False)),  # the program has chosen it: it needs no executor
    ],
)
def test_a_driver_needs_executors_while_it_has_work_or_begins(context: object, seen: tuple[int, bool]) -> None:
    assert executors_and_work(context) == seen


@pytest.mark.parametrize(
    ("cluster", "job", "reason"),
    [
        ({"spark.master": STANDALONE}, {"spark.executor.heartbeatInterval": "10s"}, "heartbeatInterval=10s: executors"),
        ({"spark.master": STANDALONE}, {"spark.submit.deployMode": "cluster"}, "spark.submit.deployMode=cluster"),
        ({}, {"spark.master": "k8s://there"}, "needs an image for its executors"),
    ],
)
def test_a_dedicated_driver_whose_settings_an_engine_would_not_start_with_is_refused(
    cluster: dict[str, str], job: dict[str, str], reason: str, tmp_path: Path
) -> None:
    task = DeployTask(
        attempt=AttemptId(job_id=JOB, region=RegionId(0), attempt=0),
        graph=JobGraph(job_id=JOB, name="job", engine=EngineKind.DEDICATED, config=job),
        region=Region(id=RegionId(0), steps=()),
        slots=(0,),
    )
    engine = DedicatedEngine(run_dir="", conf=cluster, lease_s=50.0)
    run = Run(task=task, log_path="", scratch=str(tmp_path), dedicated=engine)

    with pytest.raises(TaskError, match=f"the job's own Spark driver cannot be started: .*{reason}") as refused:
        dedicated.start(run, Artifacts(tmp_path), directory="")
    assert refused.value.kind is FailureKind.CONFIGURATION, "it would be refused again"
    assert not list(tmp_path.iterdir()), "nothing was started"
