"""Streaming queries without Spark: their checkpoints and their sinks are files that outlive every process.

A query plans a batch, writes it to its sink and commits it, with time between any two, so that a crash or a drain can
fall in between. As with Spark's file sink, a batch that is repeated is written once. A query that starts continues
where its checkpoint ends.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

from msgspec import structs

from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobVertex
from flintlock.model.streaming.checkpoints import BatchFigures, QueryProgress


def checkpoint_of(checkpoint_dir: str, uid: str) -> str:
    """Return the directory of a query."""
    return f"{checkpoint_dir}/{uid}"


def sink_of(vertex: JobVertex) -> str:
    """Return where a query writes its batches: jobs that take the place of each other have the same sinks."""
    return f"streams/{vertex.operation.target}"


class FakeQuery:
    """One run of a query in its checkpoint."""

    def __init__(self, content: MutableMapping[str, str], checkpoint: str, sink: str, attempt: str) -> None:
        self._content: Final = content
        self._checkpoint: Final = checkpoint
        self._sink: Final = sink
        self._attempt: Final = attempt

    @property
    def is_complete(self) -> bool:
        """Whether every batch that was planned is committed."""
        return latest(self._content, f"{self._checkpoint}/offsets") == latest(
            self._content, f"{self._checkpoint}/commits"
        )

    def rescale(self, partitions: int, *, fails: bool) -> int:
        """Give the state other partitions, unless that fails; return what it has."""
        if not fails:
            self._content[f"{self._checkpoint}/partitions"] = str(partitions)
        return partitions_of(self._content, self._checkpoint)

    def progress(self, known: QueryProgress | None = None, *, ended: bool = False) -> QueryProgress:
        """Return what an attempt reports: where it began, the last batch that it has committed, and more if it fails.

        `known`: what it has reported first.
        """
        committed = latest(self._content, f"{self._checkpoint}/commits")
        if known is None:
            return QueryProgress(checkpoint=self._checkpoint, restored=committed)
        restored = -1 if known.restored is None else known.restored
        batches = (BatchFigures(batch=committed, started_ms=0, duration_ms=0),) if committed > restored else ()
        gone_on = ended and max(committed, latest(self._content, self._sink)) > restored
        return structs.replace(known, batches=batches, gone_on=gone_on)

    def step(self) -> None:
        """Plan a batch, or write the one that is planned, or commit it."""
        planned = latest(self._content, f"{self._checkpoint}/offsets")
        if self.is_complete:
            self._content[f"{self._checkpoint}/offsets/{planned + 1}"] = self._attempt
        elif f"{self._sink}/{planned}" not in self._content:
            self._content[f"{self._sink}/{planned}"] = self._attempt
        else:
            self._content[f"{self._checkpoint}/commits/{planned}"] = self._attempt
            self._content.setdefault(f"{self._checkpoint}/partitions", "1")


def partitions_of(content: MutableMapping[str, str], checkpoint: str) -> int:
    """Return the partitions of the state of a query; 0 if it has none yet, or none any more."""
    return int(content.get(f"{checkpoint}/partitions", "0"))


def latest(content: MutableMapping[str, str], log: str) -> int:
    """Return the latest batch of a log; -1 if it has none."""
    return max((int(path.rpartition("/")[2]) for path in content if path.startswith(f"{log}/")), default=-1)


def batches(content: MutableMapping[str, str], log: str) -> list[int]:
    """Return all batches of a log, in order."""
    return sorted(int(path.rpartition("/")[2]) for path in content if path.startswith(f"{log}/"))


def written_by(content: MutableMapping[str, str], sink: str, job_id: JobId) -> list[int]:
    """Return the batches of a sink that a job has written, in order."""
    return [batch for batch in batches(content, sink) if content[f"{sink}/{batch}"].startswith(f"{job_id}/")]
