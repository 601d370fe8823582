"""The embedded store as a whole: like the one in memory, whatever happens; and after SIGKILL."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from structlog.testing import capture_logs
from tests.contract.records import job_result, region_record, rows, snapshot, stored_job

from flintlock.ha.embedded.services import EmbeddedHaServices, embedded_ha
from flintlock.ha.protocols import Stores
from flintlock.model.errors import Corrupt, Refused, Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId
from flintlock.model.tasks import REGION_MOVES, RegionPhase
from flintlock.testing.fakes.memory_ha import MemoryCluster, MemoryHaServices

JOBS = st.sampled_from([JobId(letter * 32) for letter in "abc"])
KEYS = st.sampled_from(["k1", "k2", None])
TIMES = st.integers(0, 5)


async def opened(state_dir: Path, stack: AsyncExitStack) -> EmbeddedHaServices:
    services = embedded_ha(state_dir, new_session=lambda: "session", now_ms=lambda: 0)
    return await stack.enter_async_context(services)


async def answer_of(asked: Awaitable[object]) -> object:
    try:
        return await asked
    except Exception as error:  # noqa: BLE001  # what is raised is compared, too
        return type(error), str(error), getattr(error, "globally_terminated", None)


class EmbeddedIsLikeMemory(RuleBasedStateMachine):
    """Both give the same answers to the same requests, through changes of leader and reopenings."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.memory = MemoryHaServices(MemoryCluster(), "jm")
        self.stack = AsyncExitStack()
        self.token = FencingToken(Epoch(1), "session")
        self.phases: dict[tuple[JobId, int], RegionPhase] = {}
        self.embedded = self.runner.run(opened(Path(self.directory.name), self.stack))

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()
        self.directory.cleanup()

    def ask(self, question: Callable[[Stores], Awaitable[object]]) -> None:
        embedded, memory = self.embedded.stores(self.token), self.memory.stores(self.token)
        assert self.runner.run(answer_of(question(embedded))) == self.runner.run(answer_of(question(memory)))

    @rule(epoch=st.integers(1, 3), session=st.sampled_from("ab"))
    def follow_another_leader(self, epoch: int, session: str) -> None:
        self.token = FencingToken(Epoch(epoch), session)

    @rule()
    def reopen(self) -> None:
        async def again() -> EmbeddedHaServices:
            await self.stack.aclose()
            return await opened(Path(self.directory.name), self.stack)

        self.embedded = self.runner.run(again())

    @rule(job=JOBS, key=KEYS)
    def put(self, job: JobId, key: str | None) -> None:
        self.ask(lambda stores: stores.graphs.put(stored_job(job, key=key)))

    @rule(job=JOBS)
    def remove(self, job: JobId) -> None:
        self.ask(lambda stores: stores.graphs.remove(job))

    @rule(job=JOBS, reason=st.text(max_size=3))
    def quarantine(self, job: JobId, reason: str) -> None:
        self.ask(lambda stores: stores.graphs.quarantine(job, reason))

    @rule(job=JOBS)
    def restore(self, job: JobId) -> None:
        self.ask(lambda stores: stores.graphs.restore(job))

    @rule(job=JOBS, end_ms=TIMES)
    def discard_quarantined(self, job: JobId, end_ms: int) -> None:
        self.ask(lambda stores: stores.graphs.discard_quarantined(job_result(job, end_ms=end_ms)))

    @rule(job=JOBS, end_ms=TIMES)
    def create_dirty(self, job: JobId, end_ms: int) -> None:
        self.ask(lambda stores: stores.results.create_dirty(job_result(job, end_ms=end_ms)))

    @rule(job=JOBS)
    def mark_clean(self, job: JobId) -> None:
        self.ask(lambda stores: stores.results.mark_clean(job))

    @rule(job=JOBS, region=st.integers(0, 2), phase=st.sampled_from(RegionPhase))
    def record(self, job: JobId, region: int, phase: RegionPhase) -> None:
        before = self.phases.get((job, region))
        if before is not None and phase is not before and phase not in REGION_MOVES[before]:
            return  # the store in memory refuses it: no JobMaster records that
        self.phases[job, region] = phase
        self.ask(lambda stores: stores.progress.record(region_record(job, region=region, phase=phase)))

    @rule(job=JOBS)
    def forget_progress(self, job: JobId) -> None:
        self.phases = {key: phase for key, phase in self.phases.items() if key[0] != job}
        self.ask(lambda stores: stores.progress.remove(job))

    @rule(job=JOBS, end_ms=TIMES, names=st.sets(st.sampled_from(["top", "rest"])))
    def archive(self, job: JobId, end_ms: int, names: set[str]) -> None:
        kept = tuple(rows(name) for name in sorted(names))
        self.ask(lambda stores: stores.ended.put(snapshot(job, end_ms=end_ms), kept))

    @rule(before_ms=TIMES)
    def expire(self, before_ms: int) -> None:
        async def sorted_ids(stores: Stores) -> object:
            return sorted(await stores.ended.expire(before_ms))

        self.ask(sorted_ids)

    @rule(job=JOBS, key=st.sampled_from(["k1", "k2"]))
    def look(self, job: JobId, key: str) -> None:
        async def all_there_is(stores: Stores) -> object:
            return (
                sorted(await stores.graphs.ids()),
                sorted((job.job_id, job.reason) for job in await stores.graphs.quarantined()),
                await stores.graphs.key(key),
                await answer_of(stores.graphs.recover(job)),
                await stores.results.get(job),
                await stores.results.dirty(),
                await stores.progress.read(job),
                await stores.ended.get(job),
                await stores.ended.result(job, "top"),
                sorted([summary.job_id async for some in stores.ended.summaries() for summary in some]),
            )

        self.ask(all_there_is)


TestEmbeddedIsLikeMemory = EmbeddedIsLikeMemory.TestCase
TestEmbeddedIsLikeMemory.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


#: Puts job after job, 8 at a time, and says so after each acknowledgement.
PUTTING = """
import asyncio, sys, uuid
from pathlib import Path
from tests.contract.records import stored_job
from flintlock.ha.embedded.services import embedded_ha
from flintlock.model.ids import JobId

async def put_for_ever(graphs):
    while True:
        job_id = uuid.uuid4().hex
        await graphs.put(stored_job(JobId(job_id), key="key-" + job_id))
        print(job_id, flush=True)

async def main():
    async with embedded_ha(Path(sys.argv[1]), new_session=lambda: uuid.uuid4().hex, now_ms=lambda: 0) as ha:
        async for term in ha.election.terms():
            async with term as token, asyncio.TaskGroup() as tasks:
                for _ in range(8):
                    tasks.create_task(put_for_ever(ha.stores(token).graphs))

asyncio.run(main())
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("acknowledged", [1, 100])
async def test_what_was_acknowledged_survives_sigkill_and_the_next_leads_at_once(
    tmp_path: Path, acknowledged: int
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PUTTING, str(tmp_path), stdout=PIPE)
    seen: set[str] = set()
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while len(seen) < acknowledged:
                seen.add((await process.stdout.readline()).decode().strip())
            process.send_signal(signal.SIGKILL)
            # A last line without its end was being written when the process died.
            rest = (await process.stdout.read()).decode().split("\n")[:-1]
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert "" not in seen, "the process ended by itself"

    async with AsyncExitStack() as stack:
        services = await opened(tmp_path, stack)
        async with asyncio.timeout(10), await anext(services.election.terms()) as token:
            graphs = services.stores(token).graphs
            there = await graphs.ids()
            assert seen | set(rest) <= set(there)
            for job_id in there:
                assert await graphs.recover(job_id) == stored_job(job_id, key=f"key-{job_id}")
                assert await graphs.key(f"key-{job_id}") is not None
            assert token.epoch == 2


@pytest.mark.anyio
async def test_a_closed_store_is_unavailable(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        services = await opened(tmp_path, stack)
        stores = services.stores(FencingToken(Epoch(1), "session"))

    with pytest.raises(Unavailable, match="closed"):
        await stores.graphs.put(stored_job())
    with pytest.raises(Unavailable, match="closed"):
        await stores.graphs.ids()


@pytest.mark.anyio
async def test_closing_leaves_one_plain_file_that_any_sqlite_can_read(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        services = await opened(tmp_path, stack)
        await services.stores(FencingToken(Epoch(1), "session")).graphs.put(stored_job())

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["store.db"]
    connection = sqlite3.connect(tmp_path / "store.db")
    assert connection.execute("SELECT count(*) FROM job_graphs").fetchone() == (1,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.anyio
async def test_summaries_of_thousands_of_ended_jobs_read_no_snapshot(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        services = await opened(tmp_path, stack)
        ended = services.stores(FencingToken(Epoch(1), "session")).ended
        big = rows(json=bytes(10_000))
        await asyncio.gather(*(ended.put(snapshot(JobId(f"{n:032x}")), (big,)) for n in range(2_000)))

        assert len([line async for some in ended.summaries() for line in some]) == 2_000

    # Damage everything but the summaries: they must be readable still.
    connection = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    connection.execute("UPDATE ended_snapshots SET payload = x'00'")
    connection.execute("UPDATE ended_rows SET payload = x'00'")
    connection.close()
    async with AsyncExitStack() as stack:
        services = await opened(tmp_path, stack)
        ended = services.stores(FencingToken(Epoch(1), "session")).ended
        assert len([line async for some in ended.summaries() for line in some]) == 2_000


def test_a_used_state_directory_without_its_store_starts_empty_and_says_so(tmp_path: Path) -> None:
    async def start() -> None:
        async with (
            embedded_ha(tmp_path, new_session=lambda: "session", now_ms=lambda: 0) as services,
            await anext(services.election.terms()),
        ):
            pass

    with capture_logs() as logs:
        asyncio.run(start())
        asyncio.run(start())
    assert not [line for line in logs if line["event"] == "store-missing"]
    (tmp_path / "store.db").unlink()
    with capture_logs() as logs:
        asyncio.run(start())
    assert [line["log_level"] for line in logs if line["event"] == "store-missing"] == ["warning"]


def test_a_write_ahead_log_without_its_database_is_not_destroyed(tmp_path: Path) -> None:
    (tmp_path / "store.db-wal").write_bytes(b"committed transactions")

    async def start() -> None:
        async with embedded_ha(tmp_path, new_session=lambda: "session", now_ms=lambda: 0):
            pass

    with pytest.raises(Refused, match="put the file back"):
        asyncio.run(start())
    assert (tmp_path / "store.db-wal").read_bytes() == b"committed transactions"


def test_a_damaged_text_is_corrupt_and_not_unavailable(tmp_path: Path) -> None:
    async def read() -> None:
        async with embedded_ha(tmp_path, new_session=lambda: "session", now_ms=lambda: 0) as services:
            with sqlite3.connect(tmp_path / "store.db") as connection:
                connection.execute("INSERT INTO job_graphs VALUES (CAST(x'ff41' AS TEXT), x'00')")
            await services.stores(FencingToken(Epoch(1), "session")).graphs.ids()

    with pytest.raises(Corrupt, match="the store is damaged"):
        asyncio.run(read())
