"""How long the event loop of a JobManager stood still at worst: read from its metrics."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = re.compile(r"^flintlock_event_loop_longest_delay_seconds (\S+)$", re.MULTILINE)
_BUCKETS: Final = re.compile(r'^flintlock_event_loop_delay_seconds_bucket\{le="(\S+)"\} (\S+)$', re.MULTILINE)


def longest_delay_ms(metrics: str) -> float:
    """Return the longest delay since the process began, in milliseconds.

    The gauge has the longest one of the last minute or two. If there was a longer one before, the result is the upper
    end of its bucket in the histogram.
    """
    found = _LONGEST.search(metrics)
    if found is None:
        raise RuntimeError("the JobManager does not measure its event loop")
    latest, below, highest, counted = float(found[1]), 0.0, 0.0, 0.0
    for limit, count in _BUCKETS.findall(metrics):  # each counts the delays up to its limit
        if float(count) > counted:
            below, highest, counted = highest if counted else 0.0, float(limit), float(count)
    return (latest if latest > below else highest) * 1000
