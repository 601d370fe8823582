"""An attached client: the job is cancelled when its client is gone.

The submission says after how long a silence that is; from then on a thread tells the cluster, again and again, until
when the client may be counted on. A client that dies, or is stopped for longer than that, falls silent by itself;
nothing has to notice it here. What cannot be delivered is not kept: the next sign replaces it.

Rejected: ending the job from here when the client ends. A client that is killed has no last word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Final

from msgspec import Struct, structs

from flintlock.client.authoring.package import JobPackage
from flintlock.client.connection.http import Discover, Http
from flintlock.config.configuration import Configuration
from flintlock.config.options import CLIENT_HEARTBEAT_INTERVAL, CLIENT_HEARTBEAT_TIMEOUT
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import JobId
from flintlock.model.operations import config_text

_SIGNS: Final = 3  # so many signs fit into a timeout, at least: one that is lost costs nothing
_RETRY_S: Final = 1.0
_LONGEST_CALL_S: Final = 10.0
_LEAVING_S: Final = 1.0


class Attachment(Struct, frozen=True, kw_only=True):
    """How often the client says that it is there, and after how long a silence it is not."""

    interval_s: float
    timeout_s: float

    @staticmethod
    def of(configuration: Configuration, package: JobPackage) -> Attachment:
        """Return what is configured, the job's own settings first. The interval stays well below the timeout."""
        both = configuration.over({key: config_text(value) for key, value in package.spec.config.items()})
        timeout_s = both.get(CLIENT_HEARTBEAT_TIMEOUT)
        interval_s = min(both.get(CLIENT_HEARTBEAT_INTERVAL), timeout_s / _SIGNS)
        return Attachment(interval_s=interval_s, timeout_s=timeout_s)

    def bind(self, package: JobPackage) -> JobPackage:
        """Return the package as one that is cancelled when its client is gone."""
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
    discover: Discover | None = None,
) -> Generator[None]:
    """Say that the client is there while the context lasts. `clock_ms` is the cluster's clock."""
    done = threading.Event()
    # A connection of its own: a long poll of the other must not hold a sign back.
    timeout_s = min(_LONGEST_CALL_S, attachment.timeout_s / _SIGNS)
    http = Http(urls, patience_s=0.0, timeout_s=timeout_s, discover=discover)
    thread = threading.Thread(
        target=_beat, args=(http, job_id, attachment, clock_ms, done), name="client-heartbeat", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LEAVING_S)  # a call that hangs ends with the process: it is worth no more waiting


def _beat(
    http: Http, job_id: JobId, attachment: Attachment, clock_ms: Callable[[], int], done: threading.Event
) -> None:
    def sign() -> dict[str, object]:
        return {"json": {"expiredTimestamp": clock_ms() + int(attachment.timeout_s * 1000)}}

    with closing(http):
        while True:
            pause_s = attachment.interval_s
            try:
                http.call("PATCH", f"/jobs/{job_id}/clientHeartbeat", body=sign)
            except NotFound:
                return  # the job is forgotten: it ended long ago
            except FlintlockError:
                pause_s = min(
                    pause_s, _RETRY_S
                )  # nobody leads, or nobody answers: whoever does next hears the next one
            if done.wait(pause_s):
                return
