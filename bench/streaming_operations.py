"""What the operations of streaming jobs cost: savepoints beside batches, a stop and a restore, a change of leader."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from tests.chaos.deployment import embedded_deployment
from tests.cluster.processes import until

import flintlock as fl
from bench.figures import Bound, Figure, percentile, ratios, spread
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
JOBS: Final = 20
EVERY_S: Final = 10  # the trigger of each of them
WINDOW_S: Final = 60.0


def batches_beside_savepoints() -> Iterator[Figure]:
    """Batches of a stateful query while a savepoint is made, and without one, in turn."""
    with cluster() as running, fl.connect(running.url) as client:
        handle = client.submit(_job())
        commits = running.state_dir / "checkpoints" / handle.id / UID / "commits"
        until("the state of all keys", lambda: _latest(commits) >= KEYS // int(SOURCE["rowsPerBatch"]) + 5, 600)
        seen: dict[int, tuple[int, int]] = {}  # begin and duration of each batch, in milliseconds
        beside: list[float] = []
        alone: list[float] = []
        for _ in range(ROUNDS):
            first = _latest(commits)
            until("batches", lambda first=first: _latest(commits) >= first + BATCHES, 300)
            begun_ms = time.time() * 1000
            handle.savepoint()
            ended_ms = time.time() * 1000
            last = _latest(commits)
            until("the batch beside the savepoint", lambda last=last: _latest(commits) > last, 300)
            until("its figures", lambda last=last: _figures(client, handle.id, seen) > last, 60)
            touched = {id_ for id_, (at, took) in seen.items() if at < ended_ms and at + took > begun_ms}
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


def twenty_streams() -> Iterator[Figure]:
    """Twenty streaming jobs on one engine; the leader is killed, and their batches go on as before."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as leaving:
        deployment = embedded_deployment(Path(scratch, "cluster"), 2, taskmanagers=1, slots=JOBS)
        leaving.callback(deployment.close)
        for member in deployment.members:
            leaving.callback(member.end)
            member.start()
        until("a leader", deployment.leader, 60)
        until("all slots", lambda: deployment.serves(JOBS), 300)
        with fl.connect(deployment.urls, state_dir=deployment.home) as client:
            handles = [client.submit(_small_job(number)) for number in range(JOBS)]
            logs = [deployment.home / "checkpoints" / handle.id / UID for handle in handles]
            until("batches of all jobs", lambda: all(_latest(log / "commits") >= 2 for log in logs), 600)
            threading.Event().wait(WINDOW_S)
            leader, epoch = until("a leader", deployment.leader, 60)
            killed_ms = time.time() * 1000
            leader.kill()
            until("the next leader", lambda: deployment.listing(epoch, besides=leader) is not None, 60)
            threading.Event().wait(WINDOW_S)
            planned = [_planned(log) for log in logs]
            attempts = [len(region.attempts) for handle in handles for region in handle.attempts().regions]
            for handle in handles:
                handle.cancel()
    wrong = sum(count > 1 for count in attempts)
    before: list[float] = []
    after: list[float] = []
    for batches in planned:
        wrong += len(set(range(min(batches), max(batches) + 1)) - batches.keys())
        for at_ms in batches.values():
            (before if at_ms < killed_ms else after).append(at_ms % (EVERY_S * 1000))
    usual = percentile(before, 0.99)
    yield Figure(
        name="streams-leader-killed", what=f"{JOBS} streaming jobs, leader killed: batches missing or repeated",
        value=wrong, unit="batches", bound=Bound(limit=0), samples=len(after),
        against="absolute; every batch in the offset logs of all jobs, and every attempt",
    )  # fmt: skip
    yield Figure(
        name="streams-late", what=f"{JOBS} streaming jobs, leader killed: batches later than 99 % of those before",
        value=sum(late > usual for late in after) / len(after) * 100, unit="%", bound=Bound(limit=5),
        samples=len(after),
        against=f"{len(before)} batches before, at most {max(before):,.0f} ms after their trigger; after, at most "
        f"{max(after):,.0f} ms",
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


def _small_job(number: int) -> fl.Job:
    job = fl.Job(f"stream-{number}", parallelism=1)
    events = job.source("events", format="rate", options={"rowsPerSecond": 1, "numPartitions": 1}, stream=True)
    job.sink("out", events, format="noop", uid=UID, trigger={"processingTime": f"{EVERY_S} seconds"})
    return job


def _latest(log: Path) -> int:
    return max((int(path.name) for path in log.glob("[0-9]*")), default=-1)


def _await_batches(commits: Path, count: int, after: int | None = None) -> None:
    first = _latest(commits) if after is None else after
    until(f"{count} batches", lambda: _latest(commits) >= first + count, 300, pause_s=0.01)


def _planned(checkpoint: Path) -> dict[int, int]:
    """Return when each batch was triggered, in milliseconds, as the offset log says."""
    entries = {int(path.name): path.read_text().splitlines()[1] for path in (checkpoint / "offsets").glob("[0-9]*")}
    return {batch: int(json.loads(entry)["batchTimestampMs"]) for batch, entry in entries.items()}


def _figures(client: fl.Client, job_id: str, seen: dict[int, tuple[int, int]]) -> int:
    """Add what is known of batches; return the latest."""
    shown = client.http.get(f"/jobs/{job_id}/checkpoints", CheckpointsResponse)
    for one in shown.history:
        seen[one.id] = (one.trigger_timestamp, one.end_to_end_duration)
    return max(seen, default=-1)
