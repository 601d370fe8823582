"""Savepoints of real state stores, each with files of its own kind, and forks beside the job that they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.chaos.work import sink_batches
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes, until
from tests.cluster.runner_harness import JOB, RunnerHarness, step
from tests.cluster.test_rescaling import set_time
from tests.cluster.test_streaming import ALL, SCHEMA, Pipeline, latest

import flintlock as fl
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import ForeachBatch, Source, Sql
from flintlock.model.streaming.streams import OutputMode, StreamQuery
from flintlock.model.tasks import DeployTask, FailureKind
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


@pytest.mark.parametrize("store", ["rocksdb", "hdfs"])
@pytest.mark.parametrize(
    ("changed", "condition"),
    [
        (
            "SELECT n % 2 AS k, count(*) AS c, max(n) AS m FROM events GROUP BY 1",
            "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE",
        ),
        ("SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2, n % 3", "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"),
        ("SELECT n AS k, n AS c FROM events", "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
    ],
)
def test_a_state_that_changed_steps_cannot_read_is_a_failure_that_no_restart_repeats(
    b: RunnerHarness, store: str, changed: str, condition: str
) -> None:
    """Spark reports it as it does every batch that fails: only the text of the error has the cause."""
    pipeline = Pipeline(b)

    def ignore(batch: Any, batch_id: int) -> None:
        batch.collect()

    artifacts = (b.pickled("ignore", ignore),)

    def task(query: str) -> DeployTask:
        return pipeline.of(
            step("events", Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)),
            step("counts", Sql(query=query), "events"),
            step(
                "ignore",
                ForeachBatch(pickle="ignore.pkl"),
                "counts",
                query=StreamQuery(uid="counts-v1", output_mode=OutputMode.UPDATE, trigger=ALL),
            ),
            artifacts=artifacts,
            config={**STORES[store], "spark.sql.shuffle.partitions": "1"},
        )

    pipeline.arrive(1)
    b.run(task("SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2")).finished  # noqa: B018 - raises
    pipeline.arrive(1)
    failure = b.run(task(changed)).failure

    assert (failure.kind, failure.error_class) == (FailureKind.ANALYSIS, condition)
    assert "no restart helps" in failure.message


GROUPED = "SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2"


@pytest.mark.parametrize(
    ("saved", "changed", "says"),
    [
        (GROUPED, GROUPED.replace("count(*) AS c", "sum(n + 0.5D) AS c"), "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
        (GROUPED, "SELECT n AS k, n AS c FROM events", "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
        ("SELECT n AS k, n AS c FROM events", GROUPED, "saved without a state, and its steps need one now"),
        (GROUPED, GROUPED, ""),
    ],
)
def test_a_restored_state_is_compared_with_the_steps_before_a_batch_is_planned(
    b: RunnerHarness, saved: str, changed: str, says: str
) -> None:
    """Also where no rows arrive: by itself Spark says it with the first ones, when a batch is planned already."""
    pipeline = Pipeline(b)
    target = Path(b.path("counts"))

    def write(batch: Any, batch_id: int) -> None:
        with open(target, "a") as file:  # noqa: PTH123 - runs in another process
            file.writelines(f"{row['k']} {row['c']}\n" for row in batch.collect())

    artifacts = (b.pickled("write", write),)

    def task(query: str) -> DeployTask:
        return pipeline.of(
            step("events", Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)),
            step("counts", Sql(query=query), "events"),
            step(
                "write",
                ForeachBatch(pickle="write.pkl"),
                "counts",
                query=StreamQuery(uid="counts-v1", output_mode=OutputMode.UPDATE, trigger=ALL),
            ),
            artifacts=artifacts,
            config={"spark.sql.shuffle.partitions": "2"},
        )

    pipeline.arrive(2)
    b.run(task(saved)).finished  # noqa: B018 - raises if it has failed
    written = target.read_text()
    savepoint = write_savepoint(
        task(saved).graph,
        checkpoints=pipeline.checkpoints,
        parent=Path(b.path("savepoints")),
        name="savepoint-1",
        spark="4.3.0",
        now_ms=0,
        unique="1",
    )
    pipeline.checkpoints = Path(b.path("restored")) / JOB
    restored = task(changed)
    restore_job(
        restored.graph,
        Restore(path=savepoint),
        checkpoints=pipeline.checkpoints,
        new_id="22222222-2222-2222-2222-222222222222",
    )
    checkpoint = pipeline.checkpoints / "counts-v1"
    before = sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*"))
    ran = b.run(structs.replace(restored, attempt=structs.replace(restored.attempt, attempt=0)))

    assert "comparing the state of write with its steps" in ran.activities
    left = [path.name for path in pipeline.checkpoints.glob(".counts-v1.*")]
    assert left == ([] if says else [".counts-v1.compared"]), "no copy is left; what fits is not compared again"
    assert target.read_text() == written, "no batch has reached the function"
    if not says:
        pipeline.arrive(2)
        b.run(task(changed)).finished  # noqa: B018 - raises if it has failed
        assert sorted(target.read_text().splitlines()[-2:]) == ["0 2", "1 2"]
        return
    assert ran.failure.kind is FailureKind.ANALYSIS
    assert says in f"{ran.failure.error_class} {ran.failure.message}"
    assert ran.failure.step == "write"
    assert sorted(path.name for path in (checkpoint / "offsets").glob("[0-9]*")) == before


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


def test_a_sink_that_is_ahead_of_a_savepoint_is_rewound_and_has_every_row_once(
    standing: Processes, tmp_path: Path
) -> None:
    """By the command line, on what Spark has written: its state, its files with checksums, and a log that it compacts.

    A minute is written when the batch after it has moved the watermark: after a batch the state has its minute and the
    one before, ten rows each.
    """
    source, sink, minutes = tmp_path / "in", tmp_path / "out", 20
    source.mkdir()
    for minute in range(minutes):
        rows = [{"ts": f"2026-01-01T00:{minute:02}:00Z", "n": n} for n in range(10)]
        (source / f"{minute}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
        set_time(source / f"{minute}.json", minute)
    for name, trigger in (("first", {"processingTime": "1 second"}), ("second", {"availableNow": True})):
        (tmp_path / f"{name}.json").write_text(json.dumps(_counts(source, sink, trigger)))

    def command(*arguments: str, fails: bool = False) -> str:
        ran = flintlock(*arguments, cwd=tmp_path)
        assert (ran.returncode != 0) is fails, ran.stdout + ran.stderr
        return ran.stderr if fails else ran.stdout

    cluster = ("-m", standing.url)
    job_id = json.loads(command("run", *cluster, "-d", "--json", "first.json"))["jobid"]
    log = standing.state_dir / "checkpoints" / job_id / "counts-v1" / "commits"
    until("some batches", lambda: len([*log.glob("[0-9]*")]) >= 3 or None, 240)
    savepoint = command("savepoint", job_id, *cluster).strip()
    inspected = json.loads(command("savepoint", "inspect", savepoint, "--json"))
    (saved,), (state,) = inspected["queries"], inspected["states"]
    until("batches after the savepoint", lambda: latest(log) >= saved["batch"] + 5 or None, 240)
    command("cancel", job_id, *cluster)
    with fl.connect(standing.url) as client, pytest.raises(fl.JobCanceled):
        client.find(job_id).wait(120)
    ahead, before = sink_batches(sink), {*sink.rglob("*")}
    refused = command("run", *cluster, "-s", savepoint, "second.json", fails=True)
    after = {*sink.rglob("*")}
    command("run", *cluster, "-s", savepoint, "--rewind-sinks", "second.json")

    assert (inspected["job_id"], inspected["job_name"]) == (job_id, "counts")
    assert (saved["uid"], saved["step"], saved["partitions"]) == ("counts-v1", "files", 2)
    assert [json.loads(offset)["logOffset"] for offset in saved["offsets"]] == [saved["batch"]]
    assert (state["uid"], state["partitions"], state["rows"]) == ("counts-v1", 2, 20)
    assert state["schemas"] == ["window struct<start timestamp, end timestamp>, n long", "count long"]
    shown = command("savepoint", "inspect", savepoint)
    assert all(text in shown for text in ("counts-v1", saved["offsets"][0], *state["schemas"]))
    assert "Spark would skip the batches in between" in refused
    assert after == before, "what is refused changes nothing"
    (aside,) = sink.glob(".flintlock-rewound-*")
    later = [file for batch, files in ahead.items() if batch > saved["batch"] for file in files]
    assert sorted(aside.glob("*.parquet")) == sorted(aside / file.name for file in later)
    entries = {int(path.name.partition(".")[0]) for path in (aside / "_spark_metadata").glob("[0-9]*")}
    assert entries == {batch for batch in ahead if batch > saved["batch"]}
    rows = fl.Job("rows", parallelism=1)
    out = rows.source("out", format="parquet", path=sink)
    rows.result("all", rows.sql("sorted", "SELECT minute(t), n, c FROM out ORDER BY t, n", inputs=[out]), limit=1000)
    with fl.connect(standing.url) as client:
        found = client.submit(rows).wait(240).result("all").rows()
    assert [tuple(row) for row in found] == [(minute, n, 1) for minute in range(minutes - 1) for n in range(10)]


def _counts(source: Path, sink: Path, trigger: dict[str, Any]) -> dict[str, Any]:
    """Return a job that counts by minute and number, a file in each batch."""
    counted = "SELECT window.start AS t, n, count(*) AS c FROM events GROUP BY window(ts, '1 minute'), n"
    return {
        "name": "counts",
        "type": "STREAMING",
        "parallelism": 1,
        "config": {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.fileSink.log.compactInterval": "4",
        },
        "steps": {
            "events": {
                "source": {
                    "format": "json",
                    "path": str(source),
                    "schema": "ts TIMESTAMP, n LONG",
                    "options": {"maxFilesPerTrigger": "1"},
                    "stream": True,
                },
                "watermark": {"column": "ts", "delay": "0 seconds"},
            },
            "counts": {"sql": counted, "inputs": ["events"]},
            "files": {
                "sink": {"format": "parquet", "path": str(sink)},
                "inputs": ["counts"],
                "uid": "counts-v1",
                "trigger": trigger,
            },
        },
    }
