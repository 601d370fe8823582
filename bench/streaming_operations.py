"""What the operations of streaming jobs cost: savepoints beside batches, a stop and a restore."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.cluster.processes import until

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.servers import bare_connect, cluster
from flintlock.api.checkpoints import CheckpointsResponse

SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
SOURCE: Final = {"rowsPerBatch": "20000", "numPartitions": "2", "advanceMillisPerBatch": "1000"}
KEYS: Final = 200_000
QUERY: Final = """
    SELECT value % 200000 AS k, count(*) AS n, max(repeat(cast(value AS STRING), 30)) AS t
    FROM events GROUP BY value % 200000
"""
UID: Final = "counts-v1"
ROUNDS: Final = 7
BATCHES: Final = 4  # without a savepoint, in each round


def batches_beside_savepoints() -> Iterator[Figure]:
    """Batches of a stateful query while a savepoint is made, and without one, in turn."""
    with cluster() as running, fl.connect(running.url) as client:
        handle = client.submit(_job())
        commits = running.state_dir / "checkpoints" / handle.id / UID / "commits"
        until("the state of all keys", lambda: _latest(commits) >= KEYS // int(SOURCE["rowsPerBatch"]) + 5, 600)
        seen: dict[int, tuple[int, int]] = {}  # begin and duration of each batch, in milliseconds
        beside: list[float] = []
        alone: list[float] = []
        while len(beside) < ROUNDS:
            first = _latest(commits)
            until("batches", lambda first=first: _latest(commits) >= first + BATCHES, 300)
            begun_ms = time.time() * 1000
            handle.savepoint()
            ended_ms = time.time() * 1000
            last = _latest(commits)
            until("the batch beside the savepoint", lambda last=last: _latest(commits) > last, 300)
            until("its figures", lambda last=last: _figures(client, handle.id, seen) > last, 60)
            touched = {id_ for id_, (at, took) in seen.items() if at < ended_ms and at + took > begun_ms}
            if not touched:
                continue  # it was made between two batches
            quiet = [
                took for id_, (_, took) in seen.items() if first < id_ and id_ not in touched and id_ < max(touched)
            ]
            beside.append(spread([seen[id_][1] for id_ in touched]).median)
            alone.append(spread(quiet).median)
        handle.cancel()
    quotient = ratios(beside, alone)
    yield Figure(
        name="batch-beside-savepoint", what="duration of a batch while a savepoint is made, of one before",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=1.2),
        against=f"{spread(alone).median:,.0f} ms without, {spread(beside).median:,.0f} ms with one, in turn",
    )  # fmt: skip


def stop_and_restore() -> Iterator[Figure]:
    """From the stop of a query to its first batch after the start: with a savepoint, and plain on a warm engine."""
    mine: list[float] = []
    theirs: list[float] = []
    with (
        bare_connect() as bare,
        cluster() as running,
        tempfile.TemporaryDirectory() as scratch,
        fl.connect(running.url) as client,
    ):
        checkpoints = running.state_dir / "checkpoints"
        handle = client.submit(_job())
        plain = _PlainQuery(bare, Path(scratch, "checkpoint"))
        for number in range(ROUNDS + 1):
            _await_batches(checkpoints / handle.id / UID / "commits", 3)
            begun = time.perf_counter()
            location = handle.stop()
            handle = client.submit(_job(), config={"execution.state-recovery.path": location})
            _await_batches(
                checkpoints / handle.id / UID / "commits", 1, after=_latest(Path(location, "queries", UID, "commits"))
            )
            managed = time.perf_counter() - begun
            _await_batches(plain.commits, 3)
            begun = time.perf_counter()
            plain.restart()
            restarted = time.perf_counter() - begun
            if number:
                mine.append(managed)
                theirs.append(restarted)
        handle.cancel()
        plain.close()
    quotient = ratios(mine, theirs)
    yield Figure(
        name="stop-and-restore", what="stop with a savepoint, restore, first batch: of a plain stop and start",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=2.0),
        against=f"bare Connect {spread(theirs).median:.2f} s, Flintlock {spread(mine).median:.2f} s, in turn",
    )  # fmt: skip


class _PlainQuery:
    """The same query on bare Connect."""

    def __init__(self, url: str, checkpoint: Path) -> None:
        from pyspark.sql import SparkSession

        self.commits = checkpoint / "commits"
        self._checkpoint = checkpoint
        self._spark: Any = SparkSession.builder.remote(url).create()
        for key, value in SETTINGS.items():
            self._spark.conf.set(key, value)
        self._query: Any = self._start()

    def restart(self) -> None:
        """Stop it, start it again, and wait for a batch that was committed since."""
        self._query.stop()
        last = _latest(self.commits)
        self._query = self._start()
        _await_batches(self.commits, 1, after=last)

    def close(self) -> None:
        """Stop it for good."""
        self._query.stop()
        self._spark.stop()

    def _start(self) -> object:
        self._spark.readStream.format("rate-micro-batch").options(**SOURCE).load().createOrReplaceTempView("events")
        writer = self._spark.sql(QUERY).writeStream.format("noop").outputMode("update")
        return writer.option("checkpointLocation", str(self._checkpoint)).start()


def _job() -> fl.Job:
    job = fl.Job("counts", parallelism=1, config=dict(SETTINGS))
    events = job.source("events", format="rate-micro-batch", options=dict(SOURCE), stream=True)
    counts = job.sql("counts", QUERY, inputs=[events])
    job.sink("out", counts, format="noop", uid=UID, output_mode="update")
    return job


def _latest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


def _await_batches(commits: Path, count: int, after: int | None = None) -> None:
    first = _latest(commits) if after is None else after
    until(f"{count} batches", lambda: _latest(commits) >= first + count, 300, pause_s=0.01)


def _figures(client: fl.Client, job_id: str, seen: dict[int, tuple[int, int]]) -> int:
    """Add what is known of batches; return the latest."""
    shown = client.http.get(f"/jobs/{job_id}/checkpoints", CheckpointsResponse)
    for one in shown.history:
        seen[one.id] = (one.trigger_timestamp, one.end_to_end_duration)
    return max(seen, default=-1)
