"""What authentication costs: the same requests to a JobManager with and to one without it, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from bench.control_plane import SMALL_JOB
from bench.figures import Bound, Figure
from bench.load import closed_loop, http
from bench.servers import cluster

_ROUNDS = 15
_CLIENTS = 8
_OFF = ("security.authentication=none",)


def authentication() -> Iterator[Figure]:
    """GET /jobs/overview with 60 and 400 jobs and POST /jobs: with authentication, relative to without."""
    body = msgspec.json.encode(SMALL_JOB)
    submission, listing = http("POST", "/jobs", body), http("GET", "/jobs/overview")
    with cluster(taskmanagers=0) as protected, cluster(taskmanagers=0, settings=_OFF) as open_to_all:
        ports = {"with": protected.port, "without": open_to_all.port}
        stored = 0
        for jobs, requests in ((60, 1500), (400, 600)):
            for port in ports.values():
                closed_loop(port, lambda _: submission, connections=1, requests=jobs - stored, status=202)
                closed_loop(port, lambda _: listing, connections=_CLIENTS, requests=requests // 4, status=200)
            stored = jobs
            rates: dict[str, list[float]] = {name: [] for name in ports}
            for number in range(_ROUNDS):
                for name, port in _in_turns(ports, number):
                    load = closed_loop(port, lambda _: listing, connections=_CLIENTS, requests=requests, status=200)
                    assert load.failures == 0
                    rates[name].append(load.rate)
            ratios = [ours / bare for ours, bare in zip(rates["with"], rates["without"], strict=True)]
            yield Figure(
                name=f"authentication-overview-{jobs}",
                what=f"GET /jobs/overview, {jobs} jobs, 8 connections: rate with authentication / without",
                value=median(ratios), low=min(ratios), high=max(ratios), samples=_ROUNDS, unit="x",
                bound=Bound(limit=0.9, at_least=True),
                against=f"with {median(rates['with']):.0f}, without {median(rates['without']):.0f} a second, in turns",
            )  # fmt: skip
        times: dict[str, list[float]] = {name: [] for name in ports}
        for number in range(_ROUNDS):
            for name, port in _in_turns(ports, number):
                load = closed_loop(port, lambda _: submission, connections=1, requests=50, status=202)
                assert load.failures == 0
                times[name].append(median(load.latencies_s))
        ratios = [ours / bare for ours, bare in zip(times["with"], times["without"], strict=True)]
        yield Figure(
            name="authentication-acknowledgement",
            what="submission acknowledged, p50: time with authentication / without",
            value=median(ratios), low=min(ratios), high=max(ratios), samples=_ROUNDS * 50, unit="x",
            bound=Bound(limit=1.1),
            against=f"with {median(times['with']) * 1e3:.2f}, without {median(times['without']) * 1e3:.2f} ms",
        )  # fmt: skip


def _in_turns(ports: dict[str, int], number: int) -> list[tuple[str, int]]:
    """Return the servers of a round; each of them is first in every second one: what comes first may be at a loss."""
    found = list(ports.items())
    return found if number % 2 else found[::-1]
