"""Suggestions for misspelled names, in one form everywhere.

Comparing names is expensive, and documents are not trusted. So one suggestion compares short names with a bounded
number of candidates, and a `Suggestions` makes a bounded number of suggestions for one document; the problems after
those are reported without.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from heapq import nlargest
from itertools import islice
from typing import Final

MAX_SUGGESTIONS: Final = 10
"""The suggestions that are made for one document."""

_MAX_NAME: Final = 64
_MAX_CANDIDATES: Final = 300
_MAX_COMPARED: Final = 20


class Suggestions:
    """The suggestions for one document."""

    def __init__(self) -> None:
        self._left = MAX_SUGGESTIONS

    def did_you_mean(self, name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
        """Return the question `did you mean '…'?`; empty if no name is near, or enough suggestions were made."""
        if self._left == 0:
            return ""
        self._left -= 1
        return did_you_mean(name, known, cutoff)

    def suggestion(self, name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
        """Return `did_you_mean` as the end of a sentence."""
        return _as_end(self.did_you_mean(name, known, cutoff))


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the question `did you mean '…'?` with the nearest known name, in any case; empty if none is near.

    For a name that is compared once. A check that may find many unknown names uses `Suggestions`.
    """
    if len(name) > _MAX_NAME:
        return ""
    wanted = name.lower()
    candidates = (item for item in known if _may_be_near(len(wanted), len(item), cutoff))
    spellings = {item.lower(): item for item in islice(candidates, _MAX_CANDIDATES)}
    compare = SequenceMatcher[str]()
    compare.set_seq2(wanted)  # the matcher analyses its second sequence once
    rated: list[tuple[float, str]] = []
    for spelling in spellings:
        compare.set_seq1(spelling)
        bound = compare.quick_ratio()
        if bound >= cutoff:
            rated.append((bound, spelling))
    best = (cutoff, "")
    for bound, spelling in nlargest(_MAX_COMPARED, rated):
        if bound >= best[0]:
            compare.set_seq1(spelling)
            best = max(best, (compare.ratio(), spelling))
    return f"did you mean {spellings[best[1]]!r}?" if best[1] else ""


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did_you_mean` as the end of a sentence."""
    return _as_end(did_you_mean(name, known, cutoff))


def _as_end(question: str) -> str:
    return f"; {question}" if question else ""


def _may_be_near(one: int, other: int, cutoff: float) -> bool:
    """Return whether names of these lengths can be similar enough."""
    return other <= _MAX_NAME and 2 * min(one, other) >= cutoff * (one + other)
