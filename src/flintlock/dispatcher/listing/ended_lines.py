"""The lines of ended jobs: ordered, encoded, in blocks; one costs about half a kilobyte, whatever the number of jobs.

A line is kept as the bytes that are sent to clients, under a key whose order is that of the listing: the newest start
first, then by id. Blocks of some hundred lines make an insertion cost the same with a million jobs as with a thousand,
and are the slices in which expired jobs are taken out.

Pure. Rejected: keeping summaries (two kilobytes each, and every collection of garbage visits all of them); keeping only
the store's index and reading pages from it (an ensemble has no such index, and a page would cost a read for each line).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from typing import Final

from flintlock.model.ids import JobId
from flintlock.model.jobs import JobPosition

_MAX_BLOCK: Final = 256
_LATEST: Final = (1 << 63) - 1
_START_BYTES: Final = 8


def key_of(position: JobPosition) -> bytes:
    """Return the key of a line: keys in their order are lines in the order of the listing."""
    return (_LATEST - position.start_ms).to_bytes(_START_BYTES) + position.job_id.encode()


def position_of(key: bytes) -> JobPosition:
    """Return the position that a key was made from."""
    start_ms = _LATEST - int.from_bytes(key[:_START_BYTES])
    return JobPosition(start_ms=start_ms, job_id=JobId(key[_START_BYTES:].decode()))


class _Block:
    """Neighbouring lines. In tuples, because those of bytes are not visited when garbage is collected; lists are."""

    __slots__ = ("keys", "lines")

    def __init__(self, keys: tuple[bytes, ...], lines: tuple[bytes, ...]) -> None:
        self.keys = keys
        self.lines = lines


class EndedLines:
    """The lines of ended jobs, by position."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []  # none of them empty
        self._firsts: list[bytes] = []  # the first key of each block
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, line: bytes) -> bytes | None:
        """Set the line of an ended job; return the line that it replaces, None if there was none."""
        if not self._blocks:
            self._blocks.append(_Block((), ()))
            self._firsts.append(key)
        number = max(bisect_right(self._firsts, key) - 1, 0)
        block = self._blocks[number]
        index = bisect_left(block.keys, key)
        if index < len(block.keys) and block.keys[index] == key:
            replaced = block.lines[index]
            block.lines = (*block.lines[:index], line, *block.lines[index + 1 :])
            return replaced
        block.keys = (*block.keys[:index], key, *block.keys[index:])
        block.lines = (*block.lines[:index], line, *block.lines[index:])
        self._count += 1
        self._firsts[number] = block.keys[0]
        if len(block.keys) > _MAX_BLOCK:
            self._split(number)
        return None

    def after(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and lines behind a key, in order. Valid until the next change."""
        number = max(bisect_right(self._firsts, key) - 1, 0)
        for block in self._blocks[number : number + 1]:
            start = bisect_right(block.keys, key)
            yield from zip(block.keys[start:], block.lines[start:], strict=True)
        for index in range(number + 1, len(self._blocks)):
            yield from zip(self._blocks[index].keys, self._blocks[index].lines, strict=True)

    def before(self, key: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and lines before a key, or all, the last first. Valid until the next change."""
        number = len(self._blocks) - 1 if key is None else bisect_right(self._firsts, key) - 1
        for index in range(number, -1, -1):
            block = self._blocks[index]
            end = bisect_left(block.keys, key) if key is not None and index == number else len(block.keys)
            yield from reversed([*zip(block.keys[:end], block.lines[:end], strict=True)])

    def line(self, key: bytes) -> bytes | None:
        """Return the line of a key, None if there is none."""
        number = bisect_right(self._firsts, key) - 1
        if number < 0:
            return None
        block = self._blocks[number]
        index = bisect_left(block.keys, key)
        return block.lines[index] if index < len(block.keys) and block.keys[index] == key else None

    def remove(self, cursor: bytes, expired: Collection[bytes]) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Remove the lines of these jobs from one block, the first behind the cursor.

        Return them with their keys, and the cursor for the next block, None after the last; `b""` is before the first.
        Lines may be put between two calls. `expired` are ids as they are in keys (`str.encode`).
        """
        number = bisect_right(self._firsts, cursor)
        if number == len(self._blocks):
            return [], None
        block = self._blocks[number]
        last = block.keys[-1]
        both = [*zip(block.keys, block.lines, strict=True)]
        removed = [(key, line) for key, line in both if key[_START_BYTES:] in expired]
        if removed:
            kept = [(key, line) for key, line in both if key[_START_BYTES:] not in expired]
            block.keys, block.lines = tuple(key for key, _ in kept), tuple(line for _, line in kept)
        self._count -= len(removed)
        if block.keys:
            self._firsts[number] = block.keys[0]
        else:
            del self._blocks[number], self._firsts[number]
        return removed, last

    def keys(self, cursor: bytes) -> tuple[tuple[bytes, ...], bytes | None]:
        """Return the keys of one block, the first behind the cursor, and the cursor for the next; None: no more."""
        number = bisect_right(self._firsts, cursor)
        if number == len(self._blocks):
            return (), None
        keys = self._blocks[number].keys
        return keys, keys[-1]

    def ids(self, cursor: bytes) -> tuple[list[JobId], bytes | None]:
        """Return the jobs of one block, as `keys` does."""
        keys, cursor_after = self.keys(cursor)
        return [position_of(key).job_id for key in keys], cursor_after

    def _split(self, number: int) -> None:
        block = self._blocks[number]
        half = _MAX_BLOCK // 2 if number < len(self._blocks) - 1 else _MAX_BLOCK  # a list that is read fills its blocks
        second = _Block(block.keys[half:], block.lines[half:])
        block.keys, block.lines = block.keys[:half], block.lines[:half]
        self._blocks.insert(number + 1, second)
        self._firsts.insert(number + 1, second.keys[0])
