from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest

from flintlock.host.addresses import in_url, is_every_address, reached_at


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "localhost", "jm-1.example.com", "::1"])
def test_an_address_is_published_as_it_was_configured(host: str) -> None:
    assert not is_every_address(host)
    assert reached_at(host) == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_all_addresses_are_published_as_one_that_can_be_connected_to(host: str) -> None:
    assert is_every_address(host)
    address = reached_at(host)
    assert not ip_address(address).is_unspecified
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listening:
        listening.bind((address, 0))  # it is one of this machine's


def test_in_an_url_an_ipv6_address_stands_in_brackets() -> None:
    assert [in_url(host) for host in ("::1", "[::1]", "10.0.0.1", "name")] == ["[::1]", "[::1]", "10.0.0.1", "name"]
