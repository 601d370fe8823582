"""The bodies of requests. A request with an unknown field is refused: it would otherwise be ignored silently.

The body of POST /jobs is a `JobSpec` (`flintlock.model.checking.jobspec`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from flintlock.api.base import CamelCase
from flintlock.api.jobs import ParallelismBounds, VertexRequirements


class ParallelismBoundsRequest(ParallelismBounds, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many slots a step may have."""


class VertexRequirementsRequest(VertexRequirements, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one step may use: a value of PUT /jobs/:jobid/resource-requirements."""

    parallelism: ParallelismBoundsRequest


class ClientHeartbeatRequest(CamelCase, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PATCH /jobs/:jobid/clientHeartbeat: the client is alive until then, in milliseconds since 1970."""

    expired_timestamp: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
