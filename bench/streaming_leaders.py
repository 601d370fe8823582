"""Twenty streaming jobs on one engine whose leader is killed: their batches go on as if nothing had happened."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.deployment import Deployment, embedded_deployment
from tests.cluster.processes import until

import flintlock as fl
from bench.figures import Bound, Figure, percentile

JOBS: Final = 20
EVERY_S: Final = 10  # the trigger of each of them
KILLS: Final = 3
WINDOW_S: Final = 3 * EVERY_S
UID: Final = "out-v1"
NOISE_MS: Final = 250  # by how much the latest of some sixty batches differs from one window to the next, as it is


class _Window(NamedTuple):
    """A time that begins just before a trigger; in some of them the leader is killed at once."""

    from_ms: float
    killed: bool


def twenty_streams() -> Iterator[Figure]:
    """Windows of the same length with and without a kill, in turn; every batch in all of them is looked at."""
    with tempfile.TemporaryDirectory(prefix="flintlock-bench-") as scratch, ExitStack() as leaving:
        deployment = embedded_deployment(Path(scratch, "cluster"), 2, taskmanagers=1, slots=JOBS)
        leaving.callback(deployment.close)
        for member in deployment.members:
            leaving.callback(member.end)
            member.start()
        until("a leader", deployment.leader, 60)
        until("all slots", lambda: deployment.serves(JOBS), 300)
        with fl.connect(deployment.urls, state_dir=deployment.home) as client:
            handles = [client.submit(_job(number)) for number in range(JOBS)]
            logs = [deployment.home / "checkpoints" / handle.id / UID for handle in handles]
            until("batches of all jobs", lambda: all(len(_triggered(log)) >= 3 for log in logs), 600)
            windows = [window for _ in range(KILLS) for window in (_pass(deployment, kill=False), _pass(deployment))]
            triggered = [_triggered(log) for log in logs]
            attempts = [len(region.attempts) for handle in handles for region in handle.attempts().regions]
            for handle in handles:
                handle.cancel()
    first, last = windows[0].from_ms, windows[-1].from_ms + WINDOW_S * 1000
    missing = sum(len(_missing(batches, first, last)) for batches in triggered)
    repeated = sum(count - 1 for count in attempts)
    yield Figure(
        name="streams-leader-killed", what=f"{JOBS} streaming jobs, leader killed: batches missing or repeated",
        value=missing + repeated, unit="batches", bound=Bound(limit=0), samples=sum(map(len, triggered)),
        against=f"absolute; {missing} triggers without a batch, {repeated} attempts that were started again, in "
        f"{KILLS} changes of leader",
    )  # fmt: skip
    late = {
        kill: [ms for window in windows if window.killed is kill for ms in _late(triggered, window)]
        for kill in (True, False)
    }
    yield Figure(
        name="streams-late", what=f"{JOBS} streaming jobs, leader killed: how much later the latest batch begins",
        value=max(late[True]) - max(late[False]), unit="ms", bound=Bound(limit=NOISE_MS), samples=len(late[True]),
        against="windows without a kill, in turn: after its trigger the latest batch begins "
        f"{max(late[False]):,.0f} ms without and {max(late[True]):,.0f} ms with a kill, the median "
        f"{percentile(late[False], 0.5):,.0f} and {percentile(late[True], 0.5):,.0f} ms",
    )  # fmt: skip


def _pass(deployment: Deployment, *, kill: bool = True) -> _Window:
    """Wait for a moment between two triggers, kill the leader or not, and let the window pass."""
    if not kill:
        until("a standby", lambda: deployment.answering() == len(deployment.jobmanagers), 60)
    pause = threading.Event()
    pause.wait(EVERY_S - time.time() % EVERY_S + 0.8 * EVERY_S)
    begun = time.time()
    found = until("a leader", deployment.leader, 60)
    if kill:
        found[0].kill()
    pause.wait(max(begun + WINDOW_S - time.time(), 0.0))
    if kill:
        until("the next leader", lambda: deployment.listing(found[1], besides=found[0]) is not None, 60)
        found[0].restore()
    return _Window(begun * 1000, kill)


def _job(number: int) -> fl.Job:
    job = fl.Job(f"stream-{number}", parallelism=1)
    events = job.source("events", format="rate", options={"rowsPerSecond": 1, "numPartitions": 1}, stream=True)
    job.sink("out", events, format="noop", uid=UID, trigger={"processingTime": f"{EVERY_S} seconds"})
    return job


def _triggered(checkpoint: Path) -> list[int]:
    """Return when each batch was begun, in milliseconds, as the offset log says; all of them have rows."""
    entries = [path.read_text().splitlines()[1] for path in (checkpoint / "offsets").glob("[0-9]*")]
    return sorted(int(json.loads(entry)["batchTimestampMs"]) for entry in entries)


def _missing(batches: list[int], first_ms: float, last_ms: float) -> set[int]:
    """Return the triggers between two times that have no batch: the one before them is begun at its own trigger."""
    every = EVERY_S * 1000
    return set(range(int(first_ms) // every + 1, int(last_ms) // every)) - {batch // every for batch in batches}


def _late(jobs: list[list[int]], window: _Window) -> list[float]:
    """Return how long after its trigger each batch of a window was begun, in milliseconds."""
    end_ms = window.from_ms + WINDOW_S * 1000
    return [ms % (EVERY_S * 1000) for batches in jobs for ms in batches if window.from_ms <= ms < end_ms]
