"""Durations and sizes as users write them, in configuration and in job documents."""

from __future__ import annotations

import re
from typing import Final

_QUANTITY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")
_SECONDS: Final = {
    "": 1e-3, "ms": 1e-3, "milli": 1e-3, "millis": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60, "min": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400, "days": 86400,
}  # fmt: skip
_SHORTEST_PERIOD_S: Final = 0.01
_BYTES: Final = {
    "": 1, "b": 1, "bytes": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "t": 1 << 40, "tb": 1 << 40,
}  # fmt: skip


def duration_s(text: str) -> float:
    """Read a duration as Flink writes it (`10 s`, `500 ms`, `1 min`; a bare number is milliseconds)."""
    match = _QUANTITY.fullmatch(text.lower())
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration such as '10 s' or '500 ms'")
    return float(match[1]) * _SECONDS[match[2]]


def positive_duration_s(text: str) -> float:
    """Read a duration that something is repeated or given up after, so that it cannot be nothing."""
    value = duration_s(text)
    if value < _SHORTEST_PERIOD_S:
        raise ValueError(f"{text!r} is shorter than {_SHORTEST_PERIOD_S * 1000:g} ms")
    return value


def duration_text(seconds: float) -> str:
    """Write a duration as `duration_s` reads it, in the largest unit that it is a whole number of."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds * 1000:g} ms"


def memory_text(size: int) -> str:
    """Write a memory size as `memory_bytes` reads it, in the largest unit that it is a whole number of."""
    for unit, length in (("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)):
        if size >= length and size % length == 0:
            return f"{size // length}{unit}"
    return str(size)


def memory_bytes(text: str) -> int:
    """Read a memory size (`512m`, `2 gb`)."""
    match = _QUANTITY.fullmatch(text.lower())
    if match is None or match[2] not in _BYTES:
        raise ValueError(f"{text!r} is not a memory size such as '512m' or '2g'")
    return int(float(match[1]) * _BYTES[match[2]])


class MemoryUpTo:
    """Reads memory sizes as `memory_bytes` does, and refuses those above a bound, with the reason."""

    def __init__(self, most: int, why: str) -> None:
        self._most: Final = most
        self._why: Final = why

    def __call__(self, text: str) -> int:
        """Return the bytes. Raises ValueError."""
        value = memory_bytes(text)
        if value > self._most:
            raise ValueError(f"{text!r} is more than {memory_text(self._most)}: {self._why}")
        return value
