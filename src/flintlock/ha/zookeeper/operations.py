"""What can be asked of ZooKeeper: operations on znodes, why one is refused, and the state of a connection."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.errors import TooLarge


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


#: The largest transaction that is sent. A server accepts less than 1 MiB (jute.maxbuffer), and closes the connection of
#: a client that sends more.
MAX_TRANSACTION_BYTES: Final = 1_000_000

_OP_BYTES: Final = 64  # what an operation takes besides its path and data, at most


def check_size(ops: Sequence[Op]) -> None:
    """Raise TooLarge for a transaction that no server would accept, naming its largest operation."""
    sizes = [_OP_BYTES + len(op.path.encode()) + len(getattr(op, "data", b"")) for op in ops]
    if sum(sizes) <= MAX_TRANSACTION_BYTES:
        return
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    raise TooLarge(
        f"ZooKeeper holds {MAX_TRANSACTION_BYTES:,} bytes in one transaction, not {sum(sizes):,}: of {len(ops)} "
        f"operations the largest ({ops[largest].path}) has {sizes[largest]:,}"
    )


class Refusal(Struct, frozen=True):
    """The operation that made a transaction fail as a whole."""

    op: Op
    reason: RefusalReason
