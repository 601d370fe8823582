"""Structs of the routes about checkpoints. Flink's fields; Spark's figures of a batch stand beside them."""

from __future__ import annotations

from msgspec import field

from flintlock.api.base import ApiStruct


class CheckpointCounts(ApiStruct, frozen=True, kw_only=True):
    """How many checkpoints there were."""

    restored: int
    total: int
    in_progress: int
    completed: int
    failed: int


class CheckpointStatistic(ApiStruct, frozen=True, kw_only=True):
    """A figure of the checkpoints in the history."""

    min: int = 0
    max: int = 0
    avg: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    p999: float = 0.0


class CheckpointSummary(ApiStruct, frozen=True, kw_only=True):
    """The figures of the checkpoints in the history."""

    checkpointed_size: CheckpointStatistic
    state_size: CheckpointStatistic
    end_to_end_duration: CheckpointStatistic
    alignment_buffered: CheckpointStatistic
    processed_data: CheckpointStatistic
    persisted_data: CheckpointStatistic


class Checkpoint(ApiStruct, frozen=True, kw_only=True):
    """What all checkpoints have: they are batches of queries."""

    id: int
    is_savepoint: bool = False
    savepoint_format: str | None = field(default=None, name="savepointFormat")
    trigger_timestamp: int
    latest_ack_timestamp: int
    checkpointed_size: int
    state_size: int
    end_to_end_duration: int
    alignment_buffered: int = 0
    processed_data: int = 0
    persisted_data: int = 0
    num_subtasks: int = 1
    num_acknowledged_subtasks: int = 1
    checkpoint_type: str = "CHECKPOINT"
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    uid: str = ""  # of the query
    batch: int = 0


class CompletedCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """A committed batch of one query; as the latest savepoint, the savepoint, whose size is not known here."""

    class_name: str = field(default="completed", name="className")
    status: str = "COMPLETED"
    external_path: str
    discarded: bool = False
    input_rows: int = field(default=0, name="input-rows")
    state_rows: int = field(default=0, name="state-rows")
    offsets: tuple[str, ...] = ()  # where each source ends
    watermark: str = ""


class FailedCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """The batch that an attempt at a query had begun, or was to begin, when it failed; the next attempt repeats it.

    When it began is not known: all times are that of the failure.
    """

    class_name: str = field(default="failed", name="className")
    status: str = "FAILED"
    failure_timestamp: int
    failure_message: str


class RestoredCheckpoint(ApiStruct, frozen=True, kw_only=True):
    """The checkpoint that the latest attempt of a query continued from."""

    id: int
    restore_timestamp: int
    is_savepoint: bool = False
    external_path: str


class LatestCheckpoints(ApiStruct, frozen=True, kw_only=True):
    """The latest checkpoint of each kind."""

    completed: CompletedCheckpoint | None = None
    savepoint: CompletedCheckpoint | None = None
    failed: FailedCheckpoint | None = None
    restored: RestoredCheckpoint | None = None


class CheckpointsResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobs/:jobid/checkpoints."""

    counts: CheckpointCounts
    summary: CheckpointSummary
    latest: LatestCheckpoints
    history: list[CompletedCheckpoint]
