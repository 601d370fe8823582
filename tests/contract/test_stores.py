"""The contract of the stores, held against every implementation. Each test's name says what a docstring promises."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient
from msgspec import structs
from tests.contract.records import (
    JOB_A,
    JOB_B,
    access_tokens,
    graph,
    job_history,
    job_result,
    operation,
    operations,
    region_record,
    retention_reading,
    rows,
    savepoint_disposals,
    snapshot,
    stored_job,
)
from tests.zookeeper.servers import Ensemble

from flintlock.ha import payloads
from flintlock.ha.embedded.services import embedded_ha
from flintlock.ha.protocols import HaServices, KnownKey, Quarantined, Stores
from flintlock.ha.store_rules import batched
from flintlock.ha.zookeeper.services import zookeeper_ha
from flintlock.model.access.tokens import MAX_TOKEN_NAME, MAX_TOKENS, AccessTokens
from flintlock.model.commands import JobOperations
from flintlock.model.errors import (
    Conflict,
    Corrupt,
    DuplicateJob,
    Fenced,
    Invalid,
    InvariantBroken,
    KeyReused,
    NotFound,
)
from flintlock.model.ids import Epoch, FencingToken, JobId, TriggerId, VertexId
from flintlock.model.jobgraph import Scalar
from flintlock.model.jobs import JobSummary, ParallelismRange
from flintlock.model.streaming.savepoints import (
    MAX_DISPOSAL_MESSAGE,
    MAX_DISPOSALS,
    MAX_PATH_BYTES,
    SavepointDisposal,
    SavepointDisposals,
)
from flintlock.model.tasks import RegionPhase
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Place(Protocol):
    """Where records outlive processes."""

    async def open(self) -> HaServices:
        """Return the services of a process that starts now."""
        ...

    def damage(self, table: str, job_id: JobId) -> None:
        """Spoil a stored payload."""
        ...


class MemoryPlace:
    def __init__(self) -> None:
        self.cluster = MemoryCluster()

    async def open(self) -> HaServices:
        return MemoryHaServices(self.cluster, "jm")

    def damage(self, table: str, job_id: JobId) -> None:
        cluster = self.cluster
        match table:
            case "job_graphs":
                cluster.graphs[job_id] = cluster.graphs[job_id][:-1]
            case "job_results":
                cluster.results[job_id] = structs.replace(cluster.results[job_id], payload=b"\x01")
            case "region_records":
                for region, payload in cluster.progress[job_id].items():
                    cluster.progress[job_id][region] = b"\x63" + payload[1:]
            case "ended_jobs":
                cluster.ended[job_id] = structs.replace(cluster.ended[job_id], summary=b"")
            case "ended_snapshots":
                cluster.ended[job_id] = structs.replace(cluster.ended[job_id], snapshot=b"")
            case "job_operations":
                cluster.operations[job_id] = cluster.operations[job_id][:-1]
            case "ended_rows":
                cluster.ended[job_id].rows.update(dict.fromkeys(cluster.ended[job_id].rows, b"?"))
            case _:
                raise KeyError(table)


class EmbeddedPlace:
    def __init__(self, state_dir: Path, stack: AsyncExitStack) -> None:
        self._state_dir = state_dir
        self._stack = stack

    async def open(self) -> HaServices:
        services = embedded_ha(self._state_dir, new_session=lambda: "session", now_ms=lambda: 0)
        return await self._stack.enter_async_context(services)

    def damage(self, table: str, job_id: JobId) -> None:
        column = "summary" if table == "ended_jobs" else "payload"
        connection = sqlite3.connect(self._state_dir / "store.db", isolation_level=None)
        old: bytes = connection.execute(f"SELECT {column} FROM {table} WHERE job_id = ?", (job_id,)).fetchone()[0]
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE job_id = ?", (_one_bit_flipped(old), job_id))
        connection.close()


class ZooKeeperPlace:
    def __init__(self, quorum: str, storage_dir: Path, stack: AsyncExitStack) -> None:
        self._quorum = quorum
        self._cluster_id = uuid.uuid4().hex
        self._storage_dir = storage_dir
        self._stack = stack

    async def open(self) -> HaServices:
        services = zookeeper_ha(
            self._quorum,
            root="/flintlock",
            cluster_id=self._cluster_id,
            storage_dir=str(self._storage_dir),
            session_timeout_s=15,
            connection_timeout_s=15,
            new_session=lambda: "session",
            clock_s=time.monotonic,
        )
        return await self._stack.enter_async_context(services)

    def damage(self, table: str, job_id: JobId) -> None:
        folders = {"job_graphs": "graphs", "job_results": "results", "region_records": "progress"}
        if table == "ended_jobs":
            return self._damage_pointer(f"ended-jobs/{job_id[:2]}/{job_id}")
        if table == "job_operations":
            return self._damage_pointer(f"operations/{job_id[:2]}/{job_id}")
        of_job = (self._storage_dir / self._cluster_id / folders.get(table, "ended")).glob(f"{job_id}-*")
        kind = {"ended_snapshots": payloads.JOB_SNAPSHOT, "ended_rows": payloads.RESULT_ROWS}.get(table)
        for path in of_job:
            if kind is None or _decodes(kind, path.read_bytes()):
                path.write_bytes(_one_bit_flipped(path.read_bytes()))
        return None

    def _damage_pointer(self, path: str) -> None:
        client: Any = KazooClient(self._quorum)
        client.start()
        try:
            full = f"/flintlock/{self._cluster_id}/{path}"
            client.set(full, _one_bit_flipped(client.get(full)[0]))
        finally:
            client.stop()
            client.close()


def _decodes(kind: payloads.Payload[Any], stored: bytes) -> bool:
    try:
        kind.decode(stored, "test")
    except Corrupt:
        return False
    return True


def _one_bit_flipped(stored: bytes) -> bytes:
    return stored[:-1] + bytes([stored[-1] ^ 1])  # msgpack alone may not notice


@pytest.fixture(params=["memory", "embedded", "zookeeper"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Place]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryPlace()
        elif request.param == "embedded":
            yield EmbeddedPlace(tmp_path, stack)
        else:
            ensemble: Ensemble = request.getfixturevalue("zookeeper")
            yield ZooKeeperPlace(ensemble.quorum, tmp_path, stack)


@pytest.fixture
async def ha(place: Place) -> HaServices:
    return await place.open()


def token(epoch: int, session: str = "session") -> FencingToken:
    return FencingToken(Epoch(epoch), session)


@pytest.fixture
def stores(ha: HaServices) -> Stores:
    return ha.stores(token(5))


#: Every operation that writes; each would succeed on stores that `furnish` has filled.
WRITES: dict[str, Callable[[Stores], Awaitable[object]]] = {
    "graphs.put": lambda stores: stores.graphs.put(stored_job(JOB_B, key="other")),
    "graphs.replace": lambda stores: stores.graphs.replace(structs.replace(stored_job(key="key"), submitted_ms=2_000)),
    "graphs.remove": lambda stores: stores.graphs.remove(JOB_A),
    "graphs.quarantine": lambda stores: stores.graphs.quarantine(JOB_A, "unreadable"),
    "graphs.restore": lambda stores: stores.graphs.restore(JOB_Q),
    "graphs.discard_quarantined": lambda stores: stores.graphs.discard_quarantined(job_result(JOB_Q)),
    "results.create_dirty": lambda stores: stores.results.create_dirty(job_result(JOB_B)),
    "results.mark_clean": lambda stores: stores.results.mark_clean(JOB_A),
    "progress.record": lambda stores: stores.progress.record(region_record(phase=RegionPhase.FINISHED)),
    "progress.record_history": lambda stores: stores.progress.record_history(job_history()),
    "progress.remove": lambda stores: stores.progress.remove(JOB_A),
    "ended.put": lambda stores: stores.ended.put(snapshot(JOB_B), (rows(),)),
    "operations.put": lambda stores: stores.operations.put(JobOperations(job_id=JOB_A, operations=(operation(),))),
    "ended.expire": lambda stores: stores.ended.expire(10_000),
    "access_tokens.record": lambda stores: stores.access_tokens.record(access_tokens()),
    "disposals.record": lambda stores: stores.disposals.record(savepoint_disposals()),
    "retention_clock.record": lambda stores: stores.retention_clock.record(retention_reading()),
}


JOB_Q = JobId("d" * 32)


async def furnish(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key"))
    await stores.results.create_dirty(job_result())
    await stores.progress.record(region_record())
    await stores.operations.put(operations())
    old = JobId("c" * 32)
    await stores.ended.put(snapshot(old), (rows(),))
    await stores.graphs.put(stored_job(JOB_Q))
    await stores.graphs.quarantine(JOB_Q, "unreadable")


async def all_summaries(stores: Stores) -> tuple[JobSummary, ...]:
    """The summaries of all slices, in their order."""
    return tuple([summary async for some in stores.ended.summaries() for summary in some])


async def archive(stores: Stores, ends: list[tuple[JobId, int]]) -> None:
    """Store ended jobs, some at a time."""
    for some in batched(ends, 20):
        await asyncio.gather(*(stores.ended.put(snapshot(job_id, end_ms=end_ms), ()) for job_id, end_ms in some))


async def everything(stores: Stores) -> tuple[object, ...]:
    ids = await stores.graphs.ids()
    summaries = sorted(await all_summaries(stores), key=lambda summary: summary.job_id)
    jobs = sorted({*ids, *(summary.job_id for summary in summaries), JOB_A, JOB_B})
    return (
        sorted(ids),
        [await stores.graphs.recover(job_id) for job_id in sorted(ids)],
        await stores.graphs.quarantined(),
        await stores.graphs.key("key"),
        await stores.graphs.key("other"),
        [await stores.results.get(job_id) for job_id in jobs],
        await stores.results.dirty(),
        [await stores.progress.read(job_id) for job_id in jobs],
        [await stores.progress.read_history(job_id) for job_id in jobs],
        [await stores.ended.get(job_id) for job_id in jobs],
        [await stores.ended.result(job_id, "top") for job_id in jobs],
        summaries,
        sorted(await stores.operations.ids()),
        [await stores.operations.read(job_id) for job_id in jobs],
        await stores.retention_clock.read(),
        await stores.access_tokens.read(),
        await stores.disposals.read(),
    )


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_is_fenced_once_a_newer_epoch_has_written(ha: HaServices, name: str) -> None:
    await furnish(ha.stores(token(5)))
    await ha.stores(token(6)).progress.remove(JobId("f" * 32))
    before = await everything(ha.stores(token(6)))

    with pytest.raises(Fenced):
        await WRITES[name](ha.stores(token(5)))

    assert await everything(ha.stores(token(6))) == before


@pytest.mark.parametrize("name", WRITES)
async def test_of_two_sessions_with_one_epoch_the_first_wins(ha: HaServices, name: str) -> None:
    await furnish(ha.stores(token(5, "first")))
    before = await everything(ha.stores(token(5, "first")))

    with pytest.raises(Fenced):
        await WRITES[name](ha.stores(token(5, "second")))

    assert await everything(ha.stores(token(5, "first"))) == before


@pytest.mark.parametrize("name", WRITES)
async def test_a_higher_epoch_is_adopted_by_its_first_write(ha: HaServices, name: str) -> None:
    await furnish(ha.stores(token(5)))
    before = await everything(ha.stores(token(5)))

    await WRITES[name](ha.stores(token(6)))

    assert await everything(ha.stores(token(6))) != before, "the write has an effect, or the tests above show nothing"
    with pytest.raises(Fenced):
        await ha.stores(token(5)).progress.remove(JOB_A)


async def test_a_write_that_raises_changes_nothing_not_even_the_epoch(ha: HaServices) -> None:
    await ha.stores(token(5)).graphs.put(stored_job())

    with pytest.raises(DuplicateJob):
        await ha.stores(token(6)).graphs.put(stored_job())

    await ha.stores(token(5)).graphs.remove(JOB_A)


async def test_reads_are_open_to_a_leader_that_was_overtaken(ha: HaServices) -> None:
    await ha.stores(token(6)).graphs.put(stored_job())

    assert await ha.stores(token(5)).graphs.ids() == (JOB_A,)


async def test_a_write_that_returns_is_durable(place: Place) -> None:
    first = await place.open()
    await furnish(first.stores(token(5)))
    await first.stores(token(5)).graphs.put(stored_job(JOB_B))
    await first.stores(token(5)).graphs.quarantine(JOB_B, "unreadable")
    written = await everything(first.stores(token(5)))

    second = await place.open()

    assert await everything(second.stores(token(5))) == written
    with pytest.raises(Fenced):
        await second.stores(token(4)).graphs.remove(JOB_A)


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancelled_write_takes_place_as_a_whole_or_not_at_all(stores: Stores, turns: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        put = tasks.create_task(stores.graphs.put(stored_job(key="key")), name="put")
        for _ in range(turns):
            await asyncio.sleep(0)
        put.cancel()
    await stores.progress.remove(JOB_B)  # a write that comes later returns later

    if await stores.graphs.ids():
        assert await stores.graphs.recover(JOB_A) == stored_job(key="key")
        assert await stores.graphs.key("key") == KnownKey(job_id=JOB_A, digest="")
    else:
        assert await stores.graphs.key("key") is None


async def test_what_was_stored_does_not_change_with_what_was_passed_in(stores: Stores) -> None:
    params: dict[str, Scalar] = {"day": "monday"}
    job = structs.replace(stored_job(), graph=graph(JOB_A, params))
    await stores.graphs.put(job)

    params["day"] = "tuesday"

    assert (await stores.graphs.recover(JOB_A)).graph.params == {"day": "monday"}


# --- JobGraphStore


async def test_put_adds_a_job_together_with_its_key(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key", digest="digest"))

    assert await stores.graphs.recover(JOB_A) == stored_job(key="key", digest="digest")
    assert await stores.graphs.key("key") == KnownKey(job_id=JOB_A, digest="digest")
    assert await stores.graphs.key("another") is None


async def test_put_raises_duplicate_job_for_an_id_with_a_graph(stores: Stores) -> None:
    await stores.graphs.put(stored_job())

    with pytest.raises(DuplicateJob) as caught:
        await stores.graphs.put(stored_job(key="key"))

    assert not caught.value.globally_terminated
    assert await stores.graphs.recover(JOB_A) == stored_job()
    assert await stores.graphs.key("key") is None


@pytest.mark.parametrize("clean", [False, True])
async def test_put_raises_duplicate_job_globally_terminated_for_an_id_with_a_result(
    stores: Stores, clean: bool
) -> None:
    await stores.results.create_dirty(job_result())
    if clean:
        await stores.results.mark_clean(JOB_A)

    with pytest.raises(DuplicateJob) as caught:
        await stores.graphs.put(stored_job(key="key"))

    assert caught.value.globally_terminated
    assert await stores.graphs.ids() == ()
    assert await stores.graphs.key("key") is None


async def test_put_raises_duplicate_job_for_a_quarantined_id(stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    await stores.graphs.quarantine(JOB_A, "unreadable")

    with pytest.raises(DuplicateJob):
        await stores.graphs.put(stored_job())

    assert await stores.graphs.ids() == ()


@pytest.mark.parametrize("digest", ["same", "other"])
async def test_put_raises_key_reused_for_a_key_that_stands_for_another_job(stores: Stores, digest: str) -> None:
    await stores.graphs.put(stored_job(key="key", digest="same"))

    with pytest.raises(KeyReused):
        await stores.graphs.put(stored_job(JOB_B, key="key", digest=digest))

    assert await stores.graphs.ids() == (JOB_A,)
    assert await stores.graphs.key("key") == KnownKey(job_id=JOB_A, digest="same")


async def test_of_concurrent_puts_of_one_id_exactly_one_wins(stores: Stores) -> None:
    jobs = [stored_job(key=f"key-{n}", digest=str(n)) for n in range(20)]

    answers = await asyncio.gather(*(stores.graphs.put(job) for job in jobs), return_exceptions=True)

    (winner,) = [job for job, answer in zip(jobs, answers, strict=True) if answer is None]
    assert sum(isinstance(answer, DuplicateJob) for answer in answers) == 19
    assert await stores.graphs.recover(JOB_A) == winner
    known = [await stores.graphs.key(f"key-{n}") for n in range(20)]
    assert [key.digest for key in known if key] == [winner.digest]


async def test_of_concurrent_puts_with_one_key_exactly_one_wins(stores: Stores) -> None:
    jobs = [stored_job(JobId(f"{n:032x}"), key="key") for n in range(20)]

    answers = await asyncio.gather(*(stores.graphs.put(job) for job in jobs), return_exceptions=True)

    (winner,) = [job.graph.job_id for job, answer in zip(jobs, answers, strict=True) if answer is None]
    assert sum(isinstance(answer, KeyReused) for answer in answers) == 19
    assert await stores.graphs.ids() == (winner,)
    assert await stores.graphs.key("key") == KnownKey(job_id=winner, digest="")


async def test_replace_puts_a_job_in_the_place_of_what_is_stored_and_the_key_stays(stores: Stores) -> None:
    job = stored_job(JOB_A, key="k")
    await stores.graphs.put(job)
    changed = structs.replace(job, requirements={VertexId("v"): ParallelismRange(lower=1, upper=3)})

    await stores.graphs.replace(changed)

    assert await stores.graphs.recover(JOB_A) == changed
    assert await stores.graphs.ids() == (JOB_A,)
    known = await stores.graphs.key("k")
    assert known is not None
    assert known.job_id == JOB_A


async def test_replace_raises_not_found_and_adds_nothing(stores: Stores) -> None:
    with pytest.raises(NotFound):
        await stores.graphs.replace(stored_job(JOB_A))
    assert await stores.graphs.ids() == ()


async def test_ids_returns_all_stored_graphs_readable_or_not(place: Place, stores: Stores) -> None:
    await stores.graphs.put(stored_job(JOB_A))
    await stores.graphs.put(stored_job(JOB_B))

    place.damage("job_graphs", JOB_A)

    assert sorted(await stores.graphs.ids()) == [JOB_A, JOB_B]


async def test_recover_raises_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound, match=JOB_A):
        await stores.graphs.recover(JOB_A)


async def test_recover_raises_corrupt_naming_the_job(place: Place, stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    place.damage("job_graphs", JOB_A)

    with pytest.raises(Corrupt, match=JOB_A):
        await stores.graphs.recover(JOB_A)


async def test_remove_is_idempotent(stores: Stores) -> None:
    await stores.graphs.put(stored_job())

    await stores.graphs.remove(JOB_A)
    await stores.graphs.remove(JOB_A)

    assert await stores.graphs.ids() == ()


async def test_removing_a_graph_keeps_the_key_if_the_job_has_a_result(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key"))
    await stores.results.create_dirty(job_result())

    await stores.graphs.remove(JOB_A)

    assert await stores.graphs.key("key") == KnownKey(job_id=JOB_A, digest="")


async def test_removing_a_graph_removes_the_key_if_the_job_has_no_result(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key"))
    await stores.graphs.put(stored_job(JOB_B, key="other"))

    await stores.graphs.remove(JOB_A)

    assert await stores.graphs.key("key") is None
    assert await stores.graphs.key("other") is not None
    await stores.graphs.put(stored_job(JOB_A, key="key"))


async def test_quarantine_sets_a_graph_aside_with_its_reason(place: Place, stores: Stores) -> None:
    await stores.graphs.put(stored_job(JOB_A))
    await stores.graphs.put(stored_job(JOB_B))
    place.damage("job_graphs", JOB_A)

    await stores.graphs.quarantine(JOB_A, "unreadable")

    assert await stores.graphs.ids() == (JOB_B,)
    assert await stores.graphs.quarantined() == (Quarantined(job_id=JOB_A, reason="unreadable"),)
    with pytest.raises(NotFound):
        await stores.graphs.recover(JOB_A)


async def test_quarantine_is_idempotent_and_the_first_reason_stays(stores: Stores) -> None:
    await stores.graphs.put(stored_job())

    await stores.graphs.quarantine(JOB_A, "first")
    await stores.graphs.quarantine(JOB_A, "second")

    assert await stores.graphs.quarantined() == (Quarantined(job_id=JOB_A, reason="first"),)


async def test_quarantine_does_nothing_for_a_graph_that_is_not_there(stores: Stores) -> None:
    await stores.graphs.quarantine(JOB_A, "unreadable")

    assert await stores.graphs.quarantined() == ()
    await stores.graphs.put(stored_job())


async def test_removing_a_graph_leaves_a_quarantined_one(stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    await stores.graphs.quarantine(JOB_A, "unreadable")

    await stores.graphs.remove(JOB_A)

    assert [job.job_id for job in await stores.graphs.quarantined()] == [JOB_A]


async def quarantined(stores: Stores, *, clean: bool = True) -> None:
    """Quarantine a job that has run, and ended as FAILED."""
    await stores.graphs.put(stored_job(key="key"))
    await stores.progress.record(region_record())
    await stores.operations.put(operations())
    await stores.ended.put(snapshot(), (rows(),))
    await stores.graphs.quarantine(JOB_A, "no plan for this")
    await stores.results.create_dirty(job_result())
    if clean:
        await stores.results.mark_clean(JOB_A)


async def test_a_quarantined_graph_can_be_read(place: Place, stores: Stores) -> None:
    await quarantined(stores)

    assert await stores.graphs.read_quarantined(JOB_A) == stored_job(key="key")
    with pytest.raises(NotFound):
        await stores.graphs.read_quarantined(JOB_B)


async def test_restoring_a_quarantined_job_forgets_its_end_and_nothing_else(stores: Stores) -> None:
    await quarantined(stores)

    for _ in range(2):
        await stores.graphs.restore(JOB_A)

    assert await stores.graphs.recover(JOB_A) == stored_job(key="key")
    assert await stores.graphs.key("key") == KnownKey(job_id=JOB_A, digest="")
    assert await stores.progress.read(JOB_A) == (region_record(),)
    assert await stores.graphs.quarantined() == ()
    assert await stores.results.get(JOB_A) is None
    assert await stores.ended.get(JOB_A) is None
    assert await stores.operations.read(JOB_A) is None
    await stores.results.create_dirty(job_result())  # it can end again


async def test_a_job_without_a_result_can_be_restored_too(stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    await stores.graphs.quarantine(JOB_A, "unreadable")

    await stores.graphs.restore(JOB_A)

    assert await stores.graphs.ids() == (JOB_A,)


async def test_restoring_refuses_what_is_not_quarantined_or_not_cleaned_up(stores: Stores) -> None:
    with pytest.raises(NotFound):
        await stores.graphs.restore(JOB_A)
    await quarantined(stores, clean=False)
    with pytest.raises(Conflict):
        await stores.graphs.restore(JOB_A)
    assert [each.job_id for each in await stores.graphs.quarantined()] == [JOB_A]


@pytest.mark.parametrize("ended", [False, True])
async def test_discarding_a_quarantined_graph_leaves_a_dirty_result(stores: Stores, ended: bool) -> None:
    if ended:
        await quarantined(stores)
    else:
        await stores.graphs.put(stored_job())
        await stores.graphs.quarantine(JOB_A, "unreadable")
    result = structs.replace(job_result(), scratch=("work/a",))

    for _ in range(2):
        await stores.graphs.discard_quarantined(result)

    assert await stores.graphs.quarantined() == ()
    assert await stores.results.dirty() == (result,)
    await stores.results.mark_clean(JOB_A)
    await stores.graphs.discard_quarantined(result)
    assert await stores.results.dirty() == ()


async def test_a_quarantined_job_does_not_expire_until_it_is_discarded_and_cleaned_up(stores: Stores) -> None:
    await quarantined(stores)
    assert await stores.ended.expire(1_000_000_000_000_000) == ()

    await stores.graphs.discard_quarantined(job_result())
    assert await stores.ended.expire(1_000_000_000_000_000) == ()
    await stores.results.mark_clean(JOB_A)

    assert await stores.ended.expire(1_000_000_000_000_000) == (JOB_A,)
    assert await stores.graphs.key("key") is None


# --- JobResultStore


async def test_a_dirty_entry_becomes_clean_and_keeps_the_id_used(stores: Stores) -> None:
    await stores.results.create_dirty(job_result())
    assert await stores.results.dirty() == (job_result(),)

    await stores.results.mark_clean(JOB_A)

    assert await stores.results.dirty() == ()
    assert await stores.results.get(JOB_A) == job_result()


@pytest.mark.parametrize("clean", [False, True])
async def test_create_dirty_raises_invariant_broken_if_the_job_has_an_entry(stores: Stores, clean: bool) -> None:
    await stores.results.create_dirty(job_result())
    if clean:
        await stores.results.mark_clean(JOB_A)

    with pytest.raises(InvariantBroken):
        await stores.results.create_dirty(job_result(end_ms=9_999))

    assert await stores.results.get(JOB_A) == job_result()
    assert (await stores.results.dirty() == ()) is clean


async def test_marking_clean_twice_does_nothing(stores: Stores) -> None:
    await stores.results.create_dirty(job_result())

    await stores.results.mark_clean(JOB_A)
    await stores.results.mark_clean(JOB_A)

    assert await stores.results.get(JOB_A) == job_result()


async def test_mark_clean_raises_not_found_for_a_job_without_an_entry(stores: Stores) -> None:
    with pytest.raises(NotFound, match=JOB_A):
        await stores.results.mark_clean(JOB_A)


async def test_get_returns_none_for_a_job_without_an_entry(stores: Stores) -> None:
    assert await stores.results.get(JOB_A) is None


async def test_an_unreadable_dirty_entry_is_left_out_and_keeps_its_id_used(place: Place, stores: Stores) -> None:
    await stores.results.create_dirty(job_result(JOB_A))
    await stores.results.create_dirty(job_result(JOB_B))

    place.damage("job_results", JOB_A)

    assert await stores.results.dirty() == (job_result(JOB_B),)
    with pytest.raises(Corrupt, match=JOB_A):
        await stores.results.get(JOB_A)
    with pytest.raises(DuplicateJob):
        await stores.graphs.put(stored_job(JOB_A))


async def test_the_results_that_exist_are_known_dirty_or_clean_readable_or_not(place: Place, stores: Stores) -> None:
    asked = (JOB_A, JOB_B, JobId("c" * 32), *(JobId(f"{number:032x}") for number in range(1_200)))
    assert await stores.results.known(asked) == frozenset()
    assert await stores.results.known(()) == frozenset()
    await stores.results.create_dirty(job_result(JOB_A))
    await stores.results.create_dirty(job_result(JOB_B))
    await stores.results.mark_clean(JOB_A)
    place.damage("job_results", JOB_B)

    assert await stores.results.known(asked) == {JOB_A, JOB_B}
    assert await stores.results.known((JOB_B,)) == {JOB_B}


# --- JobProgressStore


async def test_the_ids_of_all_jobs_with_records_are_returned_once_each(stores: Stores) -> None:
    assert await stores.progress.ids() == ()
    for region in (0, 1):
        await stores.progress.record(region_record(JOB_A, region=region))
    await stores.progress.record(region_record(JOB_B))
    assert sorted(await stores.progress.ids()) == sorted((JOB_A, JOB_B))

    await stores.progress.remove(JOB_A)

    assert await stores.progress.ids() == (JOB_B,)


async def test_record_replaces_what_is_known_of_one_region(stores: Stores) -> None:
    await stores.progress.record(region_record(region=0))
    await stores.progress.record(region_record(region=1))

    await stores.progress.record(region_record(region=0, phase=RegionPhase.ACCEPTED, attempt=2))

    assert await stores.progress.read(JOB_A) == (
        region_record(region=0, phase=RegionPhase.ACCEPTED, attempt=2),
        region_record(region=1),
    )


async def test_read_returns_the_records_of_one_job_by_region(stores: Stores) -> None:
    for region in (10, 2, 0):
        await stores.progress.record(region_record(region=region))
    await stores.progress.record(region_record(JOB_B))

    assert [record.region for record in await stores.progress.read(JOB_A)] == [0, 2, 10]
    assert await stores.progress.read(JobId("c" * 32)) == ()


async def test_read_raises_corrupt_naming_the_job(place: Place, stores: Stores) -> None:
    await stores.progress.record(region_record())
    place.damage("region_records", JOB_A)

    with pytest.raises(Corrupt, match=JOB_A):
        await stores.progress.read(JOB_A)


async def test_forgetting_a_jobs_progress_is_idempotent_and_leaves_others_alone(stores: Stores) -> None:
    await stores.progress.record(region_record(JOB_A))
    await stores.progress.record(region_record(JOB_B))

    await stores.progress.remove(JOB_A)
    await stores.progress.remove(JOB_A)

    assert await stores.progress.read(JOB_A) == ()
    assert await stores.progress.read(JOB_B) == (region_record(JOB_B),)


# --- EndedJobStore


async def test_an_ended_job_is_kept_with_its_rows_and_its_line_in_the_listing(stores: Stores) -> None:
    await stores.ended.put(snapshot(), (rows("top"), rows("rest")))

    assert await stores.ended.get(JOB_A) == snapshot()
    assert await stores.ended.result(JOB_A, "rest") == rows("rest")
    assert await all_summaries(stores) == (snapshot().summary(),)


async def test_an_unknown_ended_job_or_result_is_none(stores: Stores) -> None:
    await stores.ended.put(snapshot(), (rows("top"),))

    assert await stores.ended.get(JOB_B) is None
    assert await stores.ended.result(JOB_A, "rest") is None
    assert await stores.ended.result(JOB_B, "top") is None


async def test_keeping_an_ended_job_again_replaces_it_rows_included(stores: Stores) -> None:
    await stores.ended.put(snapshot(end_ms=1), (rows("top"), rows("rest")))

    await stores.ended.put(snapshot(end_ms=2), (rows("top", json=b"{}"),))

    assert await stores.ended.get(JOB_A) == snapshot(end_ms=2)
    assert await stores.ended.result(JOB_A, "top") == rows("top", json=b"{}")
    assert await stores.ended.result(JOB_A, "rest") is None
    assert await all_summaries(stores) == (snapshot(end_ms=2).summary(),)


@pytest.fixture
def small_slice(monkeypatch: pytest.MonkeyPatch) -> int:
    """Make the slices of all stores small: hundreds of jobs would take a real ZooKeeper long."""
    for module in ("ha.embedded.stores", "ha.zookeeper.records", "testing.fakes.memory_ha"):
        monkeypatch.setattr(f"flintlock.{module}.SLICE", 40)
    return 40


async def test_ended_jobs_are_listed_in_slices_the_latest_end_first(stores: Stores, small_slice: int) -> None:
    """However many there are, a slice is small; those that end in the same millisecond are all listed, once."""
    count = small_slice + 30
    ends = [(JobId(f"{number:032x}"), number // 3) for number in range(count)]
    await archive(stores, ends)

    slices = [some async for some in stores.ended.summaries()]
    listed = [summary for some in slices for summary in some]

    assert len(slices) > 1
    assert all(len(some) <= small_slice for some in slices)
    assert [summary.end_ms for summary in listed] == sorted((end_ms for _, end_ms in ends), reverse=True)
    assert {summary.job_id for summary in listed} == {job_id for job_id, _ in ends}


async def test_expire_removes_a_bounded_number_of_jobs_until_none_is_left(stores: Stores, small_slice: int) -> None:
    """One call does not hold the store up, however many jobs have expired."""
    count = small_slice + 10
    jobs = [JobId(f"{number:032x}") for number in range(count)]
    await archive(stores, [(job_id, 1_000) for job_id in jobs])
    await stores.ended.put(snapshot(JOB_A, end_ms=3_000), ())

    removed: list[JobId] = []
    while some := await stores.ended.expire(2_000):
        assert len(some) <= small_slice
        removed += some

    assert sorted(removed) == jobs
    assert await all_summaries(stores) == (snapshot(JOB_A, end_ms=3_000).summary(),)


async def test_an_unreadable_line_is_left_out_of_the_listing(place: Place, stores: Stores) -> None:
    await stores.ended.put(snapshot(JOB_A), ())
    await stores.ended.put(snapshot(JOB_B), ())

    place.damage("ended_jobs", JOB_A)

    assert await all_summaries(stores) == (snapshot(JOB_B).summary(),)


async def test_an_unreadable_ended_job_or_result_raises_corrupt(place: Place, stores: Stores) -> None:
    await stores.ended.put(snapshot(), (rows("top"),))
    place.damage("ended_snapshots", JOB_A)
    place.damage("ended_rows", JOB_A)

    with pytest.raises(Corrupt, match=JOB_A):
        await stores.ended.get(JOB_A)
    with pytest.raises(Corrupt, match="top"):
        await stores.ended.result(JOB_A, "top")


async def test_expire_forgets_jobs_that_ended_before_with_their_clean_results_and_keys(stores: Stores) -> None:
    for job_id, end_ms in ((JOB_A, 1_000), (JOB_B, 2_000)):
        await stores.graphs.put(stored_job(job_id, key=f"key-{job_id}"))
        await stores.ended.put(snapshot(job_id, end_ms=end_ms), (rows(),))
        await stores.results.create_dirty(job_result(job_id, end_ms=end_ms))
        await stores.graphs.remove(job_id)
        await stores.results.mark_clean(job_id)

    assert await stores.ended.expire(2_000) == (JOB_A,)

    assert await stores.ended.get(JOB_A) is None
    assert await stores.ended.result(JOB_A, "top") is None
    assert await stores.results.get(JOB_A) is None
    assert await stores.graphs.key(f"key-{JOB_A}") is None
    assert await all_summaries(stores) == (snapshot(JOB_B, end_ms=2_000).summary(),)
    assert await stores.results.get(JOB_B) == job_result(JOB_B, end_ms=2_000)
    assert await stores.graphs.key(f"key-{JOB_B}") is not None
    await stores.graphs.put(stored_job(JOB_A, key=f"key-{JOB_A}"))


async def test_expire_goes_by_the_retention_clock_where_the_end_was_stamped_with_it(stores: Stores) -> None:
    """The wall clock was behind when A ended, and ahead when B did."""
    for job_id, end_ms, ended_at_ms in ((JOB_A, 1_000, 5_000), (JOB_B, 9_000, 2_000)):
        await stores.ended.put(structs.replace(snapshot(job_id, end_ms=end_ms), ended_at_ms=ended_at_ms), ())
        await stores.results.create_dirty(structs.replace(job_result(job_id, end_ms=end_ms), ended_at_ms=ended_at_ms))
        await stores.results.mark_clean(job_id)

    assert await stores.ended.expire(3_000) == (JOB_B,)
    assert await stores.ended.expire(6_000) == (JOB_A,)

    assert await all_summaries(stores) == ()
    assert await stores.results.known((JOB_A, JOB_B)) == frozenset()


async def test_job_that_is_archived_again_later_expires_by_the_later_time(stores: Stores) -> None:
    await stores.ended.put(structs.replace(snapshot(), ended_at_ms=2_000), ())
    await stores.ended.put(structs.replace(snapshot(), ended_at_ms=4_000), ())

    assert await stores.ended.expire(3_000) == ()
    assert await stores.ended.expire(5_000) == (JOB_A,)


async def test_history_is_read_as_it_was_recorded_last_beside_the_records(stores: Stores) -> None:
    await stores.progress.record_history(structs.replace(job_history(), failing=False))
    await stores.progress.record(region_record())
    await stores.progress.record_history(job_history())

    assert await stores.progress.read_history(JOB_A) == job_history()
    assert await stores.progress.read_history(JOB_B) is None
    assert await stores.progress.read(JOB_A) == (region_record(),)
    assert await stores.progress.ids() == (JOB_A,)


async def test_history_goes_with_the_progress_of_its_job(stores: Stores) -> None:
    """One that was never deployed has a history only."""
    await stores.progress.record_history(job_history())
    await stores.progress.record_history(job_history(JOB_B))
    assert sorted(await stores.progress.ids()) == [JOB_A, JOB_B]

    await stores.progress.remove(JOB_A)

    assert await stores.progress.read_history(JOB_A) is None
    assert await stores.progress.ids() == (JOB_B,)


async def test_retention_clock_is_read_as_it_was_recorded_last(ha: HaServices) -> None:
    assert await ha.stores(token(5)).retention_clock.read() is None

    await ha.stores(token(5)).retention_clock.record(retention_reading())
    later = structs.replace(retention_reading(), clock_ms=6_000)
    await ha.stores(token(6)).retention_clock.record(later)

    assert await ha.stores(token(6)).retention_clock.read() == later


async def test_access_tokens_are_read_by_the_next_leader_as_they_were_recorded_last(ha: HaServices) -> None:
    assert await ha.stores(token(5)).access_tokens.read() is None

    await ha.stores(token(5)).access_tokens.record(access_tokens())
    assert await ha.stores(token(6)).access_tokens.read() == access_tokens()
    fewer = AccessTokens(tokens=access_tokens().tokens[1:])
    await ha.stores(token(6)).access_tokens.record(fewer)

    assert await ha.stores(token(7)).access_tokens.read() == fewer


async def test_disposals_are_read_by_the_next_leader_as_they_were_recorded_last(ha: HaServices) -> None:
    assert await ha.stores(token(5)).disposals.read() is None

    await ha.stores(token(5)).disposals.record(savepoint_disposals())
    assert await ha.stores(token(6)).disposals.read() == savepoint_disposals()
    fewer = SavepointDisposals(disposals=savepoint_disposals().disposals[1:])
    await ha.stores(token(6)).disposals.record(fewer)
    assert await ha.stores(token(7)).disposals.read() == fewer


async def test_as_many_disposals_as_are_remembered_can_be_stored(stores: Stores) -> None:
    longest = SavepointDisposal(trigger_id=TriggerId("3" * 32), path="/" * MAX_PATH_BYTES)
    failed = longest.failed(Invalid("\N{GRINNING FACE}" * 2 * MAX_DISPOSAL_MESSAGE))
    many = SavepointDisposals(disposals=(failed,) * MAX_DISPOSALS)
    await stores.disposals.record(many)
    assert await stores.disposals.read() == many


async def test_as_many_access_tokens_as_are_allowed_can_be_stored(stores: Stores) -> None:
    longest = structs.replace(access_tokens().tokens[0], name="n" * MAX_TOKEN_NAME, created_by="c" * MAX_TOKEN_NAME)
    many = AccessTokens(tokens=(longest,) * MAX_TOKENS)
    await stores.access_tokens.record(many)
    assert await stores.access_tokens.read() == many


async def test_expire_keeps_a_job_whose_result_is_dirty(stores: Stores) -> None:
    await stores.ended.put(snapshot(), (rows(),))
    await stores.results.create_dirty(job_result())

    assert await stores.ended.expire(10_000) == ()

    assert await stores.results.dirty() == (job_result(),)
    assert await stores.ended.get(JOB_A) == snapshot()


async def test_expire_keeps_a_job_whose_graph_is_still_there(stores: Stores) -> None:
    await stores.graphs.put(stored_job(key="key"))
    await stores.ended.put(snapshot(), ())

    assert await stores.ended.expire(10_000) == ()

    assert await stores.graphs.key("key") is not None
    assert await stores.ended.get(JOB_A) == snapshot()


async def test_expire_forgets_a_clean_result_whose_job_was_never_archived(stores: Stores) -> None:
    await stores.results.create_dirty(job_result())
    await stores.results.mark_clean(JOB_A)

    assert await stores.ended.expire(10_000) == (JOB_A,)

    assert await stores.results.get(JOB_A) is None


# --- JobOperationStore


async def test_operations_are_read_as_they_were_put_last(stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    await stores.operations.put(JobOperations(job_id=JOB_A, operations=(operation(),)))
    await stores.operations.put(operations())

    assert await stores.operations.read(JOB_A) == operations()
    assert await stores.operations.read(JOB_B) is None
    assert await stores.operations.ids() == (JOB_A,)


async def test_operations_of_a_job_that_is_not_stored_are_refused(stores: Stores) -> None:
    with pytest.raises(NotFound, match=JOB_A):
        await stores.operations.put(operations())

    assert await stores.operations.ids() == ()


async def test_operations_outlive_the_graph_of_their_job(stores: Stores) -> None:
    await stores.graphs.put(stored_job())
    await stores.operations.put(JobOperations(job_id=JOB_A, operations=(operation(),)))
    await stores.results.create_dirty(job_result())
    await stores.graphs.remove(JOB_A)

    await stores.operations.put(operations())

    assert await stores.operations.read(JOB_A) == operations()


async def test_operations_go_with_their_job(stores: Stores) -> None:
    for job_id, end_ms in ((JOB_A, 2_000), (JOB_B, 20_000)):
        await stores.graphs.put(stored_job(job_id))
        await stores.operations.put(operations(job_id))
        await stores.ended.put(snapshot(job_id, end_ms=end_ms), ())
        await stores.results.create_dirty(job_result(job_id, end_ms=end_ms))
        await stores.graphs.remove(job_id)
        await stores.results.mark_clean(job_id)

    assert await stores.ended.expire(10_000) == (JOB_A,)

    assert await stores.operations.ids() == (JOB_B,)
    assert await stores.operations.read(JOB_A) is None


async def test_damaged_operations_are_corrupt_and_can_be_replaced(place: Place) -> None:
    stores = (await place.open()).stores(token(5))
    await stores.graphs.put(stored_job())
    await stores.operations.put(operations())
    place.damage("job_operations", JOB_A)

    with pytest.raises(Corrupt, match=JOB_A):
        await stores.operations.read(JOB_A)

    assert await stores.operations.ids() == (JOB_A,)
    await stores.operations.put(operations())
    assert await stores.operations.read(JOB_A) == operations()


async def test_cleanup_removes_every_record_and_what_comes_after_is_as_in_a_new_cluster(
    ha: HaServices, stores: Stores, place: Place
) -> None:
    empty = await everything(stores)
    await furnish(stores)
    await stores.graphs.put(stored_job(JOB_B))
    await stores.operations.put(operations(JOB_B))
    await stores.graphs.quarantine(JOB_B, "unreadable")

    await ha.cleanup_all_data(token(5))
    await ha.cleanup_all_data(token(5))  # idempotent

    assert await everything(stores) == empty
    assert await stores.graphs.quarantined() == ()
    assert await stores.operations.ids() == ()
    assert await stores.graphs.key("key") is None
    again = (await place.open()).stores(token(6))
    await furnish(again)
    assert await again.graphs.recover(JOB_A) == stored_job(key="key")


async def test_cleanup_is_refused_to_a_leader_that_was_succeeded(ha: HaServices, stores: Stores) -> None:
    await furnish(stores)
    before = await everything(stores)
    await ha.stores(token(6)).graphs.remove(JOB_B)  # the first write of the next term

    with pytest.raises(Fenced):
        await ha.cleanup_all_data(token(5))

    assert await everything(stores) == before


async def test_a_term_is_confirmed_until_a_newer_epoch_has_written(ha: HaServices) -> None:
    before = await everything(ha.stores(token(5)))

    await ha.stores(token(5)).confirm_term()
    await ha.stores(token(5)).confirm_term()

    assert await everything(ha.stores(token(5))) == before
    await ha.stores(token(6)).progress.remove(JobId("f" * 32))
    with pytest.raises(Fenced):
        await ha.stores(token(5)).confirm_term()
