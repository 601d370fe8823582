"""Savepoints of real state stores, each with files of its own kind, and forks beside the job that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.processes import Processes, until
from tests.cluster.runner_harness import RunnerHarness, step
from tests.cluster.test_streaming import ALL, SCHEMA, Pipeline

import flintlock as fl
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import ForeachBatch, Source, Sql
from flintlock.model.streaming.streams import OutputMode, StreamQuery
from flintlock.model.tasks import DeployTask
from flintlock.savepoints.restoring import Restore, restore_job
from flintlock.savepoints.writing import write_savepoint

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = "spark.sql.streaming.stateStore.rocksdb"
STORES = {
    "rocksdb": {},
    "changelog": {f"{ROCKSDB}.changelogCheckpointing.enabled": "true"},
    "format-2": {
        f"{ROCKSDB}.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    },
    "hdfs": {PROVIDER: f"{STATE}.HDFSBackedStateStoreProvider"},
}


@pytest.mark.parametrize("store", STORES)
def test_counts_continue_from_a_savepoint_of_each_state_store(b: RunnerHarness, store: str) -> None:
    """The savepoint has every file that the state of its batch needs; the checkpoint that it was made of is gone."""
    pipeline = Pipeline(b)
    target = Path(b.path("counts"))

    def write(batch: Any, batch_id: int) -> None:
        with open(target, "a") as file:  # noqa: PTH123 - runs in another process
            file.writelines(f"{row['k']} {row['c']}\n" for row in batch.collect())

    artifacts = (b.pickled("write", write),)

    def task() -> DeployTask:
        return pipeline.of(
            step("events", Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)),
            step("counts", Sql(query="SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2"), "events"),
            step(
                "write",
                ForeachBatch(pickle="write.pkl"),
                "counts",
                query=StreamQuery(uid="counts-v1", output_mode=OutputMode.UPDATE, trigger=ALL),
            ),
            artifacts=artifacts,
            config={**STORES[store], "spark.sql.shuffle.partitions": "2"},
        )

    for _ in range(3):  # one batch each: changes after the first snapshot
        pipeline.arrive(2)
        b.run(task()).finished  # noqa: B018 - raises if it has failed
    graph: JobGraph = task().graph
    savepoint = write_savepoint(
        graph,
        checkpoints=pipeline.checkpoints,
        parent=Path(b.path("savepoints")),
        name="savepoint-1",
        spark="4.3.0",
        now_ms=0,
        unique="1",
    )
    pipeline.checkpoints.rename(b.path("gone"))
    restore = Restore(path=savepoint)
    restore_job(graph, restore, checkpoints=pipeline.checkpoints, new_id="22222222-2222-2222-2222-222222222222")
    pipeline.arrive(2)
    b.run(task()).finished  # noqa: B018 - raises if it has failed

    assert sorted(target.read_text().splitlines()) == [f"{k} {c}" for k in (0, 1) for c in (1, 2, 3, 4)]


def test_a_fork_runs_beside_the_job_that_it_was_made_of_and_stops_no_query_of_it(
    standing: Processes, tmp_path: Path
) -> None:
    """By default Spark stops a query, without an exception, when another session starts one with the same id."""
    source = tmp_path / "in"
    source.mkdir()

    def arrive(number: int) -> None:
        (tmp_path / "row").write_text(json.dumps({"n": number}) + "\n")
        (tmp_path / "row").rename(source / f"{number}.json")

    def job(out: str) -> fl.Job:
        made = fl.Job("forked", parallelism=1)
        events = made.source("events", format="json", path=source, schema="n LONG", stream=True)
        made.sink("files", events, format="parquet", path=tmp_path / out, uid="files-v1")
        return made

    def batches(handle: fl.JobHandle) -> int:
        log = standing.state_dir / "checkpoints" / handle.id / "files-v1" / "commits"
        return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)

    with fl.connect(standing.url) as client:
        original = client.submit(job("first"))
        arrive(0)
        until("a batch", lambda: batches(original) >= 0, 240)
        savepoint = original.savepoint()
        fork = client.submit(job("second"), config={"execution.state-recovery.path": savepoint})
        arrive(1)
        until("a batch of both", lambda: min(batches(original), batches(fork)) >= 1, 240)
        arrive(2)
        until("another one", lambda: min(batches(original), batches(fork)) >= 2, 240)
        attempts = [len(handle.attempts().regions[0].attempts) for handle in (original, fork)]
        for handle in (original, fork):
            handle.cancel()

    assert attempts == [1, 1], "no query was stopped, or had to be restarted"
