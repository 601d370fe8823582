"""The orders of the listing: which value of a job each one compares, of ended jobs and of those that have not ended.

Jobs whose values are equal are in the order of the listing, newest start first, or in its reverse. A value never
changes while a job has not ended, so that no job moves from one page to another while a client reads them: by the time
of the end and by the duration, jobs that have not ended are behind all that have, or before them; among them, the one
that has run longest has the longest duration.

Pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from flintlock.api.job_lines import summary_of
from flintlock.dispatcher.listing.ended_lines import EndedLines
from flintlock.dispatcher.listing.sorted_keys import SortedKeys, SortValue, numbers, texts
from flintlock.model.jobs import JobOrder, JobPosition, JobSummary

_LATEST: Final = (1 << 63) - 1
_LONGEST: Final = 1 << 62
_NAME_LENGTH: Final = 40
_SORTED_AT_ONCE: Final = 200
MAX_NOTED: Final = 20_000
"""The jobs that may end between two pages in such an order before the orders are dropped."""


def _end(line: JobSummary) -> SortValue:
    return line.end_ms if line.status.globally_terminal else _LATEST


def _duration(line: JobSummary) -> SortValue:
    return line.duration_ms(line.end_ms) if line.status.globally_terminal else _LONGEST - line.start_ms


def _name(line: JobSummary) -> SortValue:
    return sys.intern(line.name.lower()[:_NAME_LENGTH])


#: The value of each order that is not that of the listing, or its reverse.
VALUES: Final[Mapping[str, Callable[[JobSummary], SortValue]]] = {"end": _end, "duration": _duration, "name": _name}

#: The orders in which jobs that have not ended are as in the listing: no list of them has to be sorted.
AS_LISTED_WHILE_LIVE: Final = frozenset({"end", "duration"})


def value_of(order: JobOrder, position: JobPosition) -> SortValue:
    """Return what an order compares, of a position that a page in this order has had."""
    if order.column == "name":
        return position.value
    return int(position.value) if position.value.isascii() and position.value.isdigit() else 0


class EndedOrders:
    """The keys of ended jobs in each of these orders.

    Nothing is sorted before a client asks for an order. Then all ended jobs are, some hundred in one step; those that
    end later are noted, and sorted when an order is asked for again. Where that does not happen for long, all orders
    are dropped: a cluster whose jobs no client sorts does no work for it, and keeps nothing.
    """

    def __init__(self) -> None:
        self._keys = _no_keys()
        self._cursor: bytes | None = None  # the ended jobs behind it are not sorted yet; None: all were read
        self._begun = False
        self._noted: list[bytes] = []

    def of(self, order: JobOrder) -> SortedKeys:
        """Return the keys in the order of a column."""
        return self._keys[order.column]

    def note(self, key: bytes) -> None:
        """Note that a job has ended, or has another line."""
        if not self._begun:
            return
        self._noted.append(key)
        if len(self._noted) > MAX_NOTED:
            self._keys, self._cursor, self._begun, self._noted = _no_keys(), None, False, []

    def sort_some(self, lines: EndedLines) -> bool:
        """Find the places of some jobs. False: all of these lines have theirs."""
        if not self._begun:
            self._begun, self._cursor = True, b""
        if self._cursor is not None:
            part, self._cursor = lines.keys(self._cursor)
        else:
            part = tuple(self._noted[-_SORTED_AT_ONCE:])
            del self._noted[-_SORTED_AT_ONCE:]
        for key in part:
            encoded = lines.line(key)
            if encoded is not None:
                line = summary_of(encoded)
                for column, keys in self._keys.items():
                    keys.add(VALUES[column](line), key)
        return self._cursor is not None or bool(self._noted)

    def remove(self, encoded: bytes, key: bytes) -> None:
        """Remove a job that had this line."""
        if not self._begun:
            return
        line = summary_of(encoded)
        for column, keys in self._keys.items():
            keys.remove(VALUES[column](line), key)


def _no_keys() -> dict[str, SortedKeys]:
    return {"end": SortedKeys(numbers), "duration": SortedKeys(numbers), "name": SortedKeys(texts)}
