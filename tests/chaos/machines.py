"""Where a member runs: on this machine as it is, or on a machine of its own, with an own address and an own disk.

Machines of their own are made of the kernel's namespaces. `python -m tests.chaos` starts itself again in a mount and a
network namespace (`isolated`). In there, each machine is a network namespace on a common bridge, and its directory is
a file system that is mounted for it. Nothing of this outlives its processes, even after a SIGKILL: the kernel removes
interfaces, mounts and loop devices with the last process of the namespaces.

In a user namespace, that is, without root, there are networks and disks that can be filled. Only root can make a disk
that can be stalled, because that needs a loop device. What is not permitted here is left out, with the reason.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct
from tests.chaos.disks import Disk, ext4_disk, tmpfs_disk
from tests.chaos.network import Host, Network, bridged_network

#: Set in a process that runs in namespaces of its own.
_ISOLATED: Final = "CHAOS_ISOLATED"
_NOT_ISOLATED: Final = "this process does not run in namespaces of its own"


class Machine(Struct, frozen=True):
    """Where one member runs."""

    address: str
    directory: Path
    host: Host | None = None  # None: the network of the harness
    disk: Disk | None = None  # None: an ordinary directory

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one on this machine, as the same process."""
        return [*(() if self.host is None else self.host.enter), *command]


class Machines(Protocol):
    """Provides machines."""

    def machine(self, directory: Path) -> Machine:
        """Return a machine whose disk is at `directory`."""
        ...

    def disk(self, directory: Path) -> Disk | None:
        """Return a disk at `directory` that belongs to no machine; None if it is an ordinary directory."""
        ...


class SharedMachine:
    """One machine for all members: the loopback address, and directories on one disk."""

    def machine(self, directory: Path) -> Machine:
        """Return this machine."""
        directory.mkdir(parents=True, exist_ok=True)
        return Machine("127.0.0.1", directory)

    def disk(self, directory: Path) -> None:
        """Return no disk."""
        directory.mkdir(parents=True, exist_ok=True)


class OwnMachines:
    """Machines with as much of their own as is permitted here."""

    def __init__(self, network: Network | None, mount: Callable[[Path], Disk] | None) -> None:
        self._network: Final = network
        self._mount: Final = mount

    def machine(self, directory: Path) -> Machine:
        """Return a new machine."""
        host = None if self._network is None else self._network.add_host(directory.name)
        disk = self.disk(directory)
        return Machine("127.0.0.1" if host is None else host.address, directory, host, disk)

    def disk(self, directory: Path) -> Disk | None:
        """Return a new disk."""
        if self._mount is not None:
            return self._mount(directory)
        directory.mkdir(parents=True, exist_ok=True)
        return None


class Permissions(Struct, frozen=True):
    """Why this machine does not permit something; an empty text where it does."""

    cuts: str = _NOT_ISOLATED
    full_disks: str = _NOT_ISOLATED
    stalled_disks: str = _NOT_ISOLATED

    @property
    def missing(self) -> Mapping[str, str]:
        """What is not permitted, with the reason."""
        reasons = {"cuts": self.cuts, "full disks": self.full_disks, "stalled disks": self.stalled_disks}
        return {what: reason for what, reason in reasons.items() if reason}

    @contextmanager
    def machines(self) -> Generator[Machines]:
        """Provide machines while the context lasts."""
        with ExitStack() as stack:
            network = None if self.cuts else stack.enter_context(bridged_network())

            def mount(directory: Path) -> Disk:
                return stack.enter_context((tmpfs_disk if self.stalled_disks else ext4_disk)(directory))

            yield OwnMachines(network, None if self.full_disks else mount)


def isolated(command: Sequence[str]) -> tuple[list[str], str]:
    """Return the command that runs another one in namespaces of its own, or the reason why there is none."""
    unshare = ["unshare", "--mount", "--net", "--propagation", "private"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    reason = _failure(lambda: subprocess.run([*unshare, "true"], capture_output=True, text=True, check=True))
    return ([], reason) if reason else ([*unshare, "env", f"{_ISOLATED}=yes", *command], "")


def is_isolated() -> bool:
    """Whether this process was started by the command of `isolated`."""
    return _ISOLATED in os.environ


def find_permissions(scratch: Path, reason: str = "") -> Permissions:
    """Try everything once; in a process that is not isolated nothing is tried, for the given reason."""
    if not is_isolated():
        reason = reason or _NOT_ISOLATED
        return Permissions(reason, reason, reason)

    def connect() -> None:
        with bridged_network() as network:
            network.add_host("probe")

    def fill() -> None:
        with tmpfs_disk(scratch / "probe-full"):
            pass

    def stall() -> None:
        with ext4_disk(scratch / "probe-stalled") as disk:
            disk.stall()

    return Permissions(_failure(connect), _failure(fill), _failure(stall))


def _failure(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip()
    except OSError as error:
        return str(error)
    return ""
