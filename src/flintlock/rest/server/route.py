"""A row of the route table. Code that needs a fact about a route reads it from the row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry

from flintlock.model.access.principals import Role
from flintlock.model.checking.jobspec import JobSpec
from flintlock.rest.server.http import Handler, RestServices


class ServedBy(StrEnum):
    """Which JobManager answers."""

    LEADER = "leader"  # a standby forwards the request to it
    ANY = "any JobManager"  # the process that received the request, whether or not it leads


class RequestTimer(Protocol):
    """Observes requests of one route."""

    def observe(self, status: int, duration_s: float) -> None:
        """Record that a request was answered with this status after this long."""
        ...


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A query parameter or header."""

    name: str
    description: str
    where: str = "query"
    kind: str = "string"
    minimum: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    required: bool = False


_KEY: Final = Parameter(
    name="Idempotency-Key",
    where="header",
    max_length=255,
    description="Chosen by the client. Requests with the same key and the same graph create one job.",
)


def _wait_parameter(max_wait_s: float) -> Parameter:
    text = f"Respond when the job has ended, or after this long, such as `30s` (at most {max_wait_s:g} s)."
    return Parameter(name="wait", description=text)


@dataclass(frozen=True, kw_only=True)
class Route:
    """One row: everything that is specific to one method of one path."""

    method: str
    path: str
    handler: Handler
    role: Role | None  # that a caller needs, at least; None: every caller is served, without a credential
    answers: Any  # the type of a successful response; str is plain text
    status: int = 200
    query: tuple[Parameter, ...] = ()
    body: tuple[str, ...] = ()  # content types of the request
    takes: Any = JobSpec  # the type of a JSON request body
    errors: tuple[int, ...] = ()
    also: str | None = None  # a content type that it can respond with besides, if the client accepts it
    served_by: ServedBy = ServedBy.LEADER
    cache_s: float = 0.0  # how old a cached response may be; 0: it is not cached
    #: What a cached response was made from: when this is another object, the leader makes a new response at once. It
    #: returns None for a response that is too large to be cached. None: only standbys cache the response.
    cache_version: Callable[[RestServices], Awaitable[object | None]] | None = None
    html: bool = False  # the response is a page for a browser
    asset: bool = False  # the response is a script, a style sheet or an image of such a page
    below: bool = False  # it also serves all paths below its own
    any_page: bool = False  # it serves pages of any origin: its path contains a pass, and it reads no cookie
    streams: bool = False  # the response has no end: server-sent events
    follow_s: float = 0.0  # how often a stream that follows the document looks at it; 0: it cannot be followed
    max_wait_s: float = 0.0  # how long `wait` may delay the response; 0: the route has no such parameter
    idempotency_key: bool = False  # a client that does not know whether its request arrived needs a key to repeat it
    timer: Callable[[CollectorRegistry], RequestTimer] | None = None

    @property
    def of_own_job(self) -> bool:
        """Whether a submitter may use it for the own jobs only."""
        return self.role is Role.SUBMITTER and "{jobid}" in self.path

    @property
    def statuses(self) -> tuple[int, ...]:
        """The status codes of its errors, those of what comes before its handler included."""
        access = () if self.role is None else (401, 403, 429)
        content_type = (408, 415) if self.method == "POST" and self.body else ()
        return tuple(sorted({*self.errors, *access, *content_type}))

    @property
    def summary(self) -> str:
        """What it does, in one line: the first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().splitlines()[0]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that clients may send, without those in the path."""
        wait = (_wait_parameter(self.max_wait_s),) if self.max_wait_s else ()
        return (*self.query, *wait, *((_KEY,) if self.idempotency_key else ()))


def bare_path(path: str) -> str:
    """Return a path without the prefix of its version, and without a slash at its end, which Flink ignores too."""
    if path.startswith("/v1/"):
        path = path[3:]
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


class RouteTable:
    """Finds the rows of a path, by the segments of its template."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root: Final = _Segment()
        for route in routes:
            segment = self._root
            for part in route.path.split("/"):
                segment = segment.literals.setdefault("{}" if part.startswith("{") else part, _Segment())
            segment.methods[route.method] = route
            if route.below:
                segment.below = route

    def find(self, method: str, path: str) -> Route | None:
        """Return the row that serves a request, None if the table has none. HEAD is served by the row of GET.

        For a method that the path does not have, any row of the path: it decides which process responds 405.
        """
        segment: _Segment | None = self._root
        for part in path.split("/"):
            if segment.below is not None:
                return segment.below
            segment = segment.literals.get(part) or (segment.literals.get("{}") if part else None)
            if segment is None:
                return None
        methods = segment.methods
        return methods.get("GET" if method == "HEAD" else method) or next(iter(methods.values()), None)


class _Segment:
    """A node in the tree of path segments; `{}` is the segment of a parameter."""

    __slots__ = ("below", "literals", "methods")

    def __init__(self) -> None:
        self.below: Route | None = None  # serves all paths below this one
        self.literals: dict[str, _Segment] = {}
        self.methods: dict[str, Route] = {}
