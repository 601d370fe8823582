"""An attached client: the job is cancelled when its client is lost.

The submission has a timeout; from then on a thread sends heartbeats, each with the time until which the client counts
as alive. A client that dies, or is stopped for longer than that, sends none; nothing has to notice it here. A heartbeat
that cannot be delivered is dropped: the next one replaces it.

Rejected: cancelling the job from here when the client ends. A client that is killed cannot send anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from msgspec import Struct, structs

from flintlock.client.authoring.package import JobPackage
from flintlock.client.connection.credentials import Credentials
from flintlock.client.connection.http import Discover, Http
from flintlock.config.configuration import Configuration
from flintlock.config.options import CLIENT_HEARTBEAT_INTERVAL, CLIENT_HEARTBEAT_TIMEOUT
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import JobId
from flintlock.model.operations import config_text

HEARTBEATS_PER_TIMEOUT: Final = 3  # at least: a single lost heartbeat does no harm
_RETRY_S: Final = 1.0
_LONGEST_CALL_S: Final = 10.0
_JOIN_S: Final = 1.0


class Attachment(Struct, frozen=True, kw_only=True):
    """The interval of heartbeats, and how long the client counts as alive after one."""

    interval_s: float
    timeout_s: float

    @staticmethod
    def of(configuration: Configuration, package: JobPackage) -> Attachment:
        """Return what is configured, the job's own settings first. The interval stays well below the timeout."""
        both = configuration.over({key: config_text(value) for key, value in package.spec.config.items()})
        timeout_s = both.get(CLIENT_HEARTBEAT_TIMEOUT)
        interval_s = min(both.get(CLIENT_HEARTBEAT_INTERVAL), timeout_s / HEARTBEATS_PER_TIMEOUT)
        return Attachment(interval_s=interval_s, timeout_s=timeout_s)

    def bind(self, package: JobPackage) -> JobPackage:
        """Return the package as a job that is cancelled when its client is lost."""
        return structs.replace(
            package,
            spec=structs.replace(package.spec, client_timeout=self.timeout_s),
            graph=structs.replace(package.graph, client_timeout_s=self.timeout_s),
        )


@contextmanager
def attached(
    urls: Sequence[str],
    job_id: JobId,
    attachment: Attachment,
    clock_ms: Callable[[], int],
    *,
    discover: Discover | None = None,
    credentials: Credentials | None = None,
) -> Generator[None]:
    """Send heartbeats for the duration of the block. `clock_ms` is the cluster's clock."""
    done = threading.Event()
    # A separate connection: a long poll on the other one must not delay a heartbeat.
    timeout_s = min(_LONGEST_CALL_S, attachment.timeout_s / HEARTBEATS_PER_TIMEOUT)
    http = Http(urls, patience_s=0.0, timeout_s=timeout_s, discover=discover, credentials=credentials)
    thread = threading.Thread(
        target=_send_heartbeats, args=(http, job_id, attachment, clock_ms, done), name="client-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_JOIN_S)  # a call that hangs ends with the process


def _send_heartbeats(
    http: Http, job_id: JobId, attachment: Attachment, clock_ms: Callable[[], int], done: threading.Event
) -> None:
    def heartbeat() -> dict[str, object]:
        return {"json": {"expiredTimestamp": clock_ms() + int(attachment.timeout_s * 1000)}}

    with closing(http):
        while True:
            pause_s = attachment.interval_s
            try:
                http.call("PATCH", f"/jobs/{job_id}/clientHeartbeat", body=heartbeat)
            except NotFound:
                return  # the job ended long ago, and was removed
            except FlintlockError:
                pause_s = min(pause_s, _RETRY_S)  # there is no leader now: the next one gets the next heartbeat
            if done.wait(pause_s):
                return
