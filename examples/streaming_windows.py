"""Clicks of each page by the minute: windows with a watermark, from files that arrive into files.

    python examples/streaming_clicks.py in/clicks
    flintlock run examples/streaming_windows.py:job

A window is written once, when no click of it can come any more: the watermark is two minutes behind the latest click.
The file sink has each row exactly once, whatever is restarted. `availableNow` processes what is there and ends; without
that trigger the job runs on and reads what arrives, until it is cancelled.
"""

import flintlock as fl

job = fl.Job(
    "windows",
    parallelism=1,
    params={"clicks": "in/clicks", "out": "out/windows"},
    config={"spark.sql.shuffle.partitions": 2},  # each has a state store of its own: few keys need few
)

clicks = job.source(
    "clicks",
    format="json",
    path="${clicks}",
    schema="ts TIMESTAMP, user STRING, page STRING",
    options={"maxFilesPerTrigger": 10},
    stream=True,
    watermark=("ts", "2 minutes"),
)

counts = job.sql(
    "counts",
    """
    SELECT window.start AS minute, page, count(*) AS clicks
    FROM clicks
    GROUP BY window(ts, '1 minute'), page
    """,
    inputs=[clicks],
)

# The uid is the identity of the query's state: it stays the same when the step is renamed.
job.sink("files", counts, format="parquet", path="${out}", uid="windows-v1", trigger={"availableNow": True})

if __name__ == "__main__":
    fl.run(job)
