"""One hunt: faults under work, then every promise is checked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final

from msgspec import Struct
from tests.chaos.deployment import Deployment, running_deployment
from tests.chaos.faults import Fault, inflict, kinds, schedule
from tests.chaos.loops import LoopDelay, LoopDelays, longest, loop_problems
from tests.chaos.machines import Permissions
from tests.chaos.pipelines import Pipeline
from tests.chaos.work import ENDED, Streams, Submissions
from tests.cluster.processes import until

#: Within which all members that served before a fault serve after it, by themselves. The engine of a TaskManager that
#: was killed before may have to start in this time, on a busy machine.
RECOVERY_S: Final = 300.0


class Outcome(Struct):
    """What came of a hunt."""

    acknowledged: int = 0
    takeovers_s: list[float] = []
    recoveries_s: list[float] = []  # after faults that end no process: until all that served before serve again
    longest_delay: LoopDelay | None = None  # of the event loop of a JobManager that was not frozen
    problems: list[str] = []


def hunt(
    home: Path,
    *,
    seed: int,
    faults: int,
    streams: int,
    batches: int,
    report: Callable[[str], None],
    permissions: Permissions | None = None,
    seconds: float = math.inf,
    pipelines: int = 0,
) -> Outcome:
    """Run a cluster with work on it, inflict faults, and wait for the end of all that was acknowledged.

    After so many seconds no further fault begins.
    """
    permitted = permissions or Permissions()
    random, outcome, delays = Random(seed), Outcome(), LoopDelays()
    with permitted.machines() as machines:
        slots = 2 + pipelines  # each has two queries, on two TaskManagers
        with running_deployment(home, machines=machines, slots=slots) as deployment, ExitStack() as arriving:
            saved = [arriving.enter_context(Pipeline(deployment, f"pipeline-{number}")) for number in range(pipelines)]
            for pipeline in saved:
                pipeline.submit()
            running = Streams(deployment, streams)
            running.submit()
            until("the streams", lambda: running.progressed(2) and all(min(each.batches()) >= 1 for each in saved), 300)
            begun = time.monotonic()
            with Submissions(deployment, every_s=1.0, most=batches) as submissions:
                for number, fault in enumerate(schedule(seed, faults, kinds(permitted)), start=1):
                    if time.monotonic() - begun > seconds:
                        break
                    delays.read(deployment)  # a process that the fault ends cannot be asked later
                    report(f"{number:3} {fault}{_inflict_and_check(deployment, fault, random, outcome)}")
            deployment.restore()
            running.end()
            outcome.problems += [problem for pipeline in saved for problem in pipeline.finish()]
            jobs = [*submissions.acknowledged, *running.ids, *(pipeline.id for pipeline in saved)]
            outcome.acknowledged = len(jobs)
            report(f"waiting for the end of {len(jobs)} jobs")
            until("all ends", lambda: _all_ended(deployment, jobs), 600, pause_s=0.5)
            outcome.problems += [*_problems(deployment, jobs), *submissions.problems(), *running.problems()]
            delays.read(deployment)
            outcome.longest_delay = longest(delays.found)
            outcome.problems += loop_problems(delays.found)
        outcome.problems += _left_behind(deployment)
    return outcome


def _inflict_and_check(deployment: Deployment, fault: Fault, random: Random, outcome: Outcome) -> str:
    """Inflict a fault; if no process may end in it, wait until all serve again. Return what there is to report."""
    slots = 0
    if not fault.ends_processes:
        _recover(deployment, deployment.slots if fault.concerns_task_managers else 0)
        slots = deployment.available_slots() or 0
    begun, before = time.monotonic(), deployment.pids()
    away_s = inflict(deployment, fault, random)
    shown = ""
    if away_s is not None:
        outcome.takeovers_s.append(away_s)
        shown += f", next leader's listing after {away_s:.2f} s"
    if not fault.ends_processes:
        outcome.recoveries_s.append(_recover(deployment, slots))
        shown += f", all members serve after {outcome.recoveries_s[-1]:.2f} s more"
        ended = [f"{fault}: {how}" for how in deployment.ended(before)]
        outcome.problems += ended
        shown += "".join(f", BROKEN: {problem}" for problem in ended)
    return f"{shown} ({time.monotonic() - begun:.1f} s)"


def _recover(deployment: Deployment, slots: int) -> float:
    """Wait until every JobManager answers and so many slots are there; return how long that took."""
    begun = time.monotonic()
    until(f"every JobManager and {slots} slots", lambda: deployment.serves(slots), RECOVERY_S, pause_s=0.2)
    return time.monotonic() - begun


def _left_behind(deployment: Deployment) -> list[str]:
    """Return the processes that have not ended with their members, on machines of their own."""
    try:
        until("the end of all processes", lambda: not deployment.processes(), 30)
    except TimeoutError:
        return [f"left behind: {process}" for process in deployment.processes()]
    return []


def _all_ended(deployment: Deployment, jobs: list[str]) -> bool:
    states = deployment.listing() or {}
    return all(states.get(job) in ENDED for job in jobs)


def _problems(deployment: Deployment, jobs: list[str]) -> list[str]:
    """Return which jobs did not finish, and which are listed though they were never acknowledged."""
    states = until("the listing", deployment.listing)
    found = [f"job {job} is {states.get(job)}" for job in jobs if states.get(job) != "FINISHED"]
    found += [f"job {job} was never acknowledged" for job in states if job not in jobs]
    return found
