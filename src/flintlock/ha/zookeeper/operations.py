"""What can be asked of ZooKeeper: operations on znodes, why one is refused, and the state of a connection."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TypeAlias

from msgspec import Struct


class LinkState(StrEnum):
    """The state of a connection, with kazoo's names."""

    CONNECTED = "CONNECTED"
    SUSPENDED = "SUSPENDED"  # the session may live
    LOST = "LOST"  # the session is over, or has not begun


class RefusalReason(Enum):
    """Why the ensemble refused an operation; the numbers are ZooKeeper's. Every other failure is Unavailable."""

    NO_NODE = -101
    BAD_VERSION = -103
    NODE_EXISTS = -110
    NOT_EMPTY = -111


class Node(Struct, frozen=True):
    """A znode's data and version."""

    data: bytes
    version: int


class Create(Struct, frozen=True):
    """Add a znode; its parent has to exist."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(Struct, frozen=True):
    """Replace a znode's data, if it has this version (-1: any)."""

    path: str
    data: bytes
    version: int


class Delete(Struct, frozen=True):
    """Remove a znode, if it has this version (-1: any)."""

    path: str
    version: int = -1


class Check(Struct, frozen=True):
    """The znode exists, with this version (-1: any)."""

    path: str
    version: int = -1


Op: TypeAlias = Create | SetData | Delete | Check


class Refusal(Struct, frozen=True):
    """The operation that made a transaction fail as a whole."""

    op: Op
    reason: RefusalReason
