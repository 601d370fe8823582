"""Twenty streaming jobs on one engine whose leader is killed: their batches go on as if nothing had happened.

A round is two windows of the same length, and in the second one the leader is killed shortly before a trigger. What a
trigger is compared by is its latest batch. Two maxima of the same distribution differ, and either may be the larger
one: the latest batch with a kill may therefore be later than the latest one without a kill by no more than triggers
without a kill differ from each other, in the same run.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.deployment import Deployment, embedded_deployment
from tests.cluster.processes import until

import flintlock as fl
from bench.figures import Bound, Figure, spread
from bench.member_delays import record_loop_delays

JOBS: Final = 20
EVERY_S: Final = 8  # the trigger of each of them
EVERY_MS: Final = EVERY_S * 1000
CALM_S: Final = 3.0  # after a trigger its batches have begun; as long before one, no JobManager is started
WINDOW: Final = 2  # triggers
#: How long before a trigger the leader is killed, in each round: its successor recovers while batches begin, or before.
KILLED_S: Final = (1.0, 0.1, 2.0, 0.0)
UID: Final = "out-v1"
NOISE_MS: Final = 250  # the bound is not higher, however much triggers differ: the machine is too busy to tell


class _Round(NamedTuple):
    """The numbers of the triggers in the two windows of a round; a trigger's number is its time in units of EVERY_S."""

    before: range
    killed: range


def twenty_streams() -> Iterator[Figure]:
    """Kill the leader in some rounds; every batch in all of their windows is looked at."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as leaving:
        deployment = embedded_deployment(Path(scratch, "cluster"), 2, taskmanagers=1, slots=JOBS)
        leaving.callback(deployment.close)
        for member in deployment.members:
            leaving.callback(member.end)
            member.start()
        until("a leader", deployment.leader, 60)
        until("all slots", lambda: deployment.serves(JOBS), 300)
        with fl.connect(deployment.urls, state_dir=deployment.home) as client:
            jobs = [client.submit(_job(number)).id for number in range(JOBS)]
        logs = [deployment.home / "checkpoints" / job / UID for job in jobs]
        until("batches of all jobs", lambda: all(len(_triggered(log)) >= 2 for log in logs), 600)
        rounds = [_kill(deployment, before_s) for before_s in KILLED_S]
        triggered = [_triggered(log) for log in logs]
        repeated = sum(_attempts(deployment, job) - 1 for job in jobs)
        until("a standby", lambda: deployment.answering() == len(deployment.jobmanagers), 60)
        record_loop_delays(deployment)
    counts = [Counter(batch // EVERY_MS for batch in batches) for batches in triggered]
    triggers = range(rounds[0].before.start, rounds[-1].killed.stop)
    missing = sum(count[trigger] == 0 for count in counts for trigger in triggers)
    undisturbed = sum(count[trigger] == 0 for count in counts for each in rounds for trigger in each.before)
    twice = sum(count[trigger] > 1 for count in counts for trigger in triggers)
    yield Figure(
        name="streams-leader-killed", what=f"{JOBS} streaming jobs, leader killed: batches missing or repeated",
        value=missing + twice + repeated, unit="batches", bound=Bound(limit=0), samples=sum(map(len, triggered)),
        against=f"absolute; {missing} triggers without a batch ({undisturbed} of them before a kill), {twice} with "
        f"two, {repeated} attempts that were started again, in {len(rounds)} changes of leader",
    )  # fmt: skip
    before = [_latest(triggered, trigger) for each in rounds for trigger in each.before]
    killed = [_latest(triggered, trigger) for each in rounds for trigger in each.killed]
    yield Figure(
        name="streams-late", what=f"{JOBS} streaming jobs, leader killed: how much later the latest batch begins",
        value=max(killed) - max(before), unit="ms", samples=len(killed),
        bound=Bound(limit=min(max(before) - min(before), NOISE_MS)),
        against=f"as many triggers before the kills, whose latest batches begin {min(before):,} to {max(before):,} ms "
        f"after them (median {spread(before).median:,.0f}); with a kill {min(killed):,} to {max(killed):,} ms "
        f"(median {spread(killed).median:,.0f}). The bound is the difference between the former two",
    )  # fmt: skip


def _kill(deployment: Deployment, before_s: float) -> _Round:
    """Let a window pass when all members have started; then kill the leader, and let another one pass."""
    until("a standby", lambda: deployment.answering() == len(deployment.jobmanagers), 60)
    leader, epoch = until("a leader", deployment.leader, 60)
    record_loop_delays(deployment)
    first = int((time.time() + CALM_S) / EVERY_S) + 1
    found = _Round(range(first, first + WINDOW), range(first + WINDOW, first + 2 * WINDOW))
    _wait_until(found.killed[0] * EVERY_S - before_s)
    leader.kill()
    until("the next leader", lambda: deployment.listing(epoch, besides=leader) is not None, WINDOW * EVERY_S)
    _wait_until(found.killed[-1] * EVERY_S + CALM_S)
    leader.restore()
    return found


def _wait_until(moment_s: float) -> None:
    threading.Event().wait(max(moment_s - time.time(), 0.0))


def _job(number: int) -> fl.Job:
    job = fl.Job(f"stream-{number}", parallelism=1)
    events = job.source("events", format="rate", options={"rowsPerSecond": 1, "numPartitions": 1}, stream=True)
    job.sink("out", events, format="noop", uid=UID, trigger={"processingTime": f"{EVERY_S} seconds"})
    return job


def _triggered(checkpoint: Path) -> list[int]:
    """Return when each batch was begun, in milliseconds, as the offset log says; all of them have rows."""
    entries = [path.read_text().splitlines()[1] for path in (checkpoint / "offsets").glob("[0-9]*")]
    return sorted(int(json.loads(entry)["batchTimestampMs"]) for entry in entries)


def _attempts(deployment: Deployment, job: str) -> int:
    # Not by the client that has submitted it: the addresses that it knows are those of JobManagers that were killed.
    return sum(len(region["attempts"]) for region in deployment.get(f"/jobs/{job}/attempts").json()["regions"])


def _latest(jobs: list[list[int]], trigger: int) -> int:
    """Return how long after a trigger the last batch of all jobs was begun, in milliseconds."""
    begun = (batch % EVERY_MS for batches in jobs for batch in batches if batch // EVERY_MS == trigger)
    return max(begun, default=EVERY_MS)
