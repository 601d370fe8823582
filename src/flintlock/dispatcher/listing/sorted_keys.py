"""The keys of jobs in another order than that of the listing: by their end, their duration or their name.

A value and a reference to a key that `ended_lines` has already, in blocks: some twenty bytes a job in each order. Names
are shortened and shared between the jobs that have them.

Pure. Rejected: sorting at a query, which would go through all jobs; `sortedcontainers`, which keeps an object for each
pair, some hundred bytes a job in each order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias

SortValue: TypeAlias = int | str

_MAX_BLOCK: Final = 64
#: Values of one kind, in a tuple or an array: neither is visited when garbage is collected.
_Values: TypeAlias = Any


def numbers(items: Iterable[Any]) -> _Values:
    """Return values that are integers, of eight bytes each."""
    return array("q", items)


def texts(items: Iterable[SortValue]) -> _Values:
    """Return values that are texts."""
    return tuple(items)


class _Block:
    """Neighbouring pairs."""

    __slots__ = ("keys", "values")

    def __init__(self, values: _Values, keys: tuple[bytes, ...]) -> None:
        self.values = values
        self.keys = keys

    def find(self, pair: tuple[SortValue, bytes]) -> int:
        """Return the index of the first pair that is not before this one."""
        value, key = pair
        low = bisect_left(self.values, value)
        return bisect_left(self.keys, key, low, bisect_right(self.values, value, low))

    def pairs(self) -> list[tuple[SortValue, bytes]]:
        """Return all of them."""
        return [*zip(self.values, self.keys, strict=True)]


class SortedKeys:
    """Pairs of a value and a key, in order. `make` says of which kind the values are."""

    def __init__(self, make: Callable[[Iterable[SortValue]], _Values]) -> None:
        self._make: Final = make
        self._blocks: list[_Block] = []  # none of them empty
        self._firsts: list[tuple[SortValue, bytes]] = []  # the first pair of each block

    def add(self, value: SortValue, key: bytes) -> None:
        """Add a pair; one that is there stays."""
        pair = (value, key)
        if not self._blocks:
            self._blocks.append(_Block(self._make(()), ()))
            self._firsts.append(pair)
        number = self._number(pair)
        block = self._blocks[number]
        index = block.find(pair)
        if index < len(block.keys) and block.keys[index] == key and block.values[index] == value:
            return
        block.values = block.values[:index] + self._make((value,)) + block.values[index:]
        block.keys = (*block.keys[:index], key, *block.keys[index:])
        if len(block.keys) > _MAX_BLOCK:
            half = _MAX_BLOCK // 2
            self._blocks.insert(number + 1, _Block(block.values[half:], block.keys[half:]))
            self._firsts.insert(number + 1, (block.values[half], block.keys[half]))
            block.values, block.keys = block.values[:half], block.keys[:half]
        self._firsts[number] = (block.values[0], block.keys[0])

    def remove(self, value: SortValue, key: bytes) -> None:
        """Remove a pair, if it is there."""
        if not self._blocks:
            return
        number = self._number((value, key))
        block = self._blocks[number]
        index = block.find((value, key))
        if index == len(block.keys) or block.keys[index] != key or block.values[index] != value:
            return
        block.values = block.values[:index] + block.values[index + 1 :]
        block.keys = (*block.keys[:index], *block.keys[index + 1 :])
        if block.keys:
            self._firsts[number] = (block.values[0], block.keys[0])
        else:
            del self._blocks[number], self._firsts[number]

    def behind(self, pair: tuple[SortValue, bytes] | None, *, descending: bool) -> Iterator[tuple[SortValue, bytes]]:
        """Yield the pairs behind a pair, or all; descending: from the largest on. Valid until the next change."""
        if not self._blocks:
            return
        if descending:
            number = len(self._blocks) - 1 if pair is None else self._number(pair)
            block = self._blocks[number]
            yield from reversed(block.pairs()[: len(block.keys) if pair is None else block.find(pair)])
            for index in range(number - 1, -1, -1):
                yield from reversed(self._blocks[index].pairs())
            return
        number = 0 if pair is None else self._number(pair)
        found = self._blocks[number].pairs()
        yield from found if pair is None else found[bisect_right(found, pair) :]
        for index in range(number + 1, len(self._blocks)):
            yield from self._blocks[index].pairs()

    def _number(self, pair: tuple[SortValue, bytes]) -> int:
        return max(bisect_right(self._firsts, pair) - 1, 0)
