"""Clicks of each user, kept up to date in SQLite: a function that is called with every micro-batch.

    python examples/streaming_clicks.py in/clicks
    CLICKS_DB=$PWD/clicks.db flintlock run examples/streaming_upsert.py:job

The query's output mode is `update`: a batch has the new totals of the users who clicked. A batch that was interrupted
is repeated with the same id, and ids only grow. So the id of the latest batch is read and stored in the transaction
that writes the totals, and a batch that is there already is ignored: each click counts exactly once, also if the first
try of a batch has not committed yet when it is repeated. The function runs where Spark runs; a database that all
TaskManagers reach would be used in the same way.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from pyspark.sql import DataFrame

import flintlock as fl

#: Evaluated where the job is submitted, and sent with the function.
DATABASE = os.environ.get("CLICKS_DB", str(Path("clicks.db").absolute()))

job = fl.Job(
    "upsert",
    parallelism=1,
    params={"clicks": "in/clicks"},
    config={"spark.sql.shuffle.partitions": 2},  # each has a state store of its own: few keys need few
)

clicks = job.source(
    "clicks",
    format="json",
    path="${clicks}",
    schema="ts TIMESTAMP, user STRING, page STRING",
    options={"maxFilesPerTrigger": 10},
    stream=True,
)
totals = job.sql("totals", "SELECT user, count(*) AS clicks FROM clicks GROUP BY user", inputs=[clicks])


@job.foreach_batch("upsert", totals, uid="upsert-v1", output_mode="update", trigger={"availableNow": True})
def upsert(batch: DataFrame, batch_id: int) -> None:
    rows = [(row.user, row.clicks) for row in batch.collect()]
    with closing(sqlite3.connect(DATABASE, timeout=30)) as database, database:
        database.execute("BEGIN IMMEDIATE")  # no other process writes until the end of this transaction
        database.execute("CREATE TABLE IF NOT EXISTS totals (user TEXT PRIMARY KEY, clicks INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS latest (one INTEGER PRIMARY KEY, batch INTEGER)")
        (latest,) = database.execute("SELECT coalesce(max(batch), -1) FROM latest").fetchone()
        if batch_id <= latest:
            return
        database.executemany("INSERT OR REPLACE INTO totals VALUES (?, ?)", rows)
        database.execute("INSERT OR REPLACE INTO latest VALUES (1, ?)", (batch_id,))


if __name__ == "__main__":
    fl.run(job)
