"""One HTTP call as a handler sees it, and the answer it gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from flintlock.config.configuration import Configuration
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model.errors import Invalid, NotFound
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobgraph import Versions
from flintlock.model.quantities import duration_s
from flintlock.rest.cluster.process import ProcessLogs
from flintlock.rest.jobs.submission import BlobUploads

JSON: Final = "application/json; charset=UTF-8"
ARROW: Final = "application/vnd.apache.arrow.stream"
_LARGEST: Final = (1 << 63) - 1
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class RestServices:
    """What the porch stands before."""

    dispatcher: DispatcherGateway
    resource_manager: ResourceManagerGateway
    blobs: BlobUploads
    configuration: Configuration
    versions: Versions
    clock_ms: Callable[[], int]
    new_job_id: Callable[[], JobId]
    revision: str = "unknown"
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)  # one for the process; its rooms fill it
    logs: ProcessLogs = field(default_factory=ProcessLogs)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back."""

    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None  # in place of a body that is too large to be held
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Call:
    """What came in."""

    request: Request
    services: RestServices

    @property
    def job_id(self) -> JobId:
        """The job in the path. Raises Invalid for what cannot be a job id."""
        text = self.path("jobid").lower()
        if not is_job_id(text):
            raise Invalid(f"{text!r} is not a job id: 32 hex digits")
        return JobId(text)

    def path(self, name: str) -> str:
        """Return a path parameter."""
        return str(self.request.path_params[name])

    def integer(self, name: str, least: int = 0) -> int | None:
        """Return a query parameter as a whole number, None if it is not there. Raises Invalid."""
        text = self.request.query_params.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise Invalid(f"query parameter {name!r}: {text!r} is not a whole number") from None
        if not least <= value <= _LARGEST:
            raise Invalid(f"query parameter {name!r}: {value} is not from {least} to {_LARGEST}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """Return a query parameter as names, which commas part; none if it is not there."""
        return tuple(part for text in self.request.query_params.getlist(name) for part in text.split(",") if part)

    def duration_s(self, name: str) -> float:
        """Return a query parameter as seconds; 0 if it is not there. Raises Invalid."""
        text = self.request.query_params.get(name)
        if text is None:
            return 0.0
        try:
            return duration_s(text)
        except ValueError as error:
            raise Invalid(f"query parameter {name!r}: {error}") from None


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Encode an answer."""
    return Answer(body=_encoder.encode(value), status=status, headers=headers or {})


def no_such(kind: str, name: str) -> NotFound:
    """The error for something that is not there."""
    return NotFound(f"{kind} {name} was not found")
