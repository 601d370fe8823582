"""Which parts of a captured log are standard error: a record beside the log, of places in increasing order.

The log itself has both streams, as a person reads them. The record is binary: offset and length of each part, eight
bytes each.
"""

from __future__ import annotations

import os
import struct
from typing import Final

_SPAN: Final = struct.Struct(">QQ")


def spans_path(log_path: str) -> str:
    """Return where the record of a log is."""
    return f"{log_path}.stderr"


def encoded_span(offset: int, length: int) -> bytes:
    """Return one entry of the record."""
    return _SPAN.pack(offset, length)


def stderr_spans(log_path: str, start: int, end: int) -> tuple[tuple[int, int], ...]:
    """Return the parts of standard error between two places of a log, each from its first byte to behind its last.

    Neighbours are one part. A log without a record has none.
    """
    try:
        record = os.open(spans_path(log_path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        return _between(record, os.fstat(record).st_size // _SPAN.size, start, end)
    finally:
        os.close(record)


def _between(record: int, count: int, start: int, end: int) -> tuple[tuple[int, int], ...]:
    low, high = 0, count  # the first part that ends behind the start
    while low < high:
        middle = (low + high) // 2
        offset, length = _read(record, middle)
        if offset + length > start:
            high = middle
        else:
            low = middle + 1
    found: list[tuple[int, int]] = []
    for number in range(low, count):
        offset, length = _read(record, number)
        if offset >= end:
            break
        first, last = max(offset, start), min(offset + length, end)
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)


def _read(record: int, number: int) -> tuple[int, int]:
    offset, length = _SPAN.unpack(os.pread(record, _SPAN.size, number * _SPAN.size))
    return offset, length
