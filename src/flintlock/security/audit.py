"""The audit log: one line for each request that changes something, and for each that is refused.

    {"time": …, "who": …, "role": …, "credential": …, "from": …, "request": "PATCH /jobs/…", "job": …, "status": 202, …}

It is a file of its own, rotated like the log. A line that cannot be written is dropped and counted, as in the log: a
full disk must not end the cluster. Reads that are allowed have no line.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from flintlock.host.logs.log_output import LogOutput, QueuedLogOutput
from flintlock.model.access.principals import UNKNOWN_CALLER, Principal

_LAST_LINES_S: Final = 5.0  # for the lines that are queued when the process ends
_LONGEST: Final = 300


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    time: str
    who: str  # the caller's name; "-" if the caller is not known
    role: str = ""
    credential: str = ""  # its kind
    token: str = ""  # its id, if it is one
    from_: str = msgspec.field(name="from", default="")  # the address of the client, or of the standby that forwards
    forwarded: bool = False
    request: str
    job: str = ""
    status: int
    reason: str = ""  # why it was refused
    cause: str = ""  # the id of the request, as in the log


class Audit(Protocol):
    """Where audit records go."""

    def write(self, record: AuditRecord) -> None:
        """Write one line. Never raises."""
        ...


class AuditLog:
    """Writes audit records into a file that only the cluster's user can read."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor: Final = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # Queued: a disk that stalls does not hold up requests.
        self._output: Final = QueuedLogOutput(LogOutput(self._descriptor))

    def write(self, record: AuditRecord) -> None:
        """Write one line. Never raises."""
        self._output.write(msgspec.json.encode(record).decode())

    def close(self) -> None:
        """Write what is queued, as far as the disk takes it, and close the file."""
        if self._output.flush(_LAST_LINES_S):
            os.close(self._descriptor)


@asynccontextmanager
async def audit_log(path: Path) -> AsyncGenerator[AuditLog]:
    """Keep the audit log open while the context lasts. Raises OSError."""
    log = AuditLog(path)
    try:
        yield log
    finally:
        log.close()


def audit_record(
    principal: Principal, *, clock_ms: Callable[[], int], client: str, request: str, status: int, job: str = "",
    reason: str = "", cause: str = "", forwarded: bool = False,
) -> AuditRecord:  # fmt: skip
    """Return the record of a request. What the client chose is cut to a bounded length."""
    return AuditRecord(
        time=datetime.fromtimestamp(clock_ms() / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        who=principal.name,
        role="" if principal is UNKNOWN_CALLER else principal.role,
        credential="" if principal is UNKNOWN_CALLER else principal.kind,
        token=principal.token,
        from_=client,
        forwarded=forwarded,
        request=request[:_LONGEST],
        job=job[:64],
        status=status,
        reason=reason[:_LONGEST],
        cause=cause,
    )
