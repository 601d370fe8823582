"""One REST call as a handler receives it, and the HTTP response that it returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.types import Send

from flintlock.api import jobs as shapes
from flintlock.config.configuration import Configuration
from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.gateways.leader import JobManagerInfo
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.host.logs.process_logs import ProcessLogs
from flintlock.model.access.principals import Principal
from flintlock.model.errors import Invalid, NotFound
from flintlock.model.ids import JobId, is_job_id
from flintlock.model.jobgraph import Versions
from flintlock.model.quantities import duration_s
from flintlock.rest.events.documents import FollowedDocument
from flintlock.rest.events.shared import SharedValues
from flintlock.rest.jobs.submission import BlobUploads
from flintlock.security.sessions import LoginCodes, Sessions
from flintlock.security.spark_ui_links import SparkUiLinks

JSON: Final = "application/json; charset=UTF-8"
ARROW: Final = "application/vnd.apache.arrow.stream"
PRINCIPAL: Final = "flintlock.principal"
"""The key of a request's scope under which access control puts who sends it."""
AUTHENTICATE: Final = "flintlock.authenticate"
"""The key of a request's scope under which access control puts what verifies its credential and role once more."""
ROUTE: Final = "flintlock.route"
"""The key of a request's scope under which access control puts the row that serves it; None: there is none."""
BYTES: Final = "application/octet-stream"
DASHBOARD: Final = Path(__file__).parents[1] / "dashboard" / "built"
"""Where `make dashboard` builds the dashboard; a wheel has it there."""
OWN_PAGES: Final = (b"cross-origin-resource-policy", b"same-origin")
"""A header: pages of other origins cannot include the response as a script, a style or an image."""
ANY_PAGE: Final = (b"cross-origin-resource-policy", b"cross-origin")
"""The header of responses that pages without an origin include."""
_LARGEST: Final = (1 << 63) - 1
_encoder: Final = msgspec.json.Encoder()


@dataclass(frozen=True, kw_only=True)
class RestServices:
    """What handlers use."""

    dispatcher: DispatcherGateway
    resource_manager: ResourceManagerGateway
    blobs: BlobUploads
    configuration: Configuration
    versions: Versions
    clock_ms: Callable[[], int]
    new_job_id: Callable[[], JobId]
    revision: str = "unknown"
    application: JobId | None = None  # the program of an application cluster
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)  # of this process
    logs: ProcessLogs = field(default_factory=ProcessLogs)
    forget_credentials: Callable[[], None] = lambda: None  # one of them was revoked
    login_codes: LoginCodes = field(default_factory=LoginCodes)
    dashboard: Path = DASHBOARD
    sessions: Sessions | None = None  # of browsers; None: the cluster has no authentication
    job_managers: Callable[[], tuple[JobManagerInfo, ...]] = tuple  # those of the cluster, while this one leads
    spark_ui_links: SparkUiLinks | None = None  # None: the process has no secret to make them with


@dataclass(frozen=True, kw_only=True)
class HttpResponse:
    """What a handler returns."""

    body: bytes = b""
    pieces: AsyncIterator[bytes] | None = None  # instead of a body that is too large for memory, or endless
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    any_page: bool = False  # whether pages of any origin may include it


@dataclass(frozen=True, kw_only=True)
class RestCall:
    """What a handler receives."""

    request: Request
    services: RestServices
    max_wait_s: float = 0.0  # of the route
    shared: SharedValues = field(default_factory=SharedValues)  # of all streams of this process
    document: Callable[[str], FollowedDocument | None] = lambda _: None  # returns one that a stream can follow, by path

    @property
    def principal(self) -> Principal:
        """Who sends the request. There is always one: access control comes before every route."""
        return self.request.scope[PRINCIPAL]

    async def authenticate_again(self) -> None:
        """Verify the credential of a request that takes long. Raises Unauthenticated, Forbidden, Unavailable."""
        await self.request.scope[AUTHENTICATE]()

    def has_expired(self) -> bool:
        """Return whether the credential of the request has expired."""
        return self.principal.expires_ms is not None and self.services.clock_ms() >= self.principal.expires_ms

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

    def integer(self, name: str, minimum: int = 0) -> int | None:
        """Return a query parameter as an integer, None if the request has none. Raises Invalid."""
        text = self.request.query_params.get(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise Invalid(f"query parameter {name!r}: {text!r} is not an integer") from None
        if not minimum <= value <= _LARGEST:
            raise Invalid(f"query parameter {name!r}: {value} is not from {minimum} to {_LARGEST}")
        return value

    def flag(self, name: str) -> bool:
        """Return a query parameter that is `true` or `false`; False if the request has none. Raises Invalid."""
        text = self.request.query_params.get(name, "false").lower()
        if text not in ("true", "false"):
            raise Invalid(f"query parameter {name!r}: {text!r} is neither 'true' nor 'false'")
        return text == "true"

    def names(self, name: str) -> tuple[str, ...]:
        """Return the comma-separated values of a query parameter; none if the request has none."""
        return tuple(part for text in self.request.query_params.getlist(name) for part in text.split(",") if part)

    def wait_s(self) -> float:
        """Return how long to delay the response: as the client asks and the route allows. Raises Invalid."""
        return min(self.duration_s("wait"), self.max_wait_s)

    def duration_s(self, name: str) -> float:
        """Return a query parameter as seconds; 0 if the request has none. Raises Invalid."""
        text = self.request.query_params.get(name)
        if text is None:
            return 0.0
        try:
            return duration_s(text)
        except ValueError as error:
            raise Invalid(f"query parameter {name!r}: {error}") from None


Handler: TypeAlias = Callable[[RestCall], Awaitable[HttpResponse]]


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """Encode a value as JSON."""
    return HttpResponse(body=_encoder.encode(value), status=status, headers=headers or {})


async def send_error(send: Send, status: int, text: str, *, retry_s: int | None = None, close: bool = False) -> None:
    """Send an error response outside of a route. `close`: what the client still sends is not read.

    A response 503 always says when to try again: after `retry_s`, or else a second.
    """
    body = json_response(shapes.Errors(errors=[text])).body
    headers = [OWN_PAGES, (b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="flintlock"'))
    if retry_s is not None or status == 503:
        headers.append((b"retry-after", b"%d" % (retry_s or 1)))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def no_such(kind: str, name: str) -> NotFound:
    """Return the error for something that does not exist."""
    return NotFound(f"{kind} {name} was not found")
