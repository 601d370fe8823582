"""Where others reach what listens on this machine."""

from __future__ import annotations

import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

#: Addresses of documentation (RFC 5737, RFC 3849): asking for the way there sends nothing.
_FAR: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


def reached_at(host: str) -> str:
    """Return the address to tell others for what listens at `host`: `host` itself, unless that is every address.

    Then it is the one that this machine would have as a sender to far away: by its default route, else loopback.
    Rejected: its name, which often only the machine itself can resolve.
    """
    if not is_every_address(host):
        return host
    families = [socket.AF_INET, *([socket.AF_INET6] if ":" in host else [])]
    for family in families:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((_FAR[family], 9))
            own = str(probe.getsockname()[0])
            if not is_every_address(own):
                return own
    return "127.0.0.1" if ":" not in host else "::1"


def is_every_address(host: str) -> bool:
    """Tell whether this stands for all addresses of a machine: one can listen there, but not connect."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def in_url(host: str) -> str:
    """Return the host as it stands before a port."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
