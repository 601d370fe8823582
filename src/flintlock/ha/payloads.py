"""How records are encoded in a store: format version, checksum, msgpack.

A store returns what was written or raises Corrupt; it never returns something else. msgpack alone cannot guarantee
that (a flipped bit inside a text decodes well), and SQLite has no checksums of its pages, so each payload carries a
CRC-32.

A record of a newer format is not Corrupt: it is intact, only this reader is too old. It is Incompatible, which ends the
reader instead of quarantining the record.

Rejected: pickle (runs code on reading); JSON (three times the size, and result rows are bytes).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from flintlock.ha.leader_info import LeaderInfo
from flintlock.model import log_events
from flintlock.model.access.tokens import AccessTokens
from flintlock.model.commands import JobOperations
from flintlock.model.errors import Corrupt, Incompatible
from flintlock.model.ids import JobId
from flintlock.model.jobs import JobHistory, JobResult, JobSnapshot, JobSummary, RetentionReading, StoredJob
from flintlock.model.streaming.savepoints import SavepointDisposals
from flintlock.model.tasks import RegionRecord, ResultRows

T = TypeVar("T")

log = structlog.get_logger(__name__)

#: Raised when a reader of the present version could misread what is written from now on.
FORMAT_VERSION: Final = 1

_HEADER: Final = struct.Struct(">BI")  # format version, CRC-32


def checksum(version: int, body: bytes | memoryview) -> int:
    """Return the CRC-32 of a record. From format 2 on it covers the version, too: a damaged one is not a newer one."""
    return zlib.crc32(body) if version == 1 else zlib.crc32(body, version)


class Payload(Generic[T]):
    """Writes and reads one kind of record. Reading needs no lock: msgspec's coders may be shared by threads."""

    def __init__(self, kind: type[T]) -> None:
        self._name: Final = kind.__name__
        self._encoder: Final = msgspec.msgpack.Encoder()
        self._decoder: Final = msgspec.msgpack.Decoder(kind)

    def encode(self, value: T) -> bytes:
        """Return the record as it is stored."""
        body = self._encoder.encode(value)
        return _HEADER.pack(FORMAT_VERSION, checksum(FORMAT_VERSION, body)) + body

    def decode(self, stored: bytes, owner: str) -> T:
        """Return the record; `owner` names in errors whose it is. Raises Corrupt; Incompatible for a newer format."""
        if len(stored) < _HEADER.size:
            raise Corrupt(f"the {self._name} of {owner} is cut off: {len(stored)} bytes")
        version, expected = _HEADER.unpack_from(stored)
        body = memoryview(stored)[_HEADER.size :]
        if checksum(version, body) != expected:
            raise Corrupt(f"the {self._name} of {owner} is damaged: its checksum is wrong")
        if version > FORMAT_VERSION:
            raise Incompatible(
                f"the {self._name} of {owner} was written by a newer Flintlock (format {version}); this one reads up to"
                f" format {FORMAT_VERSION}: use the newer version"
            )
        if version != FORMAT_VERSION:
            raise Corrupt(f"the {self._name} of {owner} has format {version}, which never existed")
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"the {self._name} of {owner} cannot be read: {error}") from error

    def readable(self, rows: Iterable[tuple[JobId, bytes]]) -> tuple[T, ...]:
        """Return the records of several jobs; one that is Corrupt is logged and left out."""
        found: list[T] = []
        for job_id, stored in rows:
            try:
                found.append(self.decode(stored, f"job {job_id}"))
            except Corrupt as error:
                log.warning(log_events.RECORD_UNREADABLE, job_id=job_id, reason=error.public)
        return tuple(found)


STORED_JOB: Final = Payload(StoredJob)
JOB_RESULT: Final = Payload(JobResult)
REGION_RECORD: Final = Payload(RegionRecord)
JOB_HISTORY: Final = Payload(JobHistory)
JOB_SNAPSHOT: Final = Payload(JobSnapshot)
JOB_SUMMARY: Final = Payload(JobSummary)
RESULT_ROWS: Final = Payload(ResultRows)
JOB_OPERATIONS: Final = Payload(JobOperations)
RETENTION_READING: Final = Payload(RetentionReading)
ACCESS_TOKENS: Final = Payload(AccessTokens)
SAVEPOINT_DISPOSALS: Final = Payload(SavepointDisposals)
LEADER_INFO: Final = Payload(LeaderInfo)
