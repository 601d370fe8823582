"""One hunt: faults under work, then every promise is looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct
from tests.chaos.deployment import Deployment, running_deployment
from tests.chaos.faults import inflict, schedule
from tests.chaos.work import Streams, Submissions
from tests.cluster.processes import until

ENDED: Final = ("FINISHED", "FAILED", "CANCELED")


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a hunt."""

    acknowledged: int
    takeovers_s: tuple[float, ...]
    problems: tuple[str, ...]


def hunt(home: Path, *, seed: int, faults: int, streams: int, batches: int, report: Callable[[str], None]) -> Outcome:
    """Run a cluster with work on it, inflict faults, and wait for the end of all that was acknowledged."""
    with running_deployment(home) as deployment:
        running = Streams(deployment, streams)
        running.submit()
        until("the streams", lambda: running.progressed(2), 300)
        random, takeovers = Random(seed), list[float]()
        with Submissions(deployment, every_s=1.0, most=batches) as submissions:
            for number, fault in enumerate(schedule(seed, faults), start=1):
                begun = time.monotonic()
                away_s = inflict(deployment, fault, random)
                takeovers += [] if away_s is None else [away_s]
                shown = "" if away_s is None else f", next leader's listing after {away_s:.2f} s"
                report(f"{number:3} {fault}{shown} ({time.monotonic() - begun:.1f} s)")
        deployment.restore()
        running.end()
        jobs = [*submissions.acknowledged, *running.ids]
        until("all ends", lambda: _all_ended(deployment, jobs), 600)
        problems = [*_problems(deployment, jobs), *submissions.problems(), *running.problems()]
        return Outcome(acknowledged=len(jobs), takeovers_s=tuple(takeovers), problems=tuple(problems))


def _all_ended(deployment: Deployment, jobs: list[str]) -> bool:
    states = deployment.listing() or {}
    return all(states.get(job) in ENDED for job in jobs)


def _problems(deployment: Deployment, jobs: list[str]) -> list[str]:
    """Return which jobs did not finish, and which are listed though they were never acknowledged."""
    states = until("the listing", deployment.listing)
    found = [f"job {job} is {states.get(job)}" for job in jobs if states.get(job) != "FINISHED"]
    found += [f"job {job} was never acknowledged" for job in states if job not in jobs]
    return found
