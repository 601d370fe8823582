"""Hosts on one network, and cuts between any two of them, one-way too.

Each host is a network namespace with one address, connected to a bridge by a veth pair. The harness is the bridge's own
address, and is never cut off. A cut gives one host a wrong link-layer address for another one: its packets leave, and
no one receives them. No socket reports an error, exactly as on a partitioned network; packets of the other direction
still arrive. Rejected: blackhole routes, which fail a connection attempt at once.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.chaos.tools import run

_BRIDGE: Final = "chaos"
_NETWORK: Final = "10.213.0"
_NO_ONE: Final = "02:00:00:00:00:01"  # a link-layer address that no interface has


class Host:
    """One host of a network. A process without output holds its namespace, until its standard input is closed."""

    def __init__(self, name: str, address: str, holder: subprocess.Popen[bytes]) -> None:
        self.name: Final = name
        self.address: Final = address
        self._holder: Final = holder
        self.enter: Final = ("nsenter", "--target", str(holder.pid), "--net")

    def stop_sending(self, to: Host) -> None:
        """Lose every packet to another host. Idempotent."""
        command = ("ip", "neigh", "replace", to.address, "lladdr", _NO_ONE, "nud", "permanent", "dev", "eth0")
        run(*self.enter, *command)

    def resume_sending(self, to: Host) -> None:
        """Deliver packets to another host again, after `stop_sending`."""
        run(*self.enter, "ip", "neigh", "del", to.address, "dev", "eth0")

    def processes(self) -> list[int]:
        """Return the processes that run on this host."""
        own = Path(f"/proc/{self._holder.pid}/ns/net").readlink()
        found: list[int] = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                inside = (process / "ns" / "net").readlink() == own
            except OSError:  # it has ended, or is another user's
                continue
            if inside and process.name != str(self._holder.pid):
                found.append(int(process.name))
        return found

    def close(self) -> None:
        """Release the namespace."""
        self._holder.communicate()


class Network:
    """A bridge and its hosts."""

    def __init__(self) -> None:
        self.hosts: Final[list[Host]] = []

    def add_host(self, name: str) -> Host:
        """Connect another host. Raises OSError."""
        number = len(self.hosts) + 2
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo up && exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        if holder.stdout.readline() != b"up\n":
            raise OSError("no network namespace can be made")
        host = Host(name, f"{_NETWORK}.{number}", holder)
        self.hosts.append(host)
        port = f"chaos{number}"
        run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        run("ip", "link", "set", port, "master", _BRIDGE, "up")
        run(*host.enter, "ip", "link", "set", "lo", "up")
        run(*host.enter, "ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        run(*host.enter, "ip", "link", "set", "eth0", "up")
        return host


@contextmanager
def bridged_network() -> Generator[Network]:
    """Make a network while the context lasts, in this process's network namespace. Raises OSError."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", _BRIDGE, "type", "bridge")
    network = Network()
    try:
        run("ip", "address", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        run("ip", "link", "set", _BRIDGE, "up")
        yield network
    finally:
        for host in network.hosts:
            host.close()
        run("ip", "link", "del", _BRIDGE)
