"""The log of a file sink, compared with the checkpoint of its query, and completed where Spark needs an entry.

Spark skips each batch that the log has already, without a message, and fails where an entry is missing.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Final

from flintlock.model.jobgraph import JobVertex
from flintlock.model.operations import Guarantee
from flintlock.model.streaming.checkpoints import latest_batch
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.streaming.rescaling import is_repartition

_SINK_LOG: Final = "_spark_metadata"


class SinkLog:
    """The log of the sink of one query; of other sinks than of files, and on other file systems, there is none."""

    def __init__(self, vertex: JobVertex, checkpoint: str) -> None:
        self._vertex: Final = vertex
        self._checkpoint: Final = checkpoint
        target = vertex.operation.target if vertex.guarantee is Guarantee.SINK_LOG else None
        self._target: Final = target or ""
        self._log: Final = f"{self._target.rstrip('/')}/{_SINK_LOG}"

    def check(self, compact_interval: int) -> None:
        """Raise TaskError if a file sink has batches that the checkpoint does not know: their rows would be lost.

        A sink without a log, of a query that was restored, gets one that ends at the checkpoint's batch; one that lacks
        the batch by which a state was repartitioned gets that. On local file systems only: no reader of Spark lists a
        directory whose name begins with `_`.
        """
        if not self._target:
            return
        written = latest_batch(names_in(self._log))
        if written is None:
            self._begin(compact_interval)
            return
        planned = latest_batch(names_in(f"{self._checkpoint}/offsets"))
        if planned is None or written > planned:
            raise TaskError(FailureKind.CONFIGURATION, sink_ahead(self._target, written, planned), self._vertex.name)
        log, checkpoint = local_directory(self._log), local_directory(self._checkpoint)
        if log is None or checkpoint is None or written != planned - 1:
            return
        if is_repartition(checkpoint, planned):
            add_to_sink_log(log, planned, compact_interval)

    def has_gone_on(self, restored: int | None) -> bool:
        """Return whether a batch after the one that the query continued after is committed, or in its sink."""
        logs = (f"{self._checkpoint}/commits", *((self._log,) if self._target else ()))
        latest = (latest_batch(names_in(log)) for log in logs)
        return any(batch is not None and batch > (-1 if restored is None else restored) for batch in latest)

    def forget(self, batch: int) -> bool:
        """Remove the entry of a batch, if the log ends with it; return False if the log is at another batch."""
        if not self._target:
            return True
        log = local_directory(self._log)
        if log is None or latest_batch(names_in(self._log)) not in (batch, batch - 1):
            return False
        remove_from_sink_log(log, batch)
        return True

    def _begin(self, compact_interval: int) -> None:
        committed = latest_batch(names_in(f"{self._checkpoint}/commits"))
        if committed is None:
            return
        try:
            begin_sink_log(self._target, committed, compact_interval)
        except OSError as error:
            message = f"the sink {self._target} cannot be written to: {error.strerror}"
            raise TaskError(FailureKind.CONFIGURATION, message, self._vertex.name) from error


def names_in(directory: str) -> tuple[str, ...]:
    """Return the names of the files in a local directory; none if there is no such directory, or it is not local."""
    path = local_directory(directory)
    try:
        return () if path is None else tuple(os.listdir(path))  # noqa: PTH208 - names are enough
    except OSError:
        return ()


def local_directory(place: str) -> Path | None:
    """Return the path of a local directory; None if it is not local."""
    path = place.removeprefix("file://") if place.startswith("file://") else place.removeprefix("file:")
    return Path(path) if path.startswith("/") else None


def begin_sink_log(target: str, committed: int, compact_interval: int) -> None:
    """Give a new file sink a log that ends, without a file, at a batch: that is what Spark expects before the next one.

    Spark reads the log from its last compact entry on, and fails if one between is missing.
    """
    place = local_directory(target)
    if place is None:
        return
    hidden = place / f".flintlock-sink-log-{uuid.uuid4().hex}"
    hidden.mkdir(parents=True)
    compact = (committed + 1) // compact_interval * compact_interval - 1
    for batch in range(max(compact, 0), committed + 1):
        (hidden / (f"{batch}.compact" if batch == compact else str(batch))).write_text("v1")
    hidden.rename(place / _SINK_LOG)


def sink_ahead(path: str, written: int, planned: int | None) -> str:
    """Return why a query must not start: its sink has batches that it would skip."""
    if planned is None:
        return (
            f"the files in {path} were written by another streaming query, up to its batch {written}, and this one"
            " starts from the beginning: Spark would skip its first batches silently. Choose another path, or"
            " remove the files"
        )
    return (
        f"the sink {path} has batch {written}, but the checkpoint of this query ends at batch {planned}: Spark would"
        " skip the batches in between silently. Choose another path, or restore the query from a later point"
    )


def add_to_sink_log(log: Path, batch: int, compact_interval: int) -> None:
    """Add a batch without files to the log of a file sink that ends with the batch before it. Raises OSError.

    Every so many entries Spark expects one that has all before it. A checksum that Hadoop has of a former entry of that
    name is removed: Spark could not read the new one.
    """
    name, content = str(batch), "v1"
    if (batch + 1) % compact_interval == 0:
        name = f"{batch}.compact"
        content = "\n".join(["v1", *_entries(log, batch - 1, compact_interval)])
    new = log / f".{name}.{uuid.uuid4().hex[:12]}"
    new.write_text(content)
    (log / f".{name}.crc").unlink(missing_ok=True)
    new.rename(log / name)


def remove_from_sink_log(log: Path, batch: int) -> None:
    """Remove the entry of a batch from the log of a file sink, and before it its checksum. Raises OSError."""
    for name in (str(batch), f"{batch}.compact"):
        (log / f".{name}.crc").unlink(missing_ok=True)
        (log / name).unlink(missing_ok=True)


def _entries(log: Path, last: int, compact_interval: int) -> list[str]:
    """Return the files in a sink's log up to an entry: those of the last entry that has all, and of those after it."""
    first = max((last + 1) // compact_interval * compact_interval - 1, 0)
    lines: list[str] = []
    for batch in range(first, last + 1):
        whole = batch == first and (log / f"{batch}.compact").exists()
        lines += (log / (f"{batch}.compact" if whole else str(batch))).read_text().splitlines()[1:]
    return lines
