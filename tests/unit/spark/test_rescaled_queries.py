"""A streaming task whose query is to have another number of state partitions, on a Spark that only records calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors.exceptions.connect import StreamingQueryException
from tests.unit.spark.streaming_harness import JOB, FakeProgress, FakeQuery, FakeSpark, concurrent, streaming
from tests.unit.spark.test_rescaled_checkpoints import commit_batch, repartition

from flintlock.model.ids import TriggerId
from flintlock.model.operations import Sink
from flintlock.model.streaming.checkpoints import (
    QueryProgress,
    StateRescale,
    StateRescaled,
)
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.spark.region.streaming.query import StreamingTask, latest_batch

WANTED = StateRescale(trigger_id=TriggerId("1" * 32), partitions=3)


def rescaling(  # noqa: PLR0917 - each with a default
    root: Path,
    spark: FakeSpark,
    report: Callable[[QueryProgress], None],
    sink_log: int = 4,
    repartition: Callable[[str, int], None] = repartition,
    activity: Callable[[str], None] = lambda _: None,
) -> StreamingTask:
    """Return a task whose query has committed batch 4 with two partitions, and is to have three."""
    checkpoint, log = root / JOB / "files-v1", root / "out" / "_spark_metadata"
    checkpoint.mkdir(parents=True)
    (checkpoint / "metadata").write_text("{}")
    commit_batch(checkpoint, 3, 2, offset=40)
    commit_batch(checkpoint, 4, 2, offset=50)
    log.mkdir(parents=True)
    for number in range(sink_log + 1):
        (log / str(number)).write_text("v1")
    sink = Sink(format="parquet", path=str(root / "out"))
    return streaming(
        spark, sink=sink, checkpoint_dir=str(root / JOB), report=report, rescale=WANTED,
        repartition=repartition, activity=activity,
        query=StreamQuery(uid="files-v1", trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW)),
    )  # fmt: skip


def sink_log(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "out" / "_spark_metadata").iterdir())


def test_a_rescaled_query_has_the_additional_batch_in_the_log_of_its_sink(tmp_path: Path) -> None:
    reported: list[QueryProgress] = []
    rescaling(tmp_path, FakeSpark(FakeQuery(True)), reported.append).run()

    assert reported[-1].rescaled == StateRescaled(trigger_id=WANTED.trigger_id, partitions=3)
    assert reported[-1].restored == 5
    assert sink_log(tmp_path) == ["0", "1", "2", "3", "4", "5"]


def test_a_query_that_fails_on_its_new_state_goes_on_with_the_former_one(tmp_path: Path) -> None:
    """And the log of the sink ends where the former checkpoint does: else the next batch would be skipped."""
    reported: list[QueryProgress] = []
    queries = FakeQuery(StreamingQueryException("no such state")), FakeQuery(True)
    rescaling(tmp_path, FakeSpark(*queries), reported.append).run()

    outcome = reported[-1].rescaled
    assert outcome is not None
    assert (outcome.partitions, "no such state" in outcome.failure) == (2, True)
    assert reported[-1].restored == 4
    assert {progress.rescaled for progress in reported} == {None, outcome}, "it never seems to have succeeded"
    assert sink_log(tmp_path) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("message", "reported_after"),
    [("Processing new data", 1), ("Initializing sources", 1), ("Waiting for data to arrive", 0)],
)
def test_a_rescale_is_reported_when_the_query_has_committed_a_batch_or_has_none_to_begin(
    tmp_path: Path, message: str, reported_after: int
) -> None:
    """The operation waits for it: in its first batch the query may still fail on the state that it was given."""
    reported: list[QueryProgress] = []
    query = FakeQuery(False, False, False, True)
    query.message = message
    query.progress = [FakeProgress(5, idle=True), FakeProgress(5, idle=True), FakeProgress(6)]
    rescaling(tmp_path, FakeSpark(query), reported.append).run()

    outcome = StateRescaled(trigger_id=WANTED.trigger_id, partitions=3)
    succeeded = [len(progress.batches) for progress in reported if progress.rescaled is not None]
    assert (reported[0].rescaled, reported[-1].rescaled) == (None, outcome)
    assert succeeded[0] == reported_after


def test_a_query_that_fails_in_its_first_batch_on_the_new_state_has_not_reported_a_rescale(tmp_path: Path) -> None:
    reported: list[QueryProgress] = []
    query = FakeQuery(False, False, StreamingQueryException("no such file"))
    query.message = "Processing new data"
    task = rescaling(tmp_path, FakeSpark(query, FakeQuery(True)), reported.append)
    commit_batch(tmp_path / JOB / "files-v1", 5, 2, offset=60)
    (tmp_path / "out" / "_spark_metadata" / "5").write_text("v1")
    task.run()

    assert [progress.rescaled for progress in reported[:-2]] == [None] * (len(reported) - 2)
    assert reported[-1].rescaled is not None
    assert "no such file" in reported[-1].rescaled.failure


def test_a_rescale_waits_for_the_end_of_the_predecessor(tmp_path: Path) -> None:
    """One that is alive while its last batch is completed, or goes on while the state is repartitioned."""
    reported: list[QueryProgress] = []
    pending = FakeQuery(concurrent())
    task = rescaling(tmp_path, FakeSpark(pending, FakeQuery(True)), reported.append)
    checkpoint = tmp_path / JOB / "files-v1"
    (checkpoint / "commits" / "4").unlink()
    pending.ended = (checkpoint / "commits" / "4").touch

    task.run()
    assert reported[-1].rescaled == StateRescaled(trigger_id=WANTED.trigger_id, partitions=3)
    assert reported[-1].restored == 5


def test_a_rescale_that_is_overtaken_by_the_predecessor_is_repeated(tmp_path: Path) -> None:
    reported: list[QueryProgress] = []
    activities: list[str] = []
    checkpoint = tmp_path / JOB / "files-v1"
    tries: list[int] = []

    def overtaken(copy: str, partitions: int) -> None:
        tries.append(latest_batch(path.name for path in (Path(copy) / "offsets").iterdir()) or 0)
        commit_batch(Path(copy), tries[-1] + 1, partitions, offset=10 * tries[-1] + 10)
        if len(tries) == 1:
            commit_batch(checkpoint, 5, 2, offset=60)
            (tmp_path / "out" / "_spark_metadata" / "5").write_text("v1")

    spark = FakeSpark(FakeQuery(True))
    rescaling(tmp_path, spark, reported.append, repartition=overtaken, activity=activities.append).run()

    assert tries == [4, 5]
    assert activities.count("waiting for the end of another query of files-v1") == 1
    assert reported[-1].rescaled == StateRescaled(trigger_id=WANTED.trigger_id, partitions=3)
    assert sink_log(tmp_path) == ["0", "1", "2", "3", "4", "5", "6"]


def test_a_query_that_may_still_run_keeps_its_new_state(tmp_path: Path) -> None:
    """One whose predecessor is alive waits for that, and a lost connection says nothing about the query."""
    reported: list[QueryProgress] = []
    rescaling(tmp_path / "1", FakeSpark(FakeQuery(concurrent()), FakeQuery(True)), reported.append).run()
    outcome = reported[-1].rescaled
    assert outcome is not None
    assert (outcome.partitions, outcome.failure) == (3, "")

    with pytest.raises(ConnectionError):
        rescaling(tmp_path / "2", FakeSpark(FakeQuery(ConnectionError("lost"))), reported.append).run()
    assert (tmp_path / "2" / JOB / "files-v1" / "commits" / "5").exists()
