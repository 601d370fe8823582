"""Values that many streams look at, made once for all of them.

A stream asks for a value whenever it looks; it is made again only if the last one is older than the stream accepts, and
has a new version only if it differs. So the work is that of one stream, however many there are. A value that no stream
has asked for lately is dropped: documents can be large, and their streams end.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

_MOST_VALUES: Final = 1000
_UNUSED_S: Final = 60.0


class _Entry:
    """One value; the lock is held while it is made."""

    __slots__ = ("asked_s", "lock", "looked_s", "value", "version")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked_s = self.looked_s = -math.inf
        self.value: object = None
        self.version = 0


class SharedValues:
    """Values by key. The least recently used are dropped where there are too many."""

    def __init__(self) -> None:
        self._entries: Final[OrderedDict[str, _Entry]] = OrderedDict()
        self._version = 0  # of no value twice: one that was dropped and is made again has another one

    async def get(self, key: str, max_age_s: float, make: Callable[[], Awaitable[object]]) -> tuple[int, object]:
        """Return the version and the value of a key, at most so old. Raises what `make` raises."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            if len(self._entries) > _MOST_VALUES:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        clock_s = asyncio.get_running_loop().time
        entry.asked_s = clock_s()
        self._drop_unused(entry.asked_s)
        async with entry.lock:
            if clock_s() - entry.looked_s >= max_age_s:
                value = await make()
                if not entry.version or value != entry.value:
                    self._version += 1
                    entry.value, entry.version = value, self._version
                entry.looked_s = clock_s()
        return entry.version, entry.value

    def _drop_unused(self, now_s: float) -> None:
        while now_s - next(iter(self._entries.values())).asked_s > _UNUSED_S:
            self._entries.popitem(last=False)
