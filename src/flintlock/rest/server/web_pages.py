"""Requests of web pages: a page that the user has open must not use the cluster in the user's name.

A browser sends requests of any page to any address that it can reach, the loopback address included, and attaches the
cookies of that address. Three headers that a page cannot change show where a request comes from:

    Host             names what the page believes to talk to. With DNS rebinding, a page makes its own name lead here:
                     so only names of this cluster are served. An IP address was not looked up, and is always one.
    Origin           is sent with everything but plain reads.
    Sec-Fetch-Site   is sent with everything, by browsers of the last years.

Other clients send no Origin and no Sec-Fetch-Site, and are not affected.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from msgspec import Struct, field

from flintlock.config.configuration import Configuration
from flintlock.config.options import ALLOWED_HOSTS, ALLOWED_ORIGINS, REST_ADDRESS, REST_BIND_ADDRESS

_MOST_KNOWN: Final = 100
_OWN_PAGES: Final = (b"same-origin", b"none")


class WebPolicy(Struct, frozen=True, kw_only=True):
    """By which names clients may address this cluster, and pages of which other origins may use it."""

    hosts: frozenset[str]
    origins: frozenset[str] = frozenset()
    _known: set[bytes] = field(default_factory=set[bytes])  # Host headers that were found to be own ones

    @staticmethod
    def of(configuration: Configuration) -> WebPolicy:
        """Return what is configured, and the names of this machine."""
        named = (
            "localhost",
            socket.gethostname(),
            configuration.get(REST_ADDRESS),
            configuration.get(REST_BIND_ADDRESS),
            *configuration.get(ALLOWED_HOSTS),
        )
        origins = (origin.rstrip("/").lower() for origin in configuration.get(ALLOWED_ORIGINS))
        return WebPolicy(hosts=frozenset(name.lower() for name in named if name), origins=frozenset(origins))

    def allows_origin(self, origin: bytes | None) -> bool:
        """Return whether pages of this other origin may use the cluster."""
        return origin is not None and origin.decode("latin-1").lower() in self.origins

    def refusal(self, headers: Mapping[bytes, bytes], *, any_page: bool = False) -> str | None:
        """Return why a request must not be served, None if it may. `any_page`: whichever page sends it."""
        given = headers.get(b"host", b"")
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if given in self._known and origin is None and site is None:
            return None
        host = given.decode("latin-1").lower()
        if not self._is_own(host):
            return (
                f"the request is for {host[:200]!r}, which is no name of this cluster: use its address, or add the name"
                f" to {ALLOWED_HOSTS.key}"
            )
        if len(self._known) < _MOST_KNOWN:
            self._known.add(given)
        if any_page or self.allows_origin(origin):
            return None
        if origin is not None and not is_same_origin(origin, host):
            return (
                f"a web page of another origin sent the request ({_shown(origin)}); {ALLOWED_ORIGINS.key} has none such"
            )
        if site is not None and site not in _OWN_PAGES:
            return f"a web page of another site sent the request (Sec-Fetch-Site: {_shown(site)})"
        return None

    def _is_own(self, host: str) -> bool:
        name = _name(host)
        return name in self.hosts or _is_address(name)


def is_same_origin(origin: bytes, host: str) -> bool:
    """Return whether an origin is that of the pages at `host`. The scheme may differ: a proxy may provide TLS."""
    return origin.decode("latin-1").lower().partition("://")[2] == host


def _name(host: str) -> str:
    """Return the name or address in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _shown(value: bytes) -> str:
    return repr(value[:200].decode("latin-1"))
