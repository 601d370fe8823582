"""What the checks of `make chaos` say about the files of a streaming query."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from tests.chaos.work import stream_problems


def written(out: Path, logs: dict[str, list[int]]) -> Path:
    """Write a sink with these logs, each with the batches that it names; a batch has one file with one row."""
    metadata = out / "_spark_metadata"
    metadata.mkdir(parents=True)
    for log, batches in logs.items():
        for batch in batches:
            table = cast("Any", pa).table({"value": [batch]})
            pq.write_table(table, out / f"part-{batch}.parquet")
        entries = [msgspec.json.encode({"path": f"file:{out}/part-{batch}.parquet"}) for batch in batches]
        (metadata / log).write_bytes(b"\n".join([b"v1", *entries]))
    return out


def test_a_batch_that_is_missing_is_named(tmp_path: Path) -> None:
    out = written(tmp_path / "stream-0", {"0": [0], "2": [2], "3": [3]})

    assert stream_problems(out) == [
        "stream-0: batches [1] are missing",
        "stream-0: 3 rows, 3 of them different, up to 3",
    ]


def test_logs_that_spark_has_removed_after_their_compaction_are_no_loss(tmp_path: Path) -> None:
    """The rows of the batches that they named are still required."""
    out = written(tmp_path / "stream-0", {"2.compact": [0, 1, 2], "3": [3]})
    lost = written(tmp_path / "stream-1", {"2.compact": [0, 2], "3": [3]})

    assert stream_problems(out) == []
    assert stream_problems(lost) == ["stream-1: 3 rows, 3 of them different, up to 3"]
