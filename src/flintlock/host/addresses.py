"""The addresses by which other machines reach a server on this one."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

#: Addresses reserved for documentation (RFC 5737, RFC 3849): connecting a datagram socket to them sends nothing.
_REMOTE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def reached_at(host: str) -> str:
    """Return the address to advertise for a server that listens at `host`: `host` itself, unless it is a wildcard.

    For a wildcard it is this machine's address on its default route, else loopback. Rejected: the machine's name,
    which often only the machine itself can resolve.
    """
    if not is_every_address(host):
        return host
    families = [socket.AF_INET, *([socket.AF_INET6] if ":" in host else [])]
    for family in families:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_REMOTE[family], 9))
            own = str(probe.getsockname()[0])
            if not is_every_address(own):
                return own
    return "127.0.0.1" if ":" not in host else "::1"


def is_every_address(host: str) -> bool:
    """Return whether this is a wildcard address (0.0.0.0, ::): a server can listen there, no client can connect."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback_host(host: str) -> bool:
    """Return whether only processes of this machine can connect to this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def in_url(host: str) -> str:
    """Return the host as a URL has it before the port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
