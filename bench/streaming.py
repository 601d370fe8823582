"""The throughput of a stateful streaming query, compared with bare Spark: one run of ours, one of theirs, in turn."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flintlock as fl
from bench.figures import Bound, Figure, ratios, spread
from bench.servers import bare_connect, cluster
from flintlock.api.checkpoints import CheckpointsResponse
from flintlock.spark.region.streaming.query_progress import figures_of

FILES = 10  # one for each batch, and as many as the history of checkpoints shows
ROWS = 300_000  # of each file
KEYS = 20_000
PAIRS = 7
WARM_UPS = 2
SCHEMA = "k LONG, v LONG"
QUERY = "SELECT k, count(*) AS n, sum(v) AS total FROM events GROUP BY k"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


def stateful_query() -> Iterator[Figure]:
    """Rows a second from the start of the first batch to the end of the last one: a managed job and a plain script."""
    with bare_connect() as bare, cluster() as running, tempfile.TemporaryDirectory() as scratch:
        _write_files(bare, f"{scratch}/in")
        client = fl.connect(running.url)
        mine: list[float] = []
        theirs: list[float] = []
        for number in range(WARM_UPS + PAIRS):
            for plain in (True, False) if number % 2 else (False, True):
                if plain:
                    rate = _plain_query(bare, f"{scratch}/in", f"{scratch}/checkpoint-{number}")
                else:
                    rate = _managed_query(client, f"{scratch}/in")
                if number >= WARM_UPS:
                    (theirs if plain else mine).append(rate)
    quotient = ratios(mine, theirs)
    yield Figure(
        name="stateful-query", what="throughput of a stateful streaming query as a managed job, of the same script",
        value=quotient.median, low=quotient.low, high=quotient.high, samples=quotient.samples, unit="x",
        bound=Bound(limit=0.97, at_least=True),
        against=f"bare Connect {spread(theirs).median:,.0f} rows a second, Flintlock {spread(mine).median:,.0f}, "
        f"interleaved; {FILES} batches, {KEYS} keys in RocksDB",
    )  # fmt: skip


def _managed_query(client: fl.Client, source: str) -> float:
    job = fl.Job("stateful", parallelism=1, config=dict(SETTINGS))
    options = {"maxFilesPerTrigger": 1}
    events = job.source("events", format="parquet", path=source, schema=SCHEMA, options=options, stream=True)
    counts = job.sql("counts", QUERY, inputs=[events])
    job.sink("out", counts, format="noop", uid="out", output_mode="update", trigger={"availableNow": True})
    handle = client.submit(job).wait()
    shown = client.http.get(f"/jobs/{handle.id}/checkpoints", CheckpointsResponse)
    batches = [one for one in shown.history if one.input_rows > 0]
    began_ms = min(one.trigger_timestamp for one in batches)
    return _rate([one.input_rows for one in batches], began_ms, max(one.latest_ack_timestamp for one in batches))


def _plain_query(url: str, source: str, checkpoint: str) -> float:
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote(url).create()
    try:
        for key, value in SETTINGS.items():
            spark.conf.set(key, value)
        spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source).createOrReplaceTempView(
            "events"
        )
        writer = spark.sql(QUERY).writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", checkpoint).start()
        query.awaitTermination()
        batches = [figures_of(json.loads(one.json)) for one in query.recentProgress]
        counted = [one for one in batches if one is not None and one.input_rows > 0]
        ended_ms = max(one.started_ms + one.duration_ms for one in counted)
        return _rate([one.input_rows for one in counted], min(one.started_ms for one in counted), ended_ms)
    finally:
        spark.stop()


def _rate(rows: list[int], began_ms: int, ended_ms: int) -> float:
    if (len(rows), sum(rows)) != (FILES, FILES * ROWS):
        raise RuntimeError(f"{sum(rows)} rows in {len(rows)} batches were reported, not {FILES * ROWS} in {FILES}")
    return sum(rows) / (ended_ms - began_ms) * 1000


def _write_files(url: str, directory: str) -> None:
    """Write the input: one file for each batch."""
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.remote(url).create()
    try:
        for number in range(FILES):
            rows = spark.range(number * ROWS, (number + 1) * ROWS, 1, 1)
            rows.selectExpr(f"hash(id) % {KEYS} AS k", "id AS v").selectExpr("cast(k AS LONG) AS k", "v").write.mode(
                "append"
            ).parquet(directory)
    finally:
        spark.stop()
    if len([*Path(directory).glob("*.parquet")]) != FILES:
        raise RuntimeError("the input has another number of files")
