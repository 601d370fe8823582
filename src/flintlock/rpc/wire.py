"""gRPC's settings: names of headers, channel options, and the one place where connections are secured.

`listen` and `open_channel` are the only two functions that know whether a connection is encrypted: credentials enter
here and nowhere else.

Settings that differ from gRPC's own, and why: reconnecting backs off to half a second, not to two minutes, because a
restarted leader has to be found at once; keepalive pings are sent without calls, because the peers of a machine that
has become silent have to notice it; ports are not shared, because two servers on one port would split the calls between
them; no HTTP proxy, because the environment's proxy is not for the cluster's own traffic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import grpc
from grpc import aio

from flintlock.model.causes import CauseId, well_formed
from flintlock.model.errors import (
    Conflict,
    Corrupt,
    Fenced,
    FlintlockError,
    InvariantBroken,
    JobFailed,
    NotFound,
    Refused,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from flintlock.model.ids import Epoch, FencingToken
from flintlock.security.tls_files import TlsFiles, TlsMaterial

PROTOCOL_VERSION: Final = "1"
"""Changes when peers of different versions would misunderstand each other. New fields with defaults do not count."""

VERSION_HEADER: Final = "flintlock-protocol"
EPOCH_HEADER: Final = "flintlock-epoch"
SESSION_HEADER: Final = "flintlock-session"
CAUSE_HEADER: Final = "flintlock-cause"
CREDENTIAL_HEADER: Final = "flintlock-credential"
FAILURE_TRAILER: Final = "flintlock-failure-bin"

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]
Options: TypeAlias = list[tuple[str, Any]]

#: gRPC status by kind of error, most specific first: for tools that trace calls. Flintlock reads the trailer.
STATUS: Final[tuple[tuple[type[FlintlockError], grpc.StatusCode], ...]] = (
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (Refused, grpc.StatusCode.INVALID_ARGUMENT),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (Fenced, grpc.StatusCode.ABORTED),
    (JobFailed, grpc.StatusCode.UNKNOWN),
    (Corrupt, grpc.StatusCode.DATA_LOSS),
    (InvariantBroken, grpc.StatusCode.INTERNAL),
)

KEEPALIVE_TIME_S: Final = 10.0
KEEPALIVE_TIMEOUT_S: Final = 5.0
MAX_HEADER_BYTES: Final = 1024 * 1024


def _common_options(max_message_bytes: int) -> Options:
    return [
        # Sizes are checked with a clear error before sending; gRPC's own check is a second one, at the receiver.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_TIME_S * 1000)),
        ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        # A ping that gRPC sends for its own purposes replaces the next keepalive ping, under this timeout (60 s by
        # default): without it a peer that froze in the middle of a call went unnoticed for a minute.
        ("grpc.http2.ping_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(max_message_bytes: int) -> Options:
    """Return the settings of a server."""
    return [
        *_common_options(max_message_bytes),
        ("grpc.so_reuseport", 0),
        # Pings that a busy machine delayed arrive together. By default a server takes that for an attack and closes
        # the connection, and its peer took that for a death.
        ("grpc.http2.max_ping_strikes", 0),
    ]


def channel_options(max_message_bytes: int) -> Options:
    """Return the settings of a client's channel."""
    return [
        *_common_options(max_message_bytes),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),  # closing our channels closes our connections, and no others
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.min_reconnect_backoff_ms", 5000),  # in spite of its name: the time that one attempt may take
    ]


def listen(server: aio.Server, address: str, tls: TlsFiles | None = None) -> int:
    """Bind `server` to `address` and return the port. Raises `OSError` if that is impossible.

    With TLS every client has to present a certificate of the cluster's authorities.
    """
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, _server_credentials(tls))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: it is in use, or not an address of this machine") from error


def open_channel(address: str, options: Options, material: TlsMaterial | None = None) -> aio.Channel:
    """Return a channel to `address`; it connects with its first call."""
    if material is None:
        return aio.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(material.authorities, material.member, material.member)
    return aio.secure_channel(address, credentials, options=options)


def _server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials that follow the files: gRPC asks for the current ones before each handshake."""
    initial = tls.material
    known = [initial]

    def configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(material.member, material.member)], root_certificates=material.authorities
        )

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        material = tls.material
        if material is known[0]:
            return None
        known[0] = material
        return configuration(material)

    return grpc.dynamic_ssl_server_credentials(
        configuration(initial),
        fetch,  # pyright: ignore[reportArgumentType] - gRPC documents None: nothing has changed
        require_client_authentication=True,
    )


def status_of(kind: type[FlintlockError]) -> grpc.StatusCode:
    """Return the gRPC status for an error of this kind."""
    return next((status for known, status in STATUS if issubclass(kind, known)), grpc.StatusCode.UNKNOWN)


def headers(token: FencingToken | None) -> Metadata:
    """Return the headers of every call."""
    version = (VERSION_HEADER, PROTOCOL_VERSION)
    if token is None:
        return (version,)
    return (version, (EPOCH_HEADER, str(token.epoch)), (SESSION_HEADER, token.session))


def with_cause(metadata: Metadata, cause: CauseId | None) -> Metadata:
    """Return the headers with the cause of the call, if it has one."""
    return metadata if cause is None else (*metadata, (CAUSE_HEADER, cause))


def read_cause(metadata: Iterable[tuple[str, str | bytes]]) -> CauseId | None:
    """Return the cause of a call; one that is not well-formed is ignored: it only serves the log."""
    return next((well_formed(value) for key, value in metadata if key == CAUSE_HEADER), None)


def read_headers(metadata: Iterable[tuple[str, str | bytes]]) -> FencingToken | None:
    """Return the caller's token. Raises `Refused` if the caller uses another protocol or sent half a token."""
    version = epoch = session = None
    for key, value in metadata:
        if key == VERSION_HEADER:
            version = value
        elif key == EPOCH_HEADER:
            epoch = value
        elif key == SESSION_HEADER:
            session = value
    if version != PROTOCOL_VERSION:
        theirs = "none" if version is None else repr(version)
        raise Refused(f"protocol versions differ: this process uses {PROTOCOL_VERSION!r}, the caller {theirs}")
    if epoch is None and session is None:
        return None
    if not isinstance(epoch, str) or not isinstance(session, str) or not epoch.isdecimal():
        raise Refused(f"malformed fencing token: epoch {epoch!r}, session {session!r}")
    return FencingToken(epoch=Epoch(int(epoch)), session=session)
