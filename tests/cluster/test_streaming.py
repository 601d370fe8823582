"""Streaming queries on a real engine: row by row, over the death of a runner, and stopped by a cancel."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from pyspark.sql import DataFrame
from tests.cluster.processes import Processes, until
from tests.cluster.runner_harness import JOB, Ran, RunnerHarness, step

import flintlock as fl
from flintlock.model.commands import CancelTask
from flintlock.model.jobgraph import JobType, JobVertex
from flintlock.model.operations import ForeachBatch, Result, Sink, Source, Sql
from flintlock.model.streaming.savepoints import MANIFEST, decode_manifest
from flintlock.model.streaming.streams import OutputMode, StreamQuery, Trigger, TriggerKind, Watermark
from flintlock.model.tasks import DeployTask, FailureKind
from flintlock.savepoints.writing import write_savepoint
from flintlock.spark.runner.handle import ForkedRunner
from flintlock.testing import rest_requests

ALL = Trigger(kind=TriggerKind.AVAILABLE_NOW)
SCHEMA = "ts TIMESTAMP, n LONG"


class Pipeline:
    """Files that arrive, and a query that counts on them."""

    def __init__(self, b: RunnerHarness) -> None:
        self.b = b
        self.input = Path(b.path("in"))
        self.output = Path(b.path("out"))
        self.checkpoints = Path(b.path("checkpoints")) / JOB
        self.input.mkdir()
        self._files = 0

    def arrive(self, files: int) -> None:
        """Put files into the directory, each with one row of a number that no other has."""
        for _ in range(files):
            number, self._files = self._files, self._files + 1
            row = {"ts": f"2026-01-01T00:{number % 60:02}:00Z", "n": number}
            hidden = self.input / f".{number}"
            hidden.write_text(json.dumps(row) + "\n")
            hidden.rename(self.input / f"{number}.json")

    def task(self, trigger: Trigger, uid: str = "files-v1", **more: Any) -> DeployTask:
        """Write every row to files, one input file for each batch."""
        options = {"maxFilesPerTrigger": "1"}
        events = Source(format="json", paths=(str(self.input),), schema=SCHEMA, options=options, stream=True)
        return self.of(
            step("events", events),
            step("doubled", Sql(query="SELECT n, 2 * n AS m FROM events"), "events"),
            step(
                "files",
                Sink(format="parquet", path=str(self.output)),
                "doubled",
                query=StreamQuery(uid=uid, trigger=trigger),
            ),
            **more,
        )

    def of(self, *steps: JobVertex, **more: Any) -> DeployTask:
        return self.b.task(*steps, job_type=JobType.STREAMING, checkpoint_dir=str(self.checkpoints), **more)

    def batches(self) -> int:
        """Return how many batches the query has committed."""
        return len([*(self.checkpoints / "files-v1" / "commits").glob("[0-9]*")])

    def rows(self) -> list[int]:
        """Return the numbers that are in the output, as any reader of it sees them."""
        ran = self.b.run(
            self.b.task(
                step("out", Source(format="parquet", paths=(str(self.output),))),
                step("sorted", Sql(query="SELECT n, m FROM out ORDER BY n"), "out"),
                step("r", Result(limit=1000), "sorted"),
            )
        )
        found: list[list[int]] = msgspec.json.decode(ran.finished.results[0].json)["rows"]
        assert all(m == 2 * n for n, m in found)
        return [n for n, _ in found]

    def killed_after(self, batches: int) -> Ran:
        """Run the query, and kill its runner when so many batches are committed."""

        async def kill(runner: ForkedRunner) -> None:
            await self.b.until(lambda: self.batches() >= batches)
            os.kill(await runner.started(), signal.SIGKILL)

        return self.b.loop.run(self.b.ran(self.task(Trigger()), kill))


def test_a_killed_runner_is_followed_by_one_that_continues_from_the_checkpoint(b: RunnerHarness) -> None:
    """Every row once: the query of the dead runner has ended with its session, and the next one begins where it was."""
    pipeline = Pipeline(b)
    pipeline.arrive(12)

    assert pipeline.killed_after(3).failure.kind is FailureKind.RUNNER_LOST
    committed = pipeline.batches()
    pipeline.arrive(3)
    pipeline.b.run(pipeline.task(ALL)).finished  # noqa: B018 - raises if it has failed

    assert 3 <= committed < 15
    # A stop between the log of the source and that of the query leaves a file to the next batch, which then has two.
    assert pipeline.batches() in (14, 15)
    assert pipeline.rows() == list(range(15))


def test_a_cancel_stops_the_query_before_the_task_has_ended(b: RunnerHarness) -> None:
    """Nothing is processed after it, and nothing is lost by it."""
    pipeline = Pipeline(b)
    pipeline.arrive(2)

    async def cancel(runner: ForkedRunner) -> None:
        await b.until(lambda: pipeline.batches() >= 1)
        await runner.command(CancelTask(attempt=task.attempt))

    task = pipeline.task(Trigger())
    ran = b.loop.run(b.ran(task, cancel))
    committed = pipeline.batches()
    pipeline.arrive(1)
    pipeline.b.run(pipeline.task(ALL)).finished  # noqa: B018 - raises if it has failed

    assert ran.failure.exception == "Interrupted"
    assert "stopping files" in ran.activities
    assert committed < 3
    assert pipeline.rows() == [0, 1, 2]


def test_a_query_that_would_skip_batches_of_its_sink_is_refused(b: RunnerHarness) -> None:
    """A new query on the files of an earlier one: Spark alone loses the rows of its first batches, silently."""
    pipeline = Pipeline(b)
    pipeline.arrive(2)
    pipeline.b.run(pipeline.task(ALL)).finished  # noqa: B018 - raises if it has failed

    failure = pipeline.b.run(pipeline.task(ALL, uid="files-v2")).failure

    assert failure.kind is FailureKind.CONFIGURATION
    assert failure.step == "files"
    assert (
        "were written by another streaming query, up to its batch 1, and this one starts from the beginning"
        in failure.message
    )


def test_a_function_gets_each_batch_once_with_its_id(b: RunnerHarness) -> None:
    """Stateful, with RocksDB: counts go on over a restart, and the function gets growing batch ids."""
    pipeline = Pipeline(b)
    target = b.path("upserts")

    def upsert(batch: Any, batch_id: int) -> None:
        with open(target, "a") as file:  # noqa: PTH123 - runs in another process
            file.writelines(f"{batch_id} {row['k']} {row['c']}\n" for row in batch.collect())

    events = Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)
    counts = Sql(query="SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2")
    query = StreamQuery(uid="upsert-v1", output_mode=OutputMode.UPDATE, trigger=ALL)
    steps = (
        step("events", events, watermark=Watermark(column="ts", delay="1 minute")),
        step("counts", counts, "events"),
        step("upsert", ForeachBatch(pickle="upsert.pkl"), "counts", query=query),
    )
    artifacts = (b.pickled("upsert", upsert),)

    for files in (3, 2):
        pipeline.arrive(files)
        b.run(pipeline.of(*steps, artifacts=artifacts)).finished  # noqa: B018 - raises if it has failed

    written = sorted(tuple(map(int, line.split())) for line in Path(target).read_text().splitlines())
    (later,) = {batch_id for batch_id, _, _ in written} - {0}  # the batches between have no rows
    assert written == [(0, 0, 2), (0, 1, 1), (later, 0, 3), (later, 1, 2)]
    assert [*(pipeline.checkpoints / "upsert-v1" / "state").rglob("*.zip")], "the state is in RocksDB"

    # A savepoint after the last batch: a query in a copy of its files goes on from there, with its state.
    graph = pipeline.of(*steps, artifacts=artifacts).graph
    savepoint = write_savepoint(
        graph,
        checkpoints=pipeline.checkpoints,
        parent=Path(b.path("savepoints")),
        name="savepoint-1",
        spark="4.3.0",
        now_ms=0,
        unique="1",
    )
    (query,) = decode_manifest((savepoint / MANIFEST).read_bytes()).queries
    assert (query.batch >= later, len(query.offsets), query.partitions > 0) == (True, 1, True)
    pipeline.checkpoints = Path(b.path("restored"))
    shutil.copytree(savepoint / "queries", pipeline.checkpoints)
    pipeline.arrive(1)
    b.run(pipeline.of(*steps, artifacts=artifacts)).finished  # noqa: B018 - raises if it has failed

    assert [line.split()[1:] for line in Path(target).read_text().splitlines()[4:]] == [["1", "3"]]


@pytest.mark.parametrize(("error", "permanent"), [(ConnectionError, False), (fl.NoRetry, True)])
def test_what_a_function_for_batches_raises_is_user_code_and_no_retry_is_permanent(
    b: RunnerHarness, error: type[Exception], permanent: bool
) -> None:
    pipeline = Pipeline(b)
    pipeline.arrive(1)

    def upsert(batch: Any, batch_id: int) -> None:
        raise error(f"batch {batch_id} cannot be written")

    events = Source(format="json", paths=(str(pipeline.input),), schema=SCHEMA, stream=True)
    query = StreamQuery(uid="upsert-v1", trigger=ALL)
    steps = (step("events", events), step("upsert", ForeachBatch(pickle="upsert.pkl"), "events", query=query))

    failure = b.run(pipeline.of(*steps, artifacts=(b.pickled("upsert", upsert),))).failure

    assert (failure.kind, failure.permanent) == (FailureKind.USER_CODE, permanent)
    assert failure.message == "batch 0 cannot be written"


def test_a_missing_column_is_an_error_of_its_step(b: RunnerHarness) -> None:
    """Found before the query starts; a restart could not help."""
    pipeline = Pipeline(b)
    task = pipeline.task(ALL)
    broken = [
        structs.replace(vertex, operation=Sql(query="SELECT nope FROM events")) if vertex.name == "doubled" else vertex
        for vertex in task.graph.vertices
    ]

    failure = b.run(pipeline.of(*broken)).failure

    assert (failure.kind, failure.step) == (FailureKind.ANALYSIS, "doubled")
    assert not pipeline.checkpoints.exists()


def test_a_streaming_job_restarts_by_itself_and_finishes_with_every_row_once(
    standing: Processes, tmp_path: Path
) -> None:
    """Without a strategy it restarts by exponential-delay; its checkpoint is removed when it has finished."""
    source, checkpoints = tmp_path / "in", standing.state_dir / "checkpoints"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")
    job = fl.Job("numbers", parallelism=1, params={"mark": str(tmp_path / "killed"), "checkpoints": str(checkpoints)})
    options = {"maxFilesPerTrigger": 1}
    events = job.source("events", format="json", path=source, schema="n LONG", options=options, stream=True)

    @job.step(inputs=[events])
    def doomed(events: DataFrame, params: dict[str, str]) -> DataFrame:
        """Kill the first runner when two batches are committed."""
        from threading import Event, Thread

        def kill() -> None:
            while len([*Path(params["checkpoints"]).glob("*/files-v1/commits/[0-9]*")]) < 2:
                Event().wait(0.02)
            Path(params["mark"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)

        if not Path(params["mark"]).exists():
            Thread(target=kill, daemon=True).start()
        return events

    trigger = {"availableNow": True}
    job.sink("files", doomed, format="parquet", path=tmp_path / "out", uid="files-v1", trigger=trigger)
    rows = fl.Job("rows", parallelism=1)
    out = rows.source("out", format="parquet", path=tmp_path / "out")
    rows.result("all", rows.sql("sorted", "SELECT n FROM out ORDER BY n", inputs=[out]), limit=100)

    with fl.connect(standing.url) as client:
        ended = client.submit(job).wait(240)
        (region,) = ended.attempts().regions
        found = client.submit(rows).wait(240).result("all").rows()

    assert [attempt.state for attempt in region.attempts] == ["FAILED", "FINISHED"]
    assert [row[0] for row in found] == list(range(6))
    until("the end of the cleanup", lambda: not (checkpoints / ended.id).exists() or None)


def test_a_job_continues_from_a_savepoint_that_was_made_under_load_with_every_row_once(
    standing: Processes, tmp_path: Path
) -> None:
    """A new sink has each row that the savepoint had not yet, once; the sink of the saved job is ahead, and refused."""
    source, numbers = tmp_path / "in", range(40)
    source.mkdir()
    for number in numbers:
        (source / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")

    def job(out: str, trigger: dict[str, Any]) -> fl.Job:
        made = fl.Job("saved", parallelism=1)
        options = {"maxFilesPerTrigger": 1}
        events = made.source("events", format="json", path=source, schema="n LONG", options=options, stream=True)
        made.sink("files", events, format="parquet", path=tmp_path / out, uid="files-v1", trigger=trigger)
        return made

    rows = fl.Job("rows", parallelism=1)
    out = rows.source("out", format="parquet", path=tmp_path / "second")
    rows.result("all", rows.sql("sorted", "SELECT n FROM out ORDER BY n", inputs=[out]), limit=100)
    now = {"availableNow": True}

    with fl.connect(standing.url) as client:
        running = client.submit(job("first", {"processingTime": "1 second"}))
        log = standing.state_dir / "checkpoints" / running.id / "files-v1" / "commits"
        until("some batches", lambda: len([*log.glob("[0-9]*")]) >= 3 or None)
        savepoint = Path(running.savepoint())
        until("a batch after the savepoint", lambda: latest(log) > saved_batch(savepoint) or None)
        running.cancel()
        with pytest.raises(fl.JobCanceled):
            running.wait(120)
        restore = {"execution.state-recovery.path": str(savepoint)}
        with pytest.raises(fl.Invalid, match="Spark would skip the batches in between"):
            client.submit(job("first", now), config=restore)
        client.submit(job("second", now), config=restore).wait(240)
        found = client.submit(rows).wait(240).result("all").rows()

    assert [row[0] for row in found] == sorted(set(numbers) - saved_rows(savepoint))
    assert not log.parent.exists(), "the savepoint outlives the checkpoints of its job"


def latest(log: Path) -> int:
    """Return the latest batch of a log."""
    return max(int(path.name) for path in log.glob("[0-9]*"))


def saved_batch(savepoint: Path) -> int:
    """Return the batch that the only query was saved after."""
    return decode_manifest((savepoint / MANIFEST).read_bytes()).queries[0].batch


def saved_rows(savepoint: Path) -> set[int]:
    """Return the rows that are in batches of the savepoint, as the log of the file source says."""
    (query,) = decode_manifest((savepoint / MANIFEST).read_bytes()).queries
    last = json.loads(query.offsets[0])["logOffset"]
    logs = (savepoint / "queries" / "files-v1" / "sources" / "0").iterdir()
    entries = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    return {int(Path(entry["path"]).stem) for entry in entries if entry["batchId"] <= last}


def test_a_stopped_job_is_finished_and_continues_from_its_savepoint_into_the_same_files(
    standing: Processes, tmp_path: Path
) -> None:
    """Every row once: the batch that was begun is completed, so the sink is not ahead of the savepoint."""
    source, numbers = tmp_path / "in", range(30)
    source.mkdir()
    for number in numbers:
        (source / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")

    def job(trigger: dict[str, Any]) -> fl.Job:
        made = fl.Job("stopped", parallelism=1)
        options = {"maxFilesPerTrigger": 1}
        events = made.source("events", format="json", path=source, schema="n LONG", options=options, stream=True)
        made.sink("files", events, format="parquet", path=tmp_path / "out", uid="files-v1", trigger=trigger)
        return made

    rows = fl.Job("rows", parallelism=1)
    out = rows.source("out", format="parquet", path=tmp_path / "out")
    rows.result("all", rows.sql("sorted", "SELECT n FROM out ORDER BY n", inputs=[out]), limit=100)

    with fl.connect(standing.url) as client:
        running = client.submit(job({"processingTime": "1 second"}))
        log = standing.state_dir / "checkpoints" / running.id / "files-v1" / "commits"
        until("some batches", lambda: len([*log.glob("[0-9]*")]) >= 3 or None)
        savepoint = running.stop()
        ended = running.wait(120)
        assert ended.status == "FINISHED"
        restored = client.submit(job({"availableNow": True}), config={"execution.state-recovery.path": savepoint})
        restored.wait(240)
        found = client.submit(rows).wait(240).result("all").rows()

    assert saved_batch(Path(savepoint)) < len(numbers) - 1, "it was stopped before its end"
    assert [row[0] for row in found] == list(numbers)


def test_what_a_failed_job_has_left_is_where_another_one_goes_on(standing: Processes, tmp_path: Path) -> None:
    """Without a savepoint, by the path that REST shows: the batch that failed is repeated with its number and rows."""
    source, written, repaired = tmp_path / "in", tmp_path / "written", tmp_path / "repaired"
    source.mkdir()

    for number in range(4):
        (source / f"{number}.json").write_text(json.dumps({"n": number}) + "\n")
        changed_s = 1_700_000_000 + number  # the order in which Spark reads them
        os.utime(source / f"{number}.json", (changed_s, changed_s))

    job = fl.Job("failing", parallelism=1, config={"restart-strategy.type": "none"})
    options = {"maxFilesPerTrigger": 1}
    events = job.source("events", format="json", path=source, schema="n LONG", options=options, stream=True)

    @job.foreach_batch("write", events, uid="write-v1", trigger={"availableNow": True})
    def write(batch: DataFrame, batch_id: int) -> None:
        numbers = [row.n for row in batch.collect()]
        sys.stdout.write(f"writing {numbers}\n")
        if 2 in numbers and not repaired.exists():
            raise ValueError("2 cannot be written")
        with written.open("a") as file:
            file.writelines(f"{batch_id} {number}\n" for number in numbers)

    with fl.connect(standing.url) as client:
        failed = client.submit(job)
        with pytest.raises(fl.JobFailed, match="2 cannot be written"):
            failed.wait(240)
        found = rest_requests.get(f"{standing.url}/jobs/{failed.id}/checkpoints").json()
        kept = found["latest"]["completed"]["external_path"]
        before = written.read_text().splitlines()
        repaired.touch()
        client.submit(job, config={"execution.state-recovery.path": kept}).wait(240)
        logs = "".join(part.text for part in failed.logs())

    assert [line for line in logs.splitlines() if line.startswith("writing")] == [f"writing [{n}]" for n in range(3)]
    assert kept == str(standing.state_dir / "checkpoints" / failed.id / "write-v1")
    assert before == ["0 0", "1 1"]
    assert written.read_text().splitlines()[2:] == ["2 2", "3 3"]
