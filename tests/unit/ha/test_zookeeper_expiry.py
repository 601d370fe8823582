"""What the expiry of many ended jobs reads from ZooKeeper."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

from flintlock.ha.store_rules import SLICE
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.operations import Create
from flintlock.ha.zookeeper.records import ZooKeeperEndedJobStore
from flintlock.ha.zookeeper.storage.payload_files import payload_files
from flintlock.ha.zookeeper.writer import FencedWriter, Storage
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.testing.fakes.fake_zookeeper import FakeEnsemble, FakeLink
from flintlock.testing.simulation.network import SimulatedNetwork, SimulatedProcess
from flintlock.testing.virtual_time import virtual_time

PATHS = tree.Tree("/flintlock", "test")
SHARDS = ("00", "7f", "ff")
TOKEN = FencingToken(Epoch(1), "session")


class CountingLink(FakeLink):
    """Counts how often the children of each znode were listed."""

    def __init__(self, ensemble: FakeEnsemble, process: SimulatedProcess) -> None:
        super().__init__(ensemble, process)
        self.lists: Counter[str] = Counter()

    async def children(self, path: str) -> list[str]:
        self.lists[path] += 1
        return await super().children(path)


def _ensemble(jobs: list[JobId], end_ms: int) -> FakeEnsemble:
    """Return an ensemble with jobs that have ended, in three shards."""
    ensemble = FakeEnsemble(SimulatedNetwork(Random(1)), 10.0)
    for parent in (PATHS.ends, PATHS.ended, PATHS.results, PATHS.graphs, PATHS.dirty, PATHS.quarantine):
        for shard in SHARDS:
            ensemble.ensure(f"{parent}/{shard}")
    for parent in (PATHS.job_keys, PATHS.operations):
        ensemble.ensure(parent)
    ensemble.transact((Create(PATHS.epoch, tree.EPOCH.encode(tree.EpochRecord(epoch=Epoch(1), session="session"))),), 0)
    for job_id in jobs:
        pointer = tree.EndedPointer(end_ms=end_ms, summary=b"", snapshot="", rows={})
        made = (Create(PATHS.ended_job(job_id), tree.ENDED.encode(pointer)), Create(PATHS.job_end(job_id, end_ms)))
        assert ensemble.transact(made, 0) is None
    return ensemble


@virtual_time
async def test_many_expired_jobs_are_listed_once_and_not_again_for_each_part(tmp_path: Path) -> None:
    """With a list of everything for each part, the work grows with the square of what has expired."""
    jobs = [JobId(f"{SHARDS[number % 3]}{number:030x}") for number in range(SLICE + 40)]
    ensemble = _ensemble(jobs, end_ms=1_000)
    process = ensemble.network.process("a")
    link = CountingLink(ensemble, process)
    process.spawn(link.run(), "link")
    await link.connected()
    storage: Storage = Storage(
        link, PATHS, payload_files(str(tmp_path), "test"), FencedWriter(link, PATHS, lambda _: None)
    )
    store = ZooKeeperEndedJobStore(storage, TOKEN)
    ensemble.transact((Create(PATHS.graph(jobs[0])), Create(PATHS.dirty_mark(jobs[1]))), 0)

    calls: list[tuple[JobId, ...]] = []
    while not calls or calls[-1]:
        calls.append(await store.expire(2_000))

    assert [len(removed) for removed in calls] == [SLICE, 38, 0]
    assert {job_id for removed in calls for job_id in removed} == {*jobs[2:]}
    of_shards = {path: count for path, count in link.lists.items() if path.startswith(PATHS.ends)}
    assert of_shards == {PATHS.ends: 1, **{f"{PATHS.ends}/{shard}": 1 for shard in SHARDS}}
    assert max(link.lists.values()) == 1

    assert await store.expire(2_000) == ()  # another walk
    assert link.lists[PATHS.ends] == 2
