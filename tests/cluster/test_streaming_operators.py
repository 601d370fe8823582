"""Stateful operators on real Spark, each over a savepoint: half of the rows before it, and half after it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet
from pyspark.sql import DataFrame
from tests.chaos.work import sink_batches
from tests.cluster.runner_harness import RunnerHarness, pickle_step, step
from tests.cluster.test_streaming import ALL, JOB

from flintlock.model.jobgraph import JobType, JobVertex
from flintlock.model.operations import ForeachBatch, Result, Sink, Source, Sql
from flintlock.model.streaming.streams import OutputMode, StreamQuery, Watermark
from flintlock.model.tasks import DeployTask
from flintlock.savepoints.restoring import Restore, restore_job
from flintlock.savepoints.writing import write_savepoint

NUMBERS = b"""
from pathlib import Path
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "n LONG"

    def reader(self, schema):
        return Known(self.options)

    def streamReader(self, schema):
        return Arriving(self.options)

class Known(DataSourceReader):
    def __init__(self, options):
        self.known = options["known"]

    def read(self, partition):
        return ((n,) for n in range(int(Path(self.known).read_text())))

class Arriving(DataSourceStreamReader):
    def __init__(self, options):
        self.known = options["known"]

    def initialOffset(self):
        return {"n": 0}

    def latestOffset(self):
        return {"n": int(Path(self.known).read_text())}

    def partitions(self, start, end):
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        return ((n,) for n in range(*partition.value))
"""
STATE = {"spark.sql.shuffle.partitions": "2"}


class Saved:
    """A query into files that is saved, and goes on in a checkpoint of another place."""

    def __init__(self, b: RunnerHarness, home: Path, *steps: JobVertex, into: JobVertex, **more: Any) -> None:
        self._b = b
        self._home = home
        self._steps = (*steps, into)
        self._more = more
        self._checkpoints = home / "checkpoints" / JOB

    def run(self) -> None:
        """Process what is there."""
        self._b.run(self._task()).finished  # noqa: B018 - raises if it has failed

    def restore(self) -> None:
        """Save it, and continue from the savepoint; the checkpoint that it was made of is gone."""
        graph = self._task().graph
        savepoint = write_savepoint(
            graph,
            checkpoints=self._checkpoints,
            parent=self._home,
            name="savepoint-1",
            spark="4.3.0",
            now_ms=0,
            unique="1",
        )
        (self._home / "checkpoints").rename(self._home / "gone")
        self._checkpoints = self._home / "restored" / JOB
        new_id = "22222222-2222-2222-2222-222222222222"
        restore_job(graph, Restore(path=savepoint), checkpoints=self._checkpoints, new_id=new_id)

    def _task(self) -> DeployTask:
        where = str(self._checkpoints)
        return self._b.task(*self._steps, job_type=JobType.STREAMING, checkpoint_dir=where, config=STATE, **self._more)


def _files(home: Path, name: str, schema: str, *, time: str = "ts") -> JobVertex:
    (home / name).mkdir()
    source = Source(format="json", paths=(str(home / name),), schema=schema, stream=True)
    return step(name, source, watermark=Watermark(column=time, delay="0 seconds"))


def _arrive(directory: Path, file: int, rows: Iterable[dict[str, Any]]) -> None:
    hidden = directory / f".{file}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(hidden.with_name(f"{file}.json"))


def _written(sink: Path) -> list[tuple[Any, ...]]:
    tables: list[Any] = [pyarrow.parquet.read_table(file) for files in sink_batches(sink).values() for file in files]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def _at(minute: int) -> str:
    return f"2026-01-01T00:{minute:02}:00Z"


def test_a_join_of_two_streams_finds_rows_that_came_before_the_savepoint(b: RunnerHarness, tmp_path: Path) -> None:
    """Each side has its own stores: of keys, and of rows. A row without a partner is written when none can come."""
    orders, paid = (
        _files(tmp_path, "orders", "ts TIMESTAMP, n LONG"),
        _files(tmp_path, "paid", "at TIMESTAMP, m LONG", time="at"),
    )
    within = "at BETWEEN ts AND ts + INTERVAL 10 MINUTES"
    joined = Sql(query=f"SELECT n, m FROM orders LEFT JOIN paid ON n = m AND {within}")
    out = Sink(format="parquet", path=str(tmp_path / "out"))
    query = StreamQuery(uid="joined-v1", trigger=ALL)
    steps = (orders, paid, step("joined", joined, "orders", "paid"))
    saved = Saved(b, tmp_path, *steps, into=step("out", out, "joined", query=query))

    _arrive(tmp_path / "orders", 0, [{"ts": _at(n), "n": n} for n in range(6)])
    _arrive(tmp_path / "paid", 0, [{"at": _at(n + 1), "m": n} for n in (0, 1)])
    saved.run()
    before = _written(tmp_path / "out")
    saved.restore()
    _arrive(tmp_path / "paid", 1, [{"at": _at(n + 1), "m": n} for n in (3, 4)])
    saved.run()
    _arrive(tmp_path / "orders", 1, [{"ts": _at(50), "n": 99}])
    _arrive(tmp_path / "paid", 2, [{"at": _at(50), "m": 77}])
    saved.run()

    assert before == [(0, 0), (1, 1)]
    rows = _written(tmp_path / "out")
    assert [row for row in rows if row[1] is not None] == [(0, 0), (1, 1), (3, 3), (4, 4)]
    assert [row for row in rows if row[1] is None] == [(2, None), (5, None)]


def test_the_state_of_a_function_on_groups_goes_on_from_the_savepoint(b: RunnerHarness, tmp_path: Path) -> None:
    """`applyInPandasWithState`: a count for each key that outlives its query."""
    events = _files(tmp_path, "events", "ts TIMESTAMP, n LONG")

    def counted(events: DataFrame) -> DataFrame:
        import pandas as pd
        from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

        def count(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[Any]:
            before = int(cast("Any", state).get[0]) if state.exists else 0
            state.update((before + sum(len(part) for part in parts),))
            yield pd.DataFrame({"n": [key[0]], "c": [state.get[0]]})

        return events.groupBy("n").applyInPandasWithState(
            count, "n LONG, c LONG", "c LONG", "append", GroupStateTimeout.NoTimeout
        )

    out = Sink(format="parquet", path=str(tmp_path / "out"))
    query = StreamQuery(uid="counted-v1", output_mode=OutputMode.APPEND, trigger=ALL)
    counts = pickle_step("counted", "events")
    artifacts = (b.pickled("counted", counted),)
    saved = Saved(b, tmp_path, events, counts, into=step("out", out, "counted", query=query), artifacts=artifacts)

    _arrive(tmp_path / "events", 0, [{"ts": _at(1), "n": n} for n in (1, 1, 2)])
    saved.run()
    saved.restore()
    _arrive(tmp_path / "events", 1, [{"ts": _at(2), "n": n} for n in (1, 2, 3)])
    saved.run()

    assert _written(tmp_path / "out") == [(1, 2), (1, 3), (2, 1), (2, 2), (3, 1)]


def test_a_data_source_in_python_continues_from_the_savepoint(b: RunnerHarness, tmp_path: Path) -> None:
    """Its class comes with the job's files, and is known to the session of the task, whichever runs it."""
    known = tmp_path / "known"
    source = Source(format="numbers_source:Numbers", options={"known": str(known)}, stream=True)
    counted = Sql(query="SELECT n % 2 AS k, count(*) AS c FROM events GROUP BY n % 2")
    query = StreamQuery(uid="counts-v1", output_mode=OutputMode.UPDATE, trigger=ALL)
    out = tmp_path / "out"

    def write(batch: DataFrame, batch_id: int) -> None:
        with open(out, "a") as file:  # noqa: PTH123 - runs in another process
            file.writelines(f"{row.k} {row.c}\n" for row in batch.collect())

    artifacts = (b.artifact("numbers_source.py", NUMBERS), b.pickled("write", write))
    into = step("write", ForeachBatch(pickle="write.pkl"), "counted", query=query)
    saved = Saved(
        b, tmp_path, step("events", source), step("counted", counted, "events"), into=into, artifacts=artifacts
    )
    known.write_text("5")
    saved.run()
    saved.restore()
    known.write_text("9")
    saved.run()

    assert sorted(out.read_text().splitlines()) == ["0 3", "0 5", "1 2", "1 4"]


def test_a_data_source_in_python_is_read_by_a_batch_job(b: RunnerHarness, tmp_path: Path) -> None:
    (tmp_path / "known").write_text("3")
    source = Source(format="numbers_source:Numbers", options={"known": str(tmp_path / "known")})
    steps = step("events", source), step("all", Result(limit=10), "events")
    ran = b.run(b.task(*steps, artifacts=(b.artifact("numbers_source.py", NUMBERS),)))

    assert msgspec.json.decode(ran.finished.results[0].json)["rows"] == [[0], [1], [2]]
