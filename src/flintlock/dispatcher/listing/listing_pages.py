"""Pages of the listing as clients receive them: exact, and filled as far as bounded work finds jobs.

Without a filter a page costs what it contains. With one, jobs that it does not select are compared with it, some
hundred in one step of the event loop, and some ten thousand for one page; the position of the last one is the `next` of
a page that is not full.

In another order than that of the listing, the jobs that have ended since the last page in such an order are sorted
first: all of them at the first one. A page then costs what it contains, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import structs

from flintlock.dispatcher.listing.job_listing import JobListing
from flintlock.dispatcher.listing.listing_loader import ListingLoader
from flintlock.model.errors import Unavailable
from flintlock.model.jobs import JobLine, JobOrder, JobsPage, JobsQuery

MAX_PARTS: Final = 30
"""The parts of the listing that are searched for one page."""

MAX_SORTING_S: Final = 5.0
"""How long one request sorts ended jobs; the next one continues."""


class ListingPages:
    """Makes pages of a listing that is still being loaded. `refresh` computes the lines that may have changed."""

    def __init__(self, listing: JobListing, loader: ListingLoader, refresh: Callable[[], Awaitable[None]]) -> None:
        self._listing: Final = listing
        self._loader: Final = loader
        self._refresh: Final = refresh

    async def page(self, query: JobsQuery) -> JobsPage:
        """Return a page; waits until no ended job can be missing on it. Raises Unavailable while many are sorted."""
        await self._sort(query.order)
        page = await self._part(query)
        lines: list[JobLine] = [*page.lines]
        for _ in range(1, MAX_PARTS):
            if page.next is None or len(lines) >= query.limit:
                break
            await asyncio.sleep(0)
            page = await self._part(structs.replace(query, after=page.next, limit=query.limit - len(lines)))
            lines += page.lines
        return JobsPage(lines=tuple(lines), next=page.next)

    async def _sort(self, order: JobOrder) -> None:
        """Sort what has ended since the last page in an order; of many, as much as a client waits for."""
        clock_s = asyncio.get_running_loop().time
        until_s = clock_s() + MAX_SORTING_S
        while self._listing.sort_some(order):
            await asyncio.sleep(0)
            if clock_s() > until_s:
                raise Unavailable("the ended jobs are being sorted for the first time; try again")

    async def _part(self, query: JobsQuery) -> JobsPage:
        while True:
            await self._refresh()
            while self._listing.sort_some(query.order):  # those that have ended meanwhile are few
                pass
            page = self._listing.page(query)
            if self._listing.is_exact(query, page):
                return page
            await self._loader.progressed()
