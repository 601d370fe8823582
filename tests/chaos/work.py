"""The work that must come through: batch jobs that are submitted all the time, and streaming scripts that never stop.

Each batch job appends numbered rows of its own to a directory of its own: a job that ran twice, or was published twice,
or lost a file, shows in the rows. Each streaming script numbers its rows from Spark's rate source and writes them
exactly once: a batch that is missing or was written twice shows, too.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self, cast

import httpx
import msgspec
import pyarrow.parquet
from tests.chaos.deployment import Deployment

ROWS: Final = 200
ENDED: Final = ("FINISHED", "FAILED", "CANCELED")
RETRIED: Final = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "200 ms",
}
STREAM: Final = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

out, stop = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rate = spark.readStream.format("rate").option("rowsPerSecond", 20).option("numPartitions", 1).load()
query = (
    rate.select("value").writeStream.format("parquet")
    .option("checkpointLocation", out + "-checkpoint").trigger(processingTime="1 second").start(out)
)
while not Path(stop).exists():
    query.awaitTermination(0.2)  # raises the failure of the query
query.stop()
"""


class Streams:
    """Streaming scripts, each with its own files."""

    def __init__(self, deployment: Deployment, count: int) -> None:
        self._deployment: Final = deployment
        self._stop: Final = deployment.home / "stop-streams"
        self._out: Final = [deployment.home / "out" / f"stream-{number}" for number in range(count)]
        self.ids: Final[list[str]] = []

    def submit(self) -> None:
        """Submit all of them."""
        for number, out in enumerate(self._out):
            spec = {
                "name": f"stream-{number}",
                "parallelism": 1,
                "artifacts": ["stream.py"],
                "steps": {"stream": {"program": {"file": "stream.py", "args": [str(out), str(self._stop)]}}},
                "config": RETRIED,
            }
            self.ids.append(submit(self._deployment, spec, f"stream-{number}", {"stream.py": STREAM.encode()}))

    def progressed(self, batches: int) -> bool:
        """Whether each of them has written so many batches."""
        return all(len(sink_batches(out)) >= batches for out in self._out)

    def end(self) -> None:
        """Let the scripts end by themselves."""
        self._stop.touch()

    def problems(self) -> list[str]:
        """Say what is wrong with their files."""
        return [problem for out in self._out for problem in stream_problems(out)]


class Submissions:
    """Submits batch jobs until it is stopped; each under a key, repeated until a JobManager acknowledges it."""

    def __init__(self, deployment: Deployment, *, every_s: float, most: int) -> None:
        self._deployment: Final = deployment
        self._every_s: Final = every_s
        self._most: Final = most
        self._stop_requested: Final = threading.Event()
        self._thread: Final = ThreadPoolExecutor(1, "submissions")
        self.acknowledged: Final[dict[str, Path]] = {}  # written by the thread, read when it has ended

    def __enter__(self) -> Self:
        self._done = self._thread.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_requested.set()
        self._thread.shutdown()
        self._done.result()

    def _run(self) -> None:
        for number in range(self._most):
            if self._stop_requested.is_set():
                return
            out = self._deployment.home / "out" / f"batch-{number}"
            self.acknowledged[submit(self._deployment, _batch(number, out), f"batch-{number}", {})] = out
            self._stop_requested.wait(self._every_s)

    def problems(self) -> list[str]:
        """Say what is wrong with the rows of jobs that were acknowledged."""
        found: list[str] = []
        for job_id, out in self.acknowledged.items():
            rows: list[int] = []
            for file in out.glob("part-*"):
                rows += _column(file, "id")
            if sorted(rows) != list(range(ROWS)):
                found.append(f"job {job_id}: {len(rows)} rows in {out.name} are not {ROWS} rows once each")
        return found


def submit(deployment: Deployment, spec: dict[str, Any], key: str, files: dict[str, bytes]) -> str:
    """Submit until it is acknowledged; by its key it is one job, however often it was sent."""
    end_s, pause = time.monotonic() + 180, threading.Event()
    while time.monotonic() < end_s:
        for url in deployment.urls:
            try:
                parts = [("file", (name, data)) for name, data in files.items()]
                request = ("request", (None, msgspec.json.encode(spec)))
                headers = {"idempotency-key": key}
                answer = deployment.client.post(f"{url}/jobs", files=[request, *parts], headers=headers, timeout=10)
            except httpx.TransportError:
                continue
            if answer.status_code == 202:
                return str(answer.json()["jobid"])
            if answer.status_code not in (502, 503):
                raise RuntimeError(f"{key}: {answer.status_code} {answer.text}")
        pause.wait(0.2)
    raise TimeoutError(f"no JobManager acknowledged {key}")


def stream_problems(out: Path) -> list[str]:
    """Say what is wrong with the rows of one stream: a number that is missing, or there twice."""
    batches = sink_batches(out)
    missing = sorted(set(range(len(batches))) - set(batches))
    values: list[int] = []
    for files in batches.values():
        for file in files:
            values += _column(file, "value")
    found = [f"{out.name}: batches {missing[:5]} are missing"] if missing else []
    if sorted(values) != list(range(len(values))):
        found.append(f"{out.name}: {len(values)} rows, {len(set(values))} of them different, up to {max(values)}")
    return found


def _batch(number: int, out: Path) -> dict[str, Any]:
    return {
        "name": f"batch-{number}",
        "parallelism": 1,
        "config": RETRIED,
        "steps": {
            "numbers": {"sql": f"SELECT id FROM range({ROWS})", "exchange": "blocking"},
            "out": {"sink": {"format": "parquet", "path": str(out), "mode": "append"}, "inputs": ["numbers"]},
        },
    }


def sink_batches(out: Path) -> dict[int, list[Path]]:
    """Return the files that the sink's own log names, by batch; a compacted log holds those before it as well.

    Spark removes the logs before a compacted one after ten minutes: their batches are there, and their files counted
    with it.
    """
    logs = {
        int(file.name.partition(".")[0]): file
        for file in (out / "_spark_metadata").glob("[0-9]*")
        if file.name.partition(".")[2] in ("", "compact")
    }
    found: dict[int, list[Path]] = {}
    seen: set[str] = set()
    for batch in sorted(logs):
        entries = [msgspec.json.decode(line)["path"] for line in logs[batch].read_bytes().splitlines()[1:]]
        found[batch] = [out / Path(path).name for path in entries if path not in seen]
        seen.update(entries)
        if logs[batch].name.endswith(".compact"):
            found |= {earlier: [] for earlier in range(batch) if earlier not in found}
    return found


def _column(file: Path, name: str) -> list[int]:
    return cast("Any", pyarrow.parquet).read_table(file, columns=[name]).column(name).to_pylist()
