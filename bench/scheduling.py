"""What the ResourceManager's core costs: heartbeats and allocation, with many TaskManagers and a long queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from bench.figures import Bound, Figure, Spread, spread
from flintlock.model.ids import AttemptId, InstanceId, JobId, RegionId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    AttemptSlots,
    Hardware,
    Heartbeat,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerRegistration,
)
from flintlock.resourcemanager.core import ResourceManagerCore, ResourceManagerEffect

SIZES: Final = (10, 100, 1000)
SLOTS: Final = 8
WAITING: Final = 10_000
INTERVAL_S: Final = 10.0
_VERSIONS: Final = Versions(flintlock="0", python="3", pyspark="4")
_ROUNDS: Final = {10: 200, 100: 30, 1000: 7}


class _Cluster:
    """A core with so many TaskManagers, all slots taken, and a queue behind them."""

    def __init__(self, size: int) -> None:
        self.core = ResourceManagerCore(_VERSIONS, 50.0)
        self.core.slots.begin(0.0)
        self.jobs = 0
        self.running: dict[JobId, None] = {}
        self.beats: list[Heartbeat] = []
        for number in range(size):
            name, instance = TaskManagerId(f"tm-{number}"), InstanceId(f"instance-{number}")
            hardware = Hardware(cpu_cores=SLOTS, physical_memory=64 << 30)
            self.core.register(
                TaskManagerRegistration(
                    id=name, instance=instance, address=f"{name}:1", slots=SLOTS, versions=_VERSIONS, hardware=hardware
                ),
                0.0,
            )
            attempts = tuple(
                AttemptSlots(attempt=AttemptId(job_id=JobId(f"{slot:032x}"), region=RegionId(0), attempt=0))
                for slot in range(SLOTS)
            )
            beat = Heartbeat(id=name, instance=instance, attempts=attempts, free_memory=1 << 30)
            self.beats.append(beat)
            known, _ = self.core.heartbeat(beat, 0.0)
            assert known
        for _ in range(size * SLOTS + WAITING):
            self.submit()
        assert self.core.slots.counts().waiting == WAITING
        assert self.core.slots.counts().free_slots == 0

    def submit(self) -> None:
        """Let one more job wait for a slot."""
        self.jobs += 1
        request = SlotRequest(id=RequestId("0-0"), slots=1)
        job_id = JobId(f"{self.jobs:032x}")
        self.note(self.core.declare(ResourceRequirements(job_id=job_id, requests=(request,)), 0))

    def note(self, effects: list[ResourceManagerEffect]) -> None:
        """Remember who got slots."""
        for effect in effects:
            if isinstance(effect, SlotGrant):
                self.running[effect.job_id] = None

    def heartbeat_round(self) -> None:
        """Handle one heartbeat of every TaskManager, and check which ones have timed out."""
        for beat in self.beats:
            self.core.heartbeat(beat, 1.0)
        self.core.on_tick(1.0)

    def allocation_round(self) -> None:
        """Let every job that runs end, each slot go to the next one, and as many jobs come as went."""
        ending = list(self.running)
        self.running.clear()
        for job_id in ending:
            self.note(self.core.declare(ResourceRequirements(job_id=job_id), 0))
            self.submit()
        assert len(self.running) == len(ending)


def scheduling() -> Iterator[Figure]:
    """One round of heartbeats and one of allocation, for 10, 100 and 1,000 TaskManagers with eight slots."""
    measured: dict[str, dict[int, Spread]] = {"heartbeat": {}, "allocation": {}}
    for size in SIZES:
        cluster = _Cluster(size)
        measured["heartbeat"][size] = _time(cluster.heartbeat_round, _ROUNDS[size])
        measured["allocation"][size] = _time(cluster.allocation_round, _ROUNDS[size])
    for kind, by_size in measured.items():
        smallest, largest = by_size[SIZES[0]], by_size[SIZES[-1]]
        each = ", ".join(f"{size}: {found.median / size * 1e6:.3g} us" for size, found in by_size.items())
        yield Figure(
            name=f"{kind}-round",
            what=f"a round of {kind}s, {SIZES[-1]:,} TaskManagers x {SLOTS} slots, {WAITING:,} jobs waiting",
            value=largest.median,
            low=largest.low,
            high=largest.high,
            samples=largest.samples,
            unit="s",
            bound=Bound(limit=INTERVAL_S / 10),
            against=f"a tenth of one core at an interval of {INTERVAL_S:g} s",
        )
        yield Figure(
            name=f"{kind}-growth",
            what=f"cost of {kind} rounds for each TaskManager, at {SIZES[-1]:,} against {SIZES[0]}",
            value=(largest.median / SIZES[-1]) / (smallest.median / SIZES[0]),
            unit="x",
            bound=Bound(limit=3),
            against=each,
        )


def _time(work: Callable[[], None], rounds: int) -> Spread:
    """Measure the processor's time: what else runs on the machine does not count."""
    work()
    times: list[float] = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return spread(times)
