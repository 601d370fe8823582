"""HTTP to a JobManager: keep-alive, retries where repeating is harmless, errors as the model names them.

Several addresses may be given, also as one text with commas; any JobManager answers for the leader. When none of them
answers, `discover` is asked for others: a cluster that changes its leader may change its JobManagers too. A call that
may be repeated is, while nobody listens or no leader is there, up to `patience_s`; but if nobody has listened yet at
the very first call, no cluster is there, and that is said at once.

Where there are several addresses, or `replaceable` says that others will be known if this one leads no more, none is
waited for as long as where there is one: a JobManager that is frozen takes connections and never answers, and another
one can.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

# httpx imports its own command line (rich, pygments, click) when it can: most of its import time, of no use here.
_own_command_line = sys.modules.get("httpx._main")
sys.modules.setdefault("httpx._main", None)  # pyright: ignore[reportArgumentType] None is Python's way to say "no"
import httpx  # noqa: E402

if _own_command_line is None:
    del sys.modules["httpx._main"]

from flintlock.model.errors import (  # noqa: E402
    Conflict,
    DuplicateJob,
    FlintlockError,
    Invalid,
    KeyReused,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
)

T = TypeVar("T")
_NO_LEADER: Final = (502, 503, 504)  # the first and the last come from what stands in between
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_CLOCKS_AGREE_S: Final = 2.0
_UNKNOWN_PATIENCE_S: Final = 5.0  # with addresses at which nobody has ever answered
_SEVERAL_TIMEOUT_S: Final = 10.0
_LONG_POLL_S: Final = 30.0
_SHORT_POLL_S: Final = 10.0
_SILENCE_S: Final = 30.0
_ERRORS: Final[Mapping[int, type[FlintlockError]]] = {
    400: Invalid, 404: NotFound, 408: Unavailable, 409: Conflict, 413: TooLarge, 415: Refused, 503: Unavailable,
}  # fmt: skip
_SUBMISSION_ERRORS: Final[Mapping[int, type[FlintlockError]]] = {**_ERRORS, 409: DuplicateJob, 422: KeyReused}


Discover: TypeAlias = Callable[[], Sequence[str]]
"""Tells where the JobManagers are now."""


class Http:
    """A connection to one cluster, by any of its addresses."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        patience_s: float = 30.0,
        timeout_s: float = 30.0,
        discover: Discover | None = None,
        replaceable: bool = False,
    ) -> None:
        given = [url for text in urls for url in text.split(",")]
        self.urls = tuple(_checked_url(url.strip()) for url in given)  # replaced by what `discover` tells
        self.patience_s: Final = patience_s
        self.discover: Final = discover
        self._replaceable: Final = replaceable
        self._timeout_s: Final = timeout_s
        self._answered = False  # whether anybody has answered yet; never becomes False again
        self._current = 0  # index of the address that answered last
        self._dated: tuple[str, float] | None = None  # what the last answer said of the time, and when it came
        plain = all(url.startswith("http://") for url in self.urls)
        loopback = all(urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") for url in self.urls)
        self._client: Final = httpx.Client(
            verify=not plain,  # loading certificates takes longer than most calls
            trust_env=not loopback,  # no proxy stands between a machine and itself
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
        )

    @property
    def answering(self) -> str:
        """The address that answered last; the first one if none has."""
        return self.urls[self._current]

    @property
    def longest_hold_s(self) -> float:
        """How long a server should be let hold an answer back."""
        return _LONG_POLL_S if self._alone else _SHORT_POLL_S

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def get(
        self,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, Any] | None = None,
        hold_s: float = 0.0,
        patience_s: float | None = None,
    ) -> T:
        """Return the answer, read as `kind`. `hold_s` is how long the server may hold it back on purpose."""
        return _decoded(self.call("GET", path, params=params, hold_s=hold_s, patience_s=patience_s).content, kind)

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Mapping[str, Any]] | None = None,
        hold_s: float = 0.0,
        patience_s: float | None = None,
    ) -> httpx.Response:
        """Call the cluster until it answers. Only for calls that may be repeated: reads, cancels, keyed submissions.

        `body` gives httpx's arguments for the body, anew for each try. Raises Unavailable when patience ends, else the
        error that the answer's status stands for.
        """
        patient = self.patience_s if patience_s is None else patience_s
        begun = time.monotonic()
        pause = _FIRST_PAUSE_S
        while True:
            reason, refused = "", True
            for _ in self.urls:
                try:
                    response = self._client.request(
                        method, self.urls[self._current] + path, params=dict(params or {}), headers=dict(headers or {}),
                        timeout=self._timeout(hold_s), **(body() if body else {}),
                    )  # fmt: skip
                except httpx.TransportError as error:
                    reason = f"{self.urls[self._current]}: {_told(error)}"
                    refused = refused and isinstance(error, httpx.ConnectError)
                else:
                    self._answered = True
                    self._dated = (response.headers.get("date", ""), time.time())
                    if response.status_code not in _NO_LEADER:
                        return _accepted(response, submission=(method, path) == ("POST", "/jobs"))
                    reason, refused = f"{self.urls[self._current]}: {_errors(response)[0]}", False
                self._current = (self._current + 1) % len(self.urls)
            deadline = begun + (patient if self._answered else min(patient, _UNKNOWN_PATIENCE_S))
            moved = self._discovered()
            if (refused and not self._answered and not moved) or time.monotonic() + pause > deadline:
                raise _unavailable(reason, refused)
            time.sleep(pause)  # noqa: TID251 the other side gives no sign when it is back
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def server_ms(self) -> int:
        """Return the time by the cluster's clock, as its last answer told it; by this machine's where they agree.

        Whoever names a moment to the cluster means it by the cluster's clock. Answers tell whole seconds only, and
        take time to come: two seconds of difference are none.
        """
        now_s = time.time()
        if self._dated is None:
            return int(now_s * 1000)
        text, came_s = self._dated
        try:
            ahead_s = parsedate_to_datetime(text).timestamp() - came_s
        except (TypeError, ValueError):
            ahead_s = 0.0
        return int((now_s + (ahead_s if abs(ahead_s) > _CLOCKS_AGREE_S else 0.0)) * 1000)

    def lines(self, path: str) -> Generator[str]:
        """Yield the lines of an answer that does not end; return when the connection breaks, or falls silent.

        A server that lives says something every few seconds, if only that there is nothing to say.
        """
        timeout = httpx.Timeout(_SILENCE_S, connect=self._connect_s())
        try:
            with self._client.stream("GET", self.urls[self._current] + path, timeout=timeout) as response:
                if response.is_success:
                    yield from response.iter_lines()
        except httpx.TransportError:
            return

    def _timeout(self, hold_s: float) -> httpx.Timeout:
        patient_s = self._timeout_s if self._alone else min(self._timeout_s, _SEVERAL_TIMEOUT_S)
        return httpx.Timeout(self._timeout_s, connect=self._connect_s(), read=patient_s + hold_s)

    def _connect_s(self) -> float:
        return min(5.0 if self._alone else 2.0, self._timeout_s)

    @property
    def _alone(self) -> bool:
        """Whether nobody else can answer."""
        return len(self.urls) == 1 and not self._replaceable

    def _discovered(self) -> bool:
        """Ask where the JobManagers are now, and tell whether that is news."""
        found = tuple(_checked_url(url) for url in self.discover()) if self.discover is not None else ()
        if not found or set(found) == set(self.urls):
            return False
        self.urls, self._current = found, 0
        return True


def _accepted(response: httpx.Response, submission: bool) -> httpx.Response:
    if response.is_success:
        return response
    errors = _errors(response)
    kind = (_SUBMISSION_ERRORS if submission else _ERRORS).get(response.status_code)
    text = "\n".join(errors)
    if kind is Invalid:
        raise Invalid(text, problems=errors)
    if kind is not None:
        raise kind(text)
    if response.is_client_error:
        raise Refused(text)
    raise FlintlockError(f"the cluster answered with an error of its own ({response.status_code}): {text}")


def _errors(response: httpx.Response) -> tuple[str, ...]:
    """Return what the answer says went wrong; its body may come from a proxy and be anything."""
    try:
        errors = msgspec.json.decode(response.content, type=dict[str, Any]).get("errors")
    except (msgspec.DecodeError, msgspec.ValidationError):
        errors = None
    told: list[str] = [str(item) for item in errors] if isinstance(errors, list) else []  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return tuple(told) or (f"{response.status_code} {response.reason_phrase}",)


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FlintlockError(f"the answer is not one of a Flintlock cluster: {error}") from error


def _unavailable(reason: str, refused: bool) -> Unavailable:
    error = Unavailable(f"no cluster answers at {reason}" if refused else f"the cluster does not answer: {reason}")
    error.unreachable = refused
    return error


def _told(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__


def _checked_url(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    if not fits:
        raise Refused(f"{url!r} is not the address of a cluster: give one such as http://127.0.0.1:8081")
    return text.rstrip("/")
