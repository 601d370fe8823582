"""A JobManager's REST endpoint, listening: the application, the forwarding to the leader, and the HTTP server."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
import uvicorn

from flintlock.config.configuration import Configuration
from flintlock.config.options import AUTHENTICATION, REST_ADDRESS, REST_BIND_ADDRESS, REST_PORT
from flintlock.entrypoints.serving.rest_tls import ServerTls, client_context, rest_tls
from flintlock.ha.leader_info import KnownLeader
from flintlock.host.addresses import in_url, is_loopback_host, reached_at
from flintlock.model import log_events
from flintlock.model.errors import Invalid, Unavailable
from flintlock.model.ids import Epoch
from flintlock.rest.server.access import AccessControl
from flintlock.rest.server.app import rest_app
from flintlock.rest.server.connections import TimedHttpProtocol
from flintlock.rest.server.forwarding import Forwarding
from flintlock.rest.server.http import RestServices
from flintlock.rest.server.limits import RequestBounds, RequestLimits
from flintlock.rest.server.remote_principals import LeadersVerdict, TokensOfLeader
from flintlock.rest.server.request_ids import RequestIds, request_ids
from flintlock.rest.server.upstream import Upstream
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.audit import Audit
from flintlock.security.authentication import Authentication
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.local_credentials import LocalAuthenticator, local_credential
from flintlock.security.oidc import OidcAuthenticator, OidcSettings
from flintlock.security.sessions import Sessions
from flintlock.security.spark_ui_links import SparkUiLinks

_BACKLOG: Final = 1024
#: Of every response: a browser takes nothing for a page or a script that is none, and shows nothing in other pages.
_HEADERS: Final = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
]
log = structlog.get_logger()


@asynccontextmanager
async def serving_rest(
    services: RestServices,
    leading: Callable[[], Epoch | None],
    leaders: KnownLeader,
    secret: ClusterSecret,
    audit: Audit | None = None,
) -> AsyncGenerator[str]:
    """Serve REST while the context lasts; yield its URL.

    Raises Unavailable if it cannot listen at its address, Invalid if it must not listen there as it is configured.
    """
    configuration = services.configuration
    address = configuration.get(REST_ADDRESS)
    bound = configuration.get(REST_BIND_ADDRESS) or address
    _check_authentication(configuration, bound)
    tls = rest_tls(configuration, bound)
    listening = _listen(bound, configuration.get(REST_PORT))
    own_url = f"{'http' if tls is None else 'https'}://{in_url(reached_at(address))}:{listening.getsockname()[1]}"
    own_credential = partial(_own_credential, secret, services.clock_ms)
    async with Upstream(own_credential, client_context(tls)) as upstream, asyncio.TaskGroup() as tasks:
        authentication = None
        services = replace(services, spark_ui_links=SparkUiLinks(secret))
        if configuration.get(AUTHENTICATION) == "required":
            find_principal = LeadersVerdict(upstream, leaders, own_url).principal
            tokens = TokensOfLeader(services.dispatcher, leading, find_principal)
            sessions = Sessions(secret, tokens.check_session)
            oidc = OidcSettings.of(configuration)
            providers = () if oidc is None else (OidcAuthenticator(oidc, time.monotonic),)
            authentication = Authentication(
                (LocalAuthenticator(secret), tokens, sessions, *providers), services.clock_ms
            )
            services = replace(services, forget_credentials=authentication.forget, sessions=sessions)
        app = Forwarding(
            rest_app(services),
            leading=leading,
            leaders=leaders,
            upstream=upstream,
            clock_s=time.monotonic,
            own_url=own_url,
        )
        server = _Uvicorn(
            uvicorn.Config(
                RequestIds(
                    AccessControl(
                        RequestBounds(app, RequestLimits.of(configuration), time.monotonic),
                        authentication=authentication,
                        web=WebPolicy.of(configuration),
                        cookie="" if services.sessions is None else services.sessions.cookie,
                        audit=audit,
                        clock_ms=services.clock_ms,
                    ),
                    request_ids(),
                ),
                http=TimedHttpProtocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=_BACKLOG,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=1,
                server_header=False,
                proxy_headers=False,  # every process of this machine could send them: the audit log names who connects
                headers=_HEADERS,
            )
        )
        watching = [tasks.create_task(app.run(), name="rest-forwarding")]
        if tls is not None:
            server_tls = ServerTls(tls)
            server_tls.use(server.config)
            watching.append(tasks.create_task(server_tls.follow(), name="rest-certificate"))
        tasks.create_task(server.serve(sockets=[listening]), name="rest")
        try:
            yield own_url
        finally:
            server.should_exit = True
            for task in watching:
                task.cancel()


def _check_authentication(configuration: Configuration, bound: str) -> None:
    """Raise Invalid if no credential is needed, and not only this machine connects."""
    if configuration.get(AUTHENTICATION) == "required":
        return
    if not is_loopback_host(bound):
        raise Invalid(
            f"{AUTHENTICATION.key}: 'none' needs a loopback address, and REST listens on {bound}: every machine that"
            f" reaches it could run code here. Leave it out, or set {REST_ADDRESS.key} to 127.0.0.1"
        )
    log.warning(log_events.AUTHENTICATION_DISABLED, address=bound)


def _own_credential(secret: ClusterSecret, clock_ms: Callable[[], int]) -> str:
    return local_credential(secret, "jobmanager", clock_ms())


class _Uvicorn(uvicorn.Server):
    """A server without signal handlers: `entrypoints.process` handles signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no handlers."""
        yield


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(
            f"cannot listen on {host}:{port} (rest.address or rest.bind-address, rest.port): {error.strerror}"
        ) from error
    return listening
