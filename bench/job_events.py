"""How soon a stream of events begins, and how soon an open one tells of a new job."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from threading import Event
from time import perf_counter
from typing import Any, Final

import httpx

from bench.control_plane import SMALL_JOB
from bench.figures import Bound, Figure, percentile, spread
from flintlock.rest.events.stream import EVENT_INTERVAL_S

CONNECTIONS: Final = 20
SUBMISSIONS: Final = 40
#: A stream begins with the latest 1,000 ended jobs: ten of the pages of 100 jobs, each of which may take 5 ms.
FIRST_MS: Final = 50.0
#: Until the stream looks again, after an acknowledgement (15 ms) and one step of the loop (50 ms) at worst.
NEW_JOB_MS: Final = EVENT_INTERVAL_S * 1000 + 15 + 50


def job_events(client: httpx.Client, name: str, what: str) -> Iterator[Figure]:
    """Measure streams of a cluster that has listed all of its jobs. `name` and `what` say what is special about it."""
    first = spread([_first_event_ms(client) for _ in range(CONNECTIONS)])
    delays = _delays_ms(client)
    typical = spread(delays)
    yield Figure(
        name=f"first-event-{name}", what=f"GET /events -> first event, {what}, p50", value=first.median,
        low=first.low, high=first.high, samples=first.samples, unit="ms", bound=Bound(limit=FIRST_MS),
        against="absolute; the first events are those of the latest 1,000 ended jobs",
    )  # fmt: skip
    yield Figure(
        name=f"event-of-job-{name}", what=f"submission -> its event on an open stream, {what}, p95",
        value=percentile(delays, 0.95), low=typical.low, high=typical.high, samples=len(delays), unit="ms",
        bound=Bound(limit=NEW_JOB_MS),
        against=f"a stream looks every {EVENT_INTERVAL_S * 1000:g} ms; p50 {typical.median:.0f} ms",
    )  # fmt: skip


def events_in(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield the events of a stream: name and data. Comments are none."""
    name = data = ""
    for line in lines:
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data = value
        elif not line and name:
            yield name, data
            name = data = ""


def _first_event_ms(client: httpx.Client) -> float:
    begun = perf_counter()
    with client.stream("GET", "/events") as response:
        _next(events_in(response.raise_for_status().iter_lines()))
        return (perf_counter() - begun) * 1000


def _delays_ms(client: httpx.Client) -> list[float]:
    """Submit jobs at moments that have nothing to do with when the stream looks; return how long each event took."""
    random, pause, times = Random(1), Event(), list[float]()
    with client.stream("GET", "/events") as response:
        events = events_in(response.raise_for_status().iter_lines())
        while _next(events)[0] != "listed":
            pass
        for _ in range(SUBMISSIONS):
            pause.wait(random.uniform(0.0, EVENT_INTERVAL_S))
            begun = perf_counter()
            job: dict[str, Any] = client.post("/jobs", json=SMALL_JOB).raise_for_status().json()
            while job["jobid"] not in _next(events)[1]:
                pass
            times.append((perf_counter() - begun) * 1000)
    return times


def _next(events: Iterator[tuple[str, str]]) -> tuple[str, str]:
    found = next(events, None)
    if found is None:
        raise RuntimeError("the JobManager has ended a stream of events")
    return found
