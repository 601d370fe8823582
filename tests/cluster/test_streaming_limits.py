"""Streaming queries of real Spark: batches that are purged under savepoints, sources that clean up, real time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.cluster.runner_harness import RunnerHarness, step
from tests.cluster.test_streaming import ALL, SCHEMA, Pipeline

from flintlock.model.commands import CancelTask
from flintlock.model.errors import Invalid
from flintlock.model.operations import ForeachBatch, Sink, Source, Sql
from flintlock.model.streaming.streams import OutputMode, StreamQuery, Trigger, TriggerKind
from flintlock.model.tasks import DeployTask, FailureKind
from flintlock.savepoints.restoring import Restore, check_restore, restore_job
from flintlock.savepoints.writing import write_savepoint
from flintlock.spark.runner.handle import ForkedRunner

_SAVEPOINTS = 3
NEW_ID = "22222222-2222-2222-2222-222222222222"


def counts(b: RunnerHarness, pipeline: Pipeline, target: Path, checkpoints: Path, trigger: Trigger) -> DeployTask:
    """Return a query with a state, one file for each batch, of which Spark keeps two batches only."""

    def write(batch: Any, batch_id: int) -> None:
        with open(target, "a") as file:  # noqa: PTH123 - runs in another process
            file.writelines(f"{row['k']} {row['c']}\n" for row in batch.collect())

    options = {"maxFilesPerTrigger": "1"}
    events = Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, options=options, stream=True)
    query = StreamQuery(uid="counts-v1", output_mode=OutputMode.UPDATE, trigger=trigger)
    task = pipeline.of(
        step("events", events),
        step("counts", Sql(query="SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2"), "events"),
        step("write", ForeachBatch(pickle="write.pkl"), "counts", query=query),
        artifacts=(b.pickled("write", write),),
        config={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
        },
    )
    return structs.replace(task, checkpoint_dir=str(checkpoints))


def test_every_savepoint_that_is_made_while_batches_are_purged_can_be_restored(b: RunnerHarness) -> None:
    """Spark removes the files of earlier batches while they are linked: a later batch is saved then."""
    pipeline, saved = Pipeline(b), list[Path]()
    task = counts(b, pipeline, Path(b.path("counts")), pipeline.checkpoints, Trigger())
    commits = pipeline.checkpoints / "counts-v1" / "commits"

    def committed() -> int:
        return max((int(path.name) for path in commits.glob("[0-9]*")), default=-1)

    async def save(runner: ForkedRunner) -> None:
        for number in range(_SAVEPOINTS):
            pipeline.arrive(4)
            await b.until(lambda: committed() >= 4 * len(saved))
            place = await asyncio.to_thread(
                write_savepoint,
                task.graph,
                checkpoints=pipeline.checkpoints,
                parent=Path(b.path("savepoints")),
                name=f"savepoint-{number}",
                spark="4.3.0",
                now_ms=0,
                unique=str(number),
            )
            saved.append(place)
        await runner.command(CancelTask(attempt=task.attempt))

    pipeline.arrive(1)
    assert b.loop.run(b.ran(task, save)).failure.exception == "Interrupted"
    assert not (commits / "0").exists(), "nothing was purged: the test shows nothing"
    pipeline.arrive(1)

    last = 4 * _SAVEPOINTS + 2
    for place in saved:
        target, checkpoints = Path(b.path("restored")), Path(b.path("checkpoints")) / "job"
        restore_job(task.graph, Restore(path=place), checkpoints=checkpoints, new_id=NEW_ID)
        b.run(counts(b, pipeline, target, checkpoints, ALL)).finished  # noqa: B018 - raises if it has failed
        shown = dict(line.split() for line in target.read_text().splitlines())
        assert shown == {"0": str(last // 2), "1": str(last // 2)}, place


def test_a_savepoint_of_a_source_that_removes_what_it_has_read_is_not_restored(b: RunnerHarness) -> None:
    """The rows after it cannot be read again, as the files are gone."""
    pipeline = Pipeline(b)
    options = {"maxFilesPerTrigger": "1", "cleanSource": "delete"}
    task = pipeline.of(
        step("in", Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, options=options, stream=True)),
        step("out", Sink(format="parquet", path=b.path("out")), "in", query=StreamQuery(uid="out-v1", trigger=ALL)),
        config={"spark.sql.streaming.fileSource.log.compactInterval": "1"},
    )
    pipeline.arrive(3)
    b.run(task).finished  # noqa: B018 - raises if it has failed
    place = write_savepoint(
        task.graph,
        checkpoints=pipeline.checkpoints,
        parent=Path(b.path("savepoints")),
        name="savepoint",
        spark="4.3.0",
        now_ms=0,
        unique="1",
    )
    with pytest.raises(Invalid, match=r"out-v1: a source removes or moves what it has read \(cleanSource\)"):
        check_restore(task.graph, Restore(path=place), "4.3.0")


@pytest.mark.parametrize("form", ["json", "rate"])
def test_real_time_is_refused_with_the_reason_where_spark_does_not_have_it(b: RunnerHarness, form: str) -> None:
    """Which sources and sinks have it is up to Spark; a query that has one of the others is not restarted."""
    pipeline = Pipeline(b)
    real_time = Trigger(kind=TriggerKind.REAL_TIME, interval="5 seconds")
    query = StreamQuery(uid="out-v1", output_mode=OutputMode.UPDATE, trigger=real_time)
    source = Source(format="rate", stream=True)
    if form == "json":
        pipeline.arrive(1)
        source = Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)
    task = pipeline.of(step("in", source), step("out", Sink(format="noop"), "in", query=query))
    failure = b.run(task).failure
    assert failure.kind is FailureKind.ANALYSIS
    assert "[STREAMING_REAL_TIME_MODE." in failure.message
