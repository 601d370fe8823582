"""Rescaling streaming queries on a real engine: row by row, and with what dies or fails in between."""

from __future__ import annotations

import itertools
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet
from tests.cluster.processes import Processes, until
from tests.cluster.runner_harness import JOB, Ran, RunnerHarness, step

import flintlock as fl
from flintlock.model.ids import TriggerId
from flintlock.model.jobgraph import JobType
from flintlock.model.operations import Result, Sink, Source, Sql
from flintlock.model.streaming.checkpoints import StateRescale, StateRescaled
from flintlock.model.streaming.savepoints import MANIFEST, decode_manifest
from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind, Watermark
from flintlock.model.tasks import DeployTask, TaskProgress
from flintlock.savepoints.writing import write_savepoint
from flintlock.spark.runner.handle import ForkedRunner

ALL = Trigger(kind=TriggerKind.AVAILABLE_NOW)
SCHEMA = "ts TIMESTAMP, n LONG"
UID = "files-v1"


def set_time(file: Path, minute: int) -> None:
    """Make a file older than those of later minutes: Spark reads them in this order, else rows come too late."""
    seconds = 1_700_000_000 + minute
    os.utime(file, (seconds, seconds))


def rows_in(directory: Path) -> int:
    """Return how many rows the complete files of a directory have; a batch without rows writes empty files, too."""
    count = 0
    for file in directory.glob("*.parquet"):
        with suppress(ValueError, OSError):  # it is being written, or was removed
            count += cast("Any", pyarrow.parquet).read_metadata(file).num_rows
    return count


class Counts:
    """Counts by minute and number in a state, written to files when the watermark has passed."""

    def __init__(self, b: RunnerHarness) -> None:
        self.b = b
        self.input = Path(b.path("in"))
        self.output = Path(b.path("out"))
        self.checkpoints = Path(b.path("checkpoints")) / JOB
        self.input.mkdir()
        self._files = 0

    @property
    def checkpoint(self) -> Path:
        return self.checkpoints / UID

    def arrive(self, files: int) -> None:
        """Put files into the directory, each one minute later than the one before, with ten numbers."""
        for _ in range(files):
            minute, self._files = self._files, self._files + 1
            rows = [{"ts": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00Z", "n": n} for n in range(10)]
            hidden = self.input / f".{minute}"
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            set_time(hidden, minute)
            hidden.rename(self.input / f"{minute}.json")

    def task(self, partitions: int | None = None, *, trigger: Trigger = ALL, **more: Any) -> DeployTask:
        options = {"maxFilesPerTrigger": "1"}
        events = Source(format="json", paths=(str(self.input),), schema=SCHEMA, options=options, stream=True)
        counts = (
            "SELECT window(ts, '1 minute').start AS t, n, count(*) AS c FROM events GROUP BY window(ts, '1 minute'), n"
        )
        rescale = None
        if partitions is not None:
            rescale = StateRescale(trigger_id=TriggerId(f"{partitions:032x}"), partitions=partitions)
        config = {"spark.sql.shuffle.partitions": "2", **more.pop("config", {})}
        return self.b.task(
            step("events", events, watermark=Watermark(column="ts", delay="0 seconds")),
            step("counts", Sql(query=counts), "events"),
            step(
                "files",
                Sink(format="parquet", path=str(self.output)),
                "counts",
                query=StreamQuery(uid=UID, trigger=trigger),
            ),
            job_type=JobType.STREAMING,
            checkpoint_dir=str(self.checkpoints),
            rescale=rescale,
            config=config,
            **more,
        )

    def run(self, partitions: int | None = None, **more: Any) -> Ran:
        """Process all that has arrived. Fails if the query does."""
        ran = self.b.run(self.task(partitions, **more))
        assert ran.finished
        return ran

    def rows(self) -> list[tuple[str, int, int]]:
        """Return what is in the output, as any reader of it sees it."""
        ran = self.b.run(
            self.b.task(
                step("out", Source(format="parquet", paths=(str(self.output),))),
                step("sorted", Sql(query="SELECT date_format(t, 'HH:mm'), n, c FROM out ORDER BY t, n"), "out"),
                step("r", Result(limit=10000), "sorted"),
            )
        )
        return [tuple(row) for row in msgspec.json.decode(ran.finished.results[0].json)["rows"]]

    def expected(self, minutes: int) -> list[tuple[str, int, int]]:
        return [(f"{minute // 60:02}:{minute % 60:02}", n, 1) for minute in range(minutes) for n in range(10)]

    def partitions(self) -> set[str]:
        """Return the partitions that the state has."""
        return {path.name for path in (self.checkpoint / "state" / "0").glob("[0-9]*")}

    def hidden(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.glob(".*"))


def rescaled(ran: Ran) -> StateRescaled:
    """Return what the attempt reported of its rescale."""
    reported = [each.query for each in ran.news if isinstance(each, TaskProgress) and each.query is not None]
    return next(query.rescaled for query in reversed(reported) if query.rescaled is not None)


def test_a_state_is_repartitioned_up_and_down_with_every_row_once(b: RunnerHarness) -> None:
    """Over the entries of the sink's log that have all others, and a savepoint of the result is complete."""
    counts = Counts(b)
    counts.arrive(4)
    counts.run()
    assert counts.partitions() == {"0", "1"}

    for partitions in (3, 1, 2, 4):
        counts.arrive(3)
        ran = counts.run(partitions)
        assert rescaled(ran) == StateRescaled(trigger_id=TriggerId(f"{partitions:032x}"), partitions=partitions)
        assert counts.partitions() == {str(number) for number in range(partitions)}
        assert counts.hidden() == []
    savepoint = write_savepoint(
        counts.task().graph,
        checkpoints=counts.checkpoints,
        parent=Path(b.path("savepoints")),
        name="savepoint-1",
        spark="4.3.0",
        now_ms=0,
        unique="1",
    )

    assert counts.rows() == counts.expected(15)  # the last minute waits for the watermark
    (query,) = decode_manifest((savepoint / MANIFEST).read_bytes()).queries
    assert query.partitions == 4


def test_a_batch_that_was_interrupted_is_completed_before_the_state_is_repartitioned(b: RunnerHarness) -> None:
    """A killed runner leaves it in the sink's log, or only planned: it is neither skipped nor written twice."""
    counts = Counts(b)
    counts.arrive(8)

    async def kill(runner: ForkedRunner) -> None:
        await b.until(lambda: len([*(counts.checkpoint / "commits").glob("[0-9]*")]) >= 3)
        os.kill(await runner.started(), signal.SIGKILL)

    b.loop.run(b.ran(counts.task(trigger=Trigger()), kill))
    counts.arrive(2)
    ran = counts.run(3)

    assert rescaled(ran).partitions == 3
    assert counts.rows() == counts.expected(9)


def test_a_runner_that_is_killed_while_it_repartitions_is_followed_by_one_that_does_it(b: RunnerHarness) -> None:
    counts = Counts(b)
    counts.arrive(4)
    counts.run()

    async def kill(runner: ForkedRunner) -> None:
        await b.until(lambda: any(counts.checkpoints.glob(f".{UID}.rescal*")))
        os.kill(await runner.started(), signal.SIGKILL)

    b.loop.run(b.ran(counts.task(3), kill))
    counts.arrive(2)
    ran = counts.run(3)

    assert rescaled(ran).partitions == 3
    assert (counts.partitions(), counts.hidden()) == ({"0", "1", "2"}, [])
    assert counts.rows() == counts.expected(5)


def test_a_state_that_spark_cannot_repartition_stays_as_it_is_and_the_query_goes_on(b: RunnerHarness) -> None:
    """Spark writes into the checkpoint before it fails, and a query never starts there again: hence the copy."""
    provider = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    config = {"spark.sql.streaming.stateStore.providerClass": provider}
    counts = Counts(b)
    counts.arrive(4)
    counts.run(config=config)
    counts.arrive(2)

    outcome = rescaled(counts.run(3, config=config))

    assert (outcome.partitions, bool(outcome.failure)) == (2, True)
    assert counts.partitions() == {"0", "1"}
    assert counts.rows() == counts.expected(5)


def test_a_streaming_job_is_rescaled_while_it_runs_with_every_row_once(standing: Processes, tmp_path: Path) -> None:
    """From the command to the partitions of its state; the job keeps its id and has not failed."""
    source, minutes = tmp_path / "in", 12
    source.mkdir()

    def arrive(minute: int) -> None:
        (source / f".{minute}").write_text(json.dumps({"ts": f"2026-01-01T00:{minute:02}:00Z", "n": minute}) + "\n")
        set_time(source / f".{minute}", minute)
        (source / f".{minute}").rename(source / f"{minute}.json")

    job = fl.Job("counts", parallelism=2)
    options = {"maxFilesPerTrigger": 1}
    events = job.source(
        "events", format="json", path=source, schema=SCHEMA, options=options, stream=True,
        watermark=("ts", "0 seconds"),
    )  # fmt: skip
    query = "SELECT window(ts, '1 minute').start AS t, count(*) AS c FROM events GROUP BY window(ts, '1 minute')"
    counts = job.sql("counts", query, inputs=[events])
    trigger = {"processingTime": "1 second"}
    job.sink("files", counts, format="parquet", path=tmp_path / "out", uid=UID, trigger=trigger)
    rows = fl.Job("rows", parallelism=1)
    out = rows.source("out", format="parquet", path=tmp_path / "out")
    rows.result("all", rows.sql("sorted", "SELECT minute(t) AS m, c FROM out ORDER BY t", inputs=[out]), limit=100)

    with fl.connect(standing.url) as client:
        for minute in range(4):
            arrive(minute)
        running = client.submit(job)
        checkpoint = standing.state_dir / "checkpoints" / running.id / UID
        until("some batches", lambda: len([*(checkpoint / "commits").glob("[0-9]*")]) >= 2 or None)
        required = running.rescale(1, timeout_s=240)
        for minute in range(4, minutes):
            arrive(minute)
        until("its rows", lambda: rows_in(tmp_path / "out") >= minutes - 1 or None)
        assert {path.name for path in (checkpoint / "state" / "0").glob("[0-9]*")} == {"0"}
        (region,) = running.attempts().regions
        running.stop(timeout_s=240)
        found = client.submit(rows).wait(240).result("all").rows()

    assert {step.parallelism.upper for step in required.values()} == {1}
    states = [attempt.state for attempt in region.attempts]
    assert states == ["CANCELED", "RUNNING"], [attempt.failure for attempt in region.attempts]
    assert [tuple(row) for row in found] == [(minute, 1) for minute in range(minutes - 1)]


def test_a_job_takes_the_place_of_another_one_and_a_bad_one_is_followed_by_the_former(
    standing: Processes, tmp_path: Path
) -> None:
    """Every row once, over two upgrades: one that works, and one whose first batch fails."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    numbers = itertools.count()

    def arrive(files: int) -> None:
        for number in itertools.islice(numbers, files):
            (source / f".{number}").write_text(json.dumps({"n": number}) + "\n")
            (source / f".{number}").rename(source / f"{number}.json")

    def job(query: str) -> fl.Job:
        made = fl.Job("numbers", parallelism=1)
        options = {"maxFilesPerTrigger": 1}
        events = made.source("events", format="json", path=source, schema="n LONG", options=options, stream=True)
        mapped = made.sql("mapped", query, inputs=[events])
        trigger = {"processingTime": "1 second"}
        made.sink("files", mapped, format="parquet", path=out, uid=UID, trigger=trigger)
        return made

    rows = fl.Job("rows", parallelism=1)
    found = rows.source("out", format="parquet", path=out)
    rows.result("all", rows.sql("sorted", "SELECT n, v FROM out ORDER BY n", inputs=[found]), limit=100)

    def written(count: int) -> None:
        until("its rows", lambda: len([*out.glob("*.parquet")]) >= count or None)

    with fl.connect(standing.url) as client:
        arrive(3)
        first = client.submit(job("SELECT n, 1 AS v FROM events"))
        written(3)
        second = client.upgrade(first, job("SELECT n, 2 AS v FROM events"), timeout_s=240)
        arrive(3)
        written(6)
        third = client.upgrade(second, job("SELECT n, CAST(raise_error('no') AS INT) AS v FROM events"), timeout_s=240)
        arrive(3)
        until("the failure", lambda: third.status == "FAILED" or None)
        written(9)
        fourth = client.find(third.attempts().successor)
        fourth.stop(timeout_s=240)
        table = client.submit(rows).wait(240).result("all").rows()

        assert (first.attempts().successor, second.attempts().upgrade_of) == (second.id, first.id)
        assert second.attempts().successor == third.id
        assert (fourth.attempts().rerun_of, fourth.attempts().name) == (second.id, "numbers")
    assert [tuple(row) for row in table] == [(n, 1 if n < 3 else 2) for n in range(9)]
