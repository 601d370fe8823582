"""The listing of all jobs, computed incrementally: one line for each job, the newest start first, then by id.

Jobs that have not ended have summaries, ended ones encoded lines (`ended_lines`); an id is in one of the two. A job
that changes is only marked; its line is computed again at the next query, once for any number of changes. A page costs
what it contains; counts are kept; and the latest changes are remembered by version, so that a client that follows the
listing costs what has changed since, not what there is.

The ended jobs of earlier terms are added slice by slice, latest end first, while the leader leads already. Until the
last slice (`loaded_to_ms` is None from then on) a page is exact if its jobs started after all that may be missing.

Pure. Rejected: sorting at each query; one list of all summaries, which an insertion and each query would go through.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from itertools import islice, takewhile
from typing import Final, TypeAlias

from msgspec import structs

from flintlock.api.job_lines import encoded_line, id_and_status, is_selected
from flintlock.dispatcher.listing.ended_lines import EndedLines, key_of, position_of
from flintlock.dispatcher.listing.job_orders import AS_LISTED_WHILE_LIVE, VALUES, EndedOrders, value_of
from flintlock.dispatcher.listing.sorted_keys import SortedKeys, SortValue, texts
from flintlock.model.ids import JobId
from flintlock.model.jobs import (
    JobCounts,
    JobFilter,
    JobLine,
    JobOrder,
    JobPosition,
    JobsPage,
    JobsQuery,
    JobSummary,
    ListingChanges,
)
from flintlock.model.states import JobStatus

MakeLine: TypeAlias = Callable[[JobId, JobSummary | None], JobSummary | None]
"""Returns a job's line, given its last one; None if it has none (any more)."""

MAX_CHANGES: Final = 10_000
"""The changed lines that are remembered."""

MAX_SCANNED: Final = 1_000
"""The lines that are compared with a filter in one step: some milliseconds."""

_COMPUTED_AT_ONCE: Final = 200


class JobListing:
    """One line for each job, in order."""

    def __init__(self, version: int = 0) -> None:
        self._live: dict[JobId, JobSummary | None] = {}  # not ended; None: no line was computed yet
        self._order: list[bytes] = []  # the keys of the summaries in `_live`, sorted
        self._names: Final = SortedKeys(texts)  # the same keys, by name
        self._ended: Final = EndedLines()
        self._orders: Final = EndedOrders()
        self._touched: Final[OrderedDict[JobId, None]] = OrderedDict()  # written by `touch`, emptied by `refresh`
        self._by_status: Final = dict.fromkeys(JobStatus, 0)
        #: The latest change of each job, in order; bounded.
        self._changes: Final[OrderedDict[JobId, tuple[int, JobLine]]] = OrderedDict()
        self._forgotten = version  # the version up to which changes may have been dropped
        self._version = version  # begins elsewhere in each term: a version of another one is not taken for its own
        self._counts: JobCounts | None = None  # None: to be computed
        self.loaded_to_ms: float | None = math.inf  # ended jobs with an end before this may be missing; None: none are

    def touch(self, job_id: JobId) -> None:
        """Mark that a job's line may have changed. The job has not ended."""
        self._touched[job_id] = None
        self._live.setdefault(job_id, None)

    def is_live(self, job_id: JobId) -> bool:
        """Return whether the job has not ended."""
        return job_id in self._live

    def put(self, line: JobSummary) -> None:
        """Set a job's line; from an ended status on it stays as it is. An equal line changes nothing."""
        old = self._live.get(line.job_id)
        if old == line:
            return
        if line.status.globally_terminal:
            self._drop_live(line.job_id)
            encoded, replaced = self._put_ended(line)
            if encoded != replaced:
                self._changed(line.job_id, encoded)
        else:
            if old is None or (old.start_ms, old.name) != (line.start_ms, line.name):
                self._drop_live(line.job_id)
                insort(self._order, _key(line))
                self._names.add(VALUES["name"](line), _key(line))
                self._by_status[line.status] += 1
            else:
                self._by_status[old.status] -= 1
                self._by_status[line.status] += 1
            self._live[line.job_id] = line
            self._changed(line.job_id, line)

    def load(self, lines: Iterable[JobSummary], loaded_to_ms: int | None) -> None:
        """Add ended jobs of earlier terms, a slice of those with the latest ends. None: there are no more."""
        for line in lines:
            if line.job_id not in self._live:
                self._put_ended(line)
        self._counts = None
        self.loaded_to_ms = loaded_to_ms

    def remove(self, job_id: JobId) -> None:
        """Drop the line of a job that has not ended, if it has one."""
        self._touched.pop(job_id, None)
        self._changes.pop(job_id, None)
        self._drop_live(job_id)
        self._counts = None

    def expire(self, job_ids: Collection[JobId]) -> Iterator[None]:
        """Drop the lines of ended jobs; yields after each bounded part of the work."""
        expired = {job_id.encode() for job_id in job_ids}
        cursor: bytes | None = b""
        while cursor is not None:
            removed, cursor = self._ended.remove(cursor, expired)
            for key, encoded in removed:
                job_id, status = id_and_status(encoded)
                self._by_status[status] -= 1
                self._orders.remove(encoded, key)
                self._changes.pop(JobId(job_id), None)
            if removed:
                self._counts = None
            yield

    def ended(self) -> Iterator[list[JobId]]:
        """Yield the jobs that are listed as ended, part by part; they may change meanwhile."""
        cursor: bytes | None = b""
        while cursor is not None:
            found, cursor = self._ended.ids(cursor)
            yield found

    def refresh(self, make: MakeLine) -> Iterator[None]:
        """Compute the lines that may have changed; `make` is called with the old line of each.

        Yields after each bounded part of the work. At the end every line that was marked at the beginning is computed.
        """
        marked = len(self._touched)
        for number in range(1, marked + 1):
            if not self._touched:  # another caller has computed some
                return
            job_id, _ = self._touched.popitem(last=False)
            line = make(job_id, self._live.get(job_id))
            if line is not None:
                self.put(line)
            elif self._live.get(job_id) is None:
                self._live.pop(job_id, None)
            if number % _COMPUTED_AT_ONCE == 0:
                yield

    def page(self, query: JobsQuery) -> JobsPage:
        """Return a page of the lines as they were last computed."""
        if query.order is not JobOrder.NEWEST:
            return self._ordered_page(query)
        after = b"" if query.after is None else key_of(query.after)
        live = ((key, self._live_line(key)) for key in self._order[bisect_right(self._order, after) :])
        both: Iterator[tuple[bytes, JobLine]] = (
            merge(live, self._ended.after(after), key=_first) if query.ended else live
        )
        if query.filter is not None:
            positions = ((position_of(key), line) for key, line in both)
            since_ms = query.filter.since_ms
            recent = takewhile(lambda item: item[0].start_ms >= since_ms, positions)
            return _filtered_page(recent, query.limit, query.filter)
        found = list(islice(both, query.limit + 1))
        more = len(found) > query.limit
        shown = found[: query.limit]
        return JobsPage(
            lines=tuple(line for _, line in shown), next=position_of(shown[-1][0]) if more and shown else None
        )

    def _ordered_page(self, query: JobsQuery) -> JobsPage:
        """Return a page in another order than that of the listing."""
        if query.order is JobOrder.OLDEST:
            found = self._oldest(query)
        else:
            found = self._by_value(query, VALUES[query.order.column])
        if query.filter is not None:
            return _filtered_page(found, query.limit, query.filter)
        shown = list(islice(found, query.limit + 1))
        more = len(shown) > query.limit
        del shown[query.limit :]
        return JobsPage(lines=tuple(line for _, line in shown), next=shown[-1][0] if more and shown else None)

    def _oldest(self, query: JobsQuery) -> Iterator[tuple[JobPosition, JobLine]]:
        before = None if query.after is None else key_of(query.after)
        keys = self._order if before is None else self._order[: bisect_left(self._order, before)]
        live: Iterator[tuple[bytes, JobLine]] = ((key, self._live_line(key)) for key in reversed(keys))
        ended = self._ended.before(before) if query.ended else ()
        return ((position_of(key), line) for key, line in merge(live, ended, key=_first, reverse=True))

    def _by_value(
        self, query: JobsQuery, compared: Callable[[JobSummary], SortValue]
    ) -> Iterator[tuple[JobPosition, JobLine]]:
        """Yield the lines behind a position."""
        descending = query.order.descending
        after = None if query.after is None else (value_of(query.order, query.after), key_of(query.after))
        if query.order.column in AS_LISTED_WHILE_LIVE:
            live = self._live_behind(after, compared, descending=descending)
        else:
            live = self._names.behind(after, descending=descending)
        ended = self._orders.of(query.order).behind(after, descending=descending) if query.ended else ()
        for value, key in merge(live, ended, reverse=descending):
            position = position_of(key)
            line = self._live.get(position.job_id) or self._ended.line(key)
            if line is not None:
                yield structs.replace(position, value=str(value)), line

    def _live_behind(
        self, after: tuple[SortValue, bytes] | None, compared: Callable[[JobSummary], SortValue], *, descending: bool
    ) -> Iterator[tuple[SortValue, bytes]]:
        """Yield the jobs that have not ended behind a position, in an order in which they are as in the listing."""

        def pair(key: bytes) -> tuple[SortValue, bytes]:
            return compared(self._live_line(key)), key

        count = len(self._order)
        if descending:
            last = count if after is None else bisect_left(self._order, after, key=pair)
            return (pair(self._order[index]) for index in range(last - 1, -1, -1))
        first = 0 if after is None else bisect_right(self._order, after, key=pair)
        return (pair(self._order[index]) for index in range(first, count))

    def sort_some(self, order: JobOrder) -> bool:
        """Find the places of some ended jobs in an order, before a page of it. False: all of them have theirs."""
        return order.column in VALUES and self._orders.sort_some(self._ended)

    def is_exact(self, query: JobsQuery, page: JobsPage) -> bool:
        """Return whether no job that belongs on the page can be missing."""
        if self.loaded_to_ms is None or not query.ended:
            return True
        if query.filter is not None and query.filter.since_ms >= self.loaded_to_ms:
            return True  # what started since then has ended since then
        if page.next is None:
            return False
        if query.order is JobOrder.LAST_ENDED:
            return int(page.next.value) >= self.loaded_to_ms  # they are loaded in this order
        return query.order is JobOrder.NEWEST and page.next.start_ms >= self.loaded_to_ms

    def counts(self) -> JobCounts:
        """Return how many jobs are in each state; the same object until some line changes."""
        if self._counts is None:
            self._counts = JobCounts(by_status=dict(self._by_status))
        return self._counts

    def changes(self, since: int) -> ListingChanges:
        """Return the lines that changed after a version. What was loaded or expired is no change."""
        if since < self._forgotten or since > self._version:
            return ListingChanges(version=self._version, complete=False)
        found: list[JobLine] = []
        for version, line in reversed(self._changes.values()):
            if version <= since:
                break
            found.append(line)
        return ListingChanges(version=self._version, lines=tuple(reversed(found)))

    def _put_ended(self, line: JobSummary) -> tuple[bytes, bytes | None]:
        """Set the line of an ended job; return it, encoded, and the one that it replaces."""
        encoded = encoded_line(line, line.end_ms)
        key = _key(line)
        replaced = self._ended.put(key, encoded)
        if replaced is not None:
            self._by_status[id_and_status(replaced)[1]] -= 1
            self._orders.remove(replaced, key)
        self._orders.note(key)
        self._by_status[line.status] += 1
        return encoded, replaced

    def _drop_live(self, job_id: JobId) -> None:
        old = self._live.pop(job_id, None)
        if old is not None:
            key = _key(old)
            del self._order[bisect_right(self._order, key) - 1]
            self._names.remove(VALUES["name"](old), key)
            self._by_status[old.status] -= 1

    def _changed(self, job_id: JobId, line: JobLine) -> None:
        self._version += 1
        self._counts = None
        self._changes.pop(job_id, None)
        self._changes[job_id] = (self._version, line)
        if len(self._changes) > MAX_CHANGES:
            _, (self._forgotten, _) = self._changes.popitem(last=False)

    def _live_line(self, key: bytes) -> JobSummary:
        line = self._live[position_of(key).job_id]
        assert line is not None  # noqa: S101  # a key is in the order as long as its job has a line
        return line


def _filtered_page(lines: Iterator[tuple[JobPosition, JobLine]], limit: int, selection: JobFilter) -> JobsPage:
    """Return the lines that a filter selects among the next ones, at most `MAX_SCANNED`."""
    shown: list[JobLine] = []
    last: JobPosition | None = None
    for scanned, (position, line) in enumerate(lines):
        if last is not None and (scanned == MAX_SCANNED or len(shown) == limit):
            return JobsPage(lines=tuple(shown), next=last)
        last = position
        is_recent = position.start_ms >= selection.since_ms
        if is_recent and position.job_id.startswith(selection.id_prefix) and is_selected(line, selection):
            shown.append(line)
    return JobsPage(lines=tuple(shown))


def _key(line: JobSummary) -> bytes:
    return key_of(JobPosition(start_ms=line.start_ms, job_id=line.job_id))


def _first(pair: tuple[bytes, JobLine]) -> bytes:
    return pair[0]
