"""The bodies of requests. A request with an unknown field is refused: it would otherwise be ignored silently.

The body of POST /jobs is a `JobSpec` (`flintlock.model.checking.jobspec`).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, field

from flintlock.api.base import CamelCase
from flintlock.api.jobs import ParallelismBounds, VertexRequirements
from flintlock.model.jobgraph import Scalar


class ParallelismBoundsRequest(ParallelismBounds, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many slots a step may have."""


class VertexRequirementsRequest(VertexRequirements, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one step may use: a value of PUT /jobs/:jobid/resource-requirements."""

    parallelism: ParallelismBoundsRequest


class RerunRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """POST /jobs/:jobid/rerun: run the job again; `params` have other values than in the earlier job.

    `from-failed`: what had finished before the earlier job failed is not run again.
    """

    params: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    from_failed: bool = field(name="from-failed", default=False)


class SavepointRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /jobs/:jobid/savepoints: make a savepoint while the job runs. Flink's fields."""

    target_directory: str | None = field(name="target-directory", default=None)
    cancel_job: bool = field(name="cancel-job", default=False)
    format_type: Annotated[str, Meta(pattern="^(CANONICAL|NATIVE|DEFAULT)$")] = "NATIVE"
    trigger_id: str | None = None


class CheckRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /jobs/check: a job document, as for POST /jobs, and the names of the files that would be sent with it."""

    document: Any
    files: tuple[str, ...] = ()


class DisposalRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /savepoint-disposal: remove a savepoint. Flink's field, and a trigger id of the client."""

    savepoint_path: str = field(name="savepoint-path")
    trigger_id: str | None = None


class StopRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /jobs/:jobid/stop: end a streaming job with a savepoint. Flink's fields."""

    target_directory: str | None = None
    drain: bool = False
    format_type: Annotated[str, Meta(pattern="^(CANONICAL|NATIVE|DEFAULT)$")] = "NATIVE"
    trigger_id: str | None = None


class ClientHeartbeatRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PATCH /jobs/:jobid/clientHeartbeat: the client is alive until then, in milliseconds since 1970."""

    expired_timestamp: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
