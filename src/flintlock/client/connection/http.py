"""HTTP to a JobManager: keep-alive, retries where repeating is harmless, errors as the model names them.

There may be several addresses, also in one text with commas; every JobManager answers for the leader. When none of them
answers, `discover` returns others: a cluster that changes its leader may change its JobManagers too. A call that may be
repeated is repeated, while no JobManager listens or none leads, for up to `patience_s`; but if connections are refused
at the very first call, there is no cluster, and the call fails immediately.

With several addresses, or if `replaceable` (others will be known when this one no longer leads), the timeout for each
is shorter than for a single one: a frozen JobManager accepts connections and never answers, and another one can.
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from flintlock.client.connection.credentials import Credentials
from flintlock.model.backoff import Backoff
from flintlock.model.errors import (
    Conflict,
    DuplicateJob,
    FlintlockError,
    Forbidden,
    Invalid,
    KeyReused,
    NotFound,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
)


def import_httpx_without_command_line() -> None:
    """Import httpx without `httpx._main`, its command line.

    httpx imports that (and with it rich, pygments and click) if it can, which is most of its import time.
    """
    if "httpx" in sys.modules:
        return
    sys.modules["httpx._main"] = None  # pyright: ignore[reportArgumentType] None: Python's record of a missing module
    try:
        import_module("httpx")
    finally:
        del sys.modules["httpx._main"]


import_httpx_without_command_line()
import httpx  # noqa: E402

T = TypeVar("T")
_NO_LEADER: Final = (429, 502, 503, 504)  # 502 and 504 come from a proxy in between; 429: too many requests
_BACKOFF: Final = Backoff(initial_s=0.05, maximum_s=1.0)
_CLOCKS_AGREE_S: Final = 2.0
_UNKNOWN_PATIENCE_S: Final = 5.0  # for addresses that have never answered
_SEVERAL_TIMEOUT_S: Final = 10.0
_LONG_POLL_S: Final = 30.0
_SHORT_POLL_S: Final = 10.0
_SILENCE_S: Final = 30.0
_ERRORS: Final[Mapping[int, type[FlintlockError]]] = {
    400: Invalid, 401: Unauthenticated, 403: Forbidden, 404: NotFound, 408: Unavailable, 409: Conflict,
    413: TooLarge, 415: Refused, 503: Unavailable,
}  # fmt: skip
_SUBMISSION_ERRORS: Final[Mapping[int, type[FlintlockError]]] = {**_ERRORS, 409: DuplicateJob, 422: KeyReused}


Discover: TypeAlias = Callable[[], Sequence[str]]
"""Returns the addresses of the JobManagers now."""


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
        credentials: Credentials | None = None,
        advice: str = "",
    ) -> None:
        separate = [url for text in urls for url in text.split(",")]
        self.urls = tuple(_checked_url(url.strip()) for url in separate)  # replaced by what `discover` returns
        self.patience_s: Final = patience_s
        self.discover: Final = discover
        self.credentials: Final = credentials
        self._replaceable: Final = replaceable
        self._advice: Final = advice  # for a cluster that has never answered
        self._timeout_s: Final = timeout_s
        self._answered = False  # whether any address has answered; never becomes False again
        self._current = 0  # index of the address that answered last
        self._dated: tuple[str, float] | None = None  # the last response's Date header, and when it arrived
        plain = all(url.startswith("http://") for url in self.urls)
        loopback = all(urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") for url in self.urls)
        self._client: Final = httpx.Client(
            verify=False if plain else _trusted(credentials),  # loading certificates takes longer than most calls
            trust_env=not loopback,  # there is no proxy between a machine and itself
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
        )

    @property
    def answering(self) -> str:
        """The address that answered last; the first one if none has."""
        return self.urls[self._current]

    @property
    def longest_wait_s(self) -> float:
        """How long a server may delay a response on request."""
        return _LONG_POLL_S if self._is_only_address else _SHORT_POLL_S

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    def get(
        self,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
        patience_s: float | None = None,
    ) -> T:
        """Return the response, decoded as `kind`. `wait_s` is how long the server may delay it on request."""
        return _decoded(self.call("GET", path, params=params, wait_s=wait_s, patience_s=patience_s).content, kind)

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Mapping[str, Any]] | None = None,
        wait_s: float = 0.0,
        patience_s: float | None = None,
    ) -> httpx.Response:
        """Send a request until the cluster responds. Only for what may be repeated: reads, cancels, keyed submissions.

        `body` returns httpx's arguments for the body, for each attempt. Raises Unavailable after `patience_s`, else the
        error of the response's status.
        """
        limit_s = self.patience_s if patience_s is None else patience_s
        begun = time.monotonic()
        for pause in _BACKOFF.delays():
            reason, refused = "", True
            for _ in self.urls:
                try:
                    response = self._send(method, path, params=params, headers=headers, body=body, wait_s=wait_s)
                    if response.status_code == 401 and self.credentials and self.credentials.forget(self.answering):
                        response = self._send(method, path, params=params, headers=headers, body=body, wait_s=wait_s)
                except httpx.TransportError as error:
                    reason = f"{self.urls[self._current]}: {_reason(error)}"
                    refused = refused and isinstance(error, httpx.ConnectError)
                else:
                    self._answered = True
                    self._dated = (response.headers.get("date", ""), time.time())
                    if response.status_code not in _NO_LEADER:
                        return _checked(response, submission=(method, path) == ("POST", "/jobs"))
                    reason, refused = f"{self.urls[self._current]}: {_errors(response)[0]}", False
                self._current = (self._current + 1) % len(self.urls)
            deadline = begun + (limit_s if self._answered else min(limit_s, _UNKNOWN_PATIENCE_S))
            changed = self._rediscover()
            late = time.monotonic() + pause > deadline
            if not changed and (late or (refused and not self._answered)):  # asking for addresses may take long
                raise _unavailable(reason, refused, "" if self._answered else self._advice)
            time.sleep(_BACKOFF.initial_s if changed else pause)  # noqa: TID251 nothing tells of the return of a server
        raise AssertionError("the backoff never ends")

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None,
        headers: Mapping[str, str] | None,
        body: Callable[[], Mapping[str, Any]] | None,
        wait_s: float,
    ) -> httpx.Response:
        return self._client.request(
            method,
            self.answering + path,
            params=dict(params or {}),
            headers={**self._authorization(), **(headers or {})},
            timeout=self._timeout(wait_s),
            **(body() if body else {}),
        )

    def server_ms(self) -> int:
        """Return the time by the cluster's clock, as of its last response; by this machine's if they agree.

        Times that are sent to the cluster are times of its clock. A response has full seconds only, and takes time to
        arrive: a difference of two seconds is none.
        """
        now_s = time.time()
        if self._dated is None:
            return int(now_s * 1000)
        text, arrived_s = self._dated
        try:
            ahead_s = parsedate_to_datetime(text).timestamp() - arrived_s
        except (TypeError, ValueError):
            ahead_s = 0.0
        return int((now_s + (ahead_s if abs(ahead_s) > _CLOCKS_AGREE_S else 0.0)) * 1000)

    def lines(self, path: str) -> Generator[str]:
        """Yield the lines of a response without an end; return when the connection breaks, or nothing arrives any more.

        A server that is alive sends something every few seconds, if only a comment.
        """
        timeout = httpx.Timeout(_SILENCE_S, connect=self._connect_s())
        try:
            with self._client.stream(
                "GET", self.urls[self._current] + path, headers=self._authorization(), timeout=timeout
            ) as response:
                if response.is_success:
                    yield from response.iter_lines()
        except httpx.TransportError:
            return

    def _authorization(self) -> dict[str, str]:
        """Return the header with the credential for the address in use, if there is one."""
        if self.credentials is None:
            return {}
        credential = self.credentials.find(self.urls[self._current], self.server_ms())
        return {} if credential is None else {"Authorization": f"Bearer {credential}"}

    def _timeout(self, wait_s: float) -> httpx.Timeout:
        patient_s = self._timeout_s if self._is_only_address else min(self._timeout_s, _SEVERAL_TIMEOUT_S)
        return httpx.Timeout(self._timeout_s, connect=self._connect_s(), read=patient_s + wait_s)

    def _connect_s(self) -> float:
        return min(5.0 if self._is_only_address else 2.0, self._timeout_s)

    @property
    def _is_only_address(self) -> bool:
        """Whether no other address can answer."""
        return len(self.urls) == 1 and not self._replaceable

    def _rediscover(self) -> bool:
        """Update the addresses of the JobManagers, and return whether they have changed."""
        found = tuple(_checked_url(url) for url in self.discover()) if self.discover is not None else ()
        if not found or set(found) == set(self.urls):
            return False
        self.urls, self._current = found, 0
        return True


def _checked(response: httpx.Response, submission: bool) -> httpx.Response:
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
    raise FlintlockError(f"the cluster failed internally ({response.status_code}): {text}")


def _errors(response: httpx.Response) -> tuple[str, ...]:
    """Return the errors in a response; its body may come from a proxy and be anything."""
    try:
        errors = msgspec.json.decode(response.content, type=dict[str, Any]).get("errors")
    except (msgspec.DecodeError, msgspec.ValidationError):
        errors = None
    texts: list[str] = [str(item) for item in errors] if isinstance(errors, list) else []  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return tuple(texts) or (f"{response.status_code} {response.reason_phrase}",)


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FlintlockError(f"the response is not one of a Flintlock cluster: {error}") from error


def _unavailable(reason: str, refused: bool, advice: str) -> Unavailable:
    text = f"no cluster answers at {reason}" if refused else f"the cluster does not answer: {reason}"
    error = Unavailable(f"{text}; {advice}" if advice and refused else text)
    error.unreachable = refused
    return error


def _trusted(credentials: Credentials | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of the machine, and those that are configured. Raises Refused."""
    context = ssl.create_default_context()
    file = "" if credentials is None else credentials.authorities
    if file:
        try:
            context.load_verify_locations(Path(file).expanduser())
        except OSError as error:  # ssl.SSLError is one
            raise Refused(f"{file} (security.tls.ca-file) cannot be used: {error.strerror or error}") from error
    return context


def _reason(error: httpx.TransportError) -> str:
    text = str(error) or type(error).__name__
    hint = "; name the authority of the cluster's certificates with security.tls.ca-file"
    return text + hint if "CERTIFICATE_VERIFY_FAILED" in text else text


def _checked_url(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid:
        raise Refused(f"{url!r} is not the address of a cluster: give one such as http://127.0.0.1:8081")
    return text.rstrip("/")
