"""kazoo's client as Flintlock configures it: bounded connection attempts, its log in ours, the granted session timeout.

Only this module and `link` know kazoo. What they reach into is listed in docs/internals.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import structlog
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError, NoNodeError
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.retry import KazooRetry

from flintlock.ha.zookeeper.operations import RefusalReason
from flintlock.ha.zookeeper.security import ZooKeeperSecurity
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, InvariantBroken, Refused, Unavailable

log = structlog.get_logger(__name__)


def make_client(
    quorum: str, session_timeout_s: float, on_timeout: Callable[[float], None], security: ZooKeeperSecurity
) -> Any:
    """Return a client that is not started yet. Raises Refused for a quorum that cannot be parsed.

    `on_timeout` is called with the session timeout that the ensemble granted, in a thread of kazoo's, each time that a
    connection is established.
    """
    handler = _Handler()
    try:
        client: Any = KazooClient(
            hosts=quorum,
            timeout=session_timeout_s,
            handler=handler,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=2, max_delay=0.5, sleep_func=handler.sleep_func
            ),
            logger=_client_logger(),
            **security.client_arguments(),
        )
    except (ValueError, KazooException) as error:
        raise _unparsable(quorum, error) from error
    handler.connect_timeout_s = session_timeout_s / max(1, len(client.hosts))
    _report_timeouts(client, on_timeout)
    return client


def stop_client(client: Any) -> None:
    """End the session and the client's threads. Blocks."""
    client.stop()
    client.close()


@contextmanager
def reading(
    quorum: str, connection_timeout_s: float, security: ZooKeeperSecurity
) -> Generator[Callable[[str], bytes | None]]:
    """Connect without an event loop, to read only: yields a function that returns a znode's data, None without one.

    Raises Unavailable, Refused, as `ZooKeeperLink.open` does.
    """
    try:
        client: Any = KazooClient(hosts=quorum, logger=_silent_logger(), **security.client_arguments())
    except (ValueError, KazooException) as error:
        raise _unparsable(quorum, error) from error

    def read(path: str) -> bytes | None:
        try:
            return cast("bytes", client.get(path)[0])
        except NoNodeError:
            return None
        except KazooException as error:
            raise translated(error) from error

    try:
        client.start(timeout=connection_timeout_s)
        yield read
    except client.handler.timeout_exception:
        raise not_answered(quorum, connection_timeout_s) from None
    finally:
        stop_client(client)


def not_answered(quorum: str, waited_s: float) -> Unavailable:
    """Return the error for an ensemble of which no server has answered."""
    return Unavailable(
        f"ZooKeeper at {quorum} (high-availability.zookeeper.quorum) has not answered for {waited_s:g} s"
    )


def is_answer(error: Exception) -> bool:
    """Return whether an error is the ensemble's answer, rather than the lack of one."""
    return getattr(error, "code", 0) in {reason.value for reason in RefusalReason}


def translated(error: Exception) -> FlintlockError:
    """Return kazoo's error as one of ours."""
    if is_answer(error):
        return InvariantBroken(f"ZooKeeper was misused: {error!r}")
    if isinstance(error, NoAuthError | AuthFailedError):
        return Unavailable(
            "ZooKeeper refuses access: the credentials of this process"
            " (high-availability.zookeeper.client.credentials-file) are not those of the cluster's znodes"
        )
    return Unavailable(f"ZooKeeper did not answer: {type(error).__name__} {error}".rstrip())


def _unparsable(quorum: str, error: Exception) -> Refused:
    return Refused(f"the ZooKeeper quorum {quorum!r} cannot be read: {error}")


def _report_timeouts(client: Any, on_timeout: Callable[[float], None]) -> None:
    """Report the session timeout that the ensemble grants, which may be shorter than the requested one.

    kazoo does not publish it: it is taken from what `_connect` returns, two thirds of it, in milliseconds.
    """
    connection = client._connection
    connect = connection._connect

    def connect_and_report(*where: Any) -> tuple[float, float]:
        read_timeout, connect_timeout = connect(*where)
        on_timeout(read_timeout * 1.5 / 1000)
        return read_timeout, connect_timeout

    connection._connect = connect_and_report


class _Answer(AsyncResult):
    """An answer whose callbacks run in the thread that read it, not in one more; ours never block."""

    def _do_callbacks(self) -> None:
        for callback in cast("list[Callable[[Any], None]]", self._callbacks):
            callback(self)


class _Handler(SequentialThreadingHandler):
    """kazoo's threads, with a bound on how long one server is tried, and one thread less in the path of an answer."""

    connect_timeout_s: float = 10.0

    def async_result(self) -> _Answer:
        """Return a place for an answer."""
        return _Answer(self)

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect to one server."""
        kwargs["timeout"] = min(kwargs.get("timeout") or self.connect_timeout_s, self.connect_timeout_s)
        return cast("Any", super()).create_connection(*args, **kwargs)


class _ToStructlog(logging.Handler):
    """Forwards kazoo's log records to ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log it."""
        log.info(log_events.ZOOKEEPER_CLIENT_MESSAGE, message=record.getMessage())


def _client_logger() -> logging.Logger:
    logger = logging.getLogger("flintlock.zookeeper")
    if not logger.handlers:
        logger.addHandler(_ToStructlog())
        logger.propagate = False
        logger.setLevel(logging.WARNING)
    return logger


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("flintlock.zookeeper.reading")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
    return logger
