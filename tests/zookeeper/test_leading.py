"""Leadership through ZooKeeper when connections, sessions and processes fail."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from tests.contract.records import JOB_A, JOB_B, region_record, stored_job
from tests.zookeeper.cluster_harness import LIMIT_S, ClusterHarness, running_cluster, until
from tests.zookeeper.servers import Ensemble
from tests.zookeeper.wire import Wire, wired

from flintlock.ha.leader_info import LeaderInfo
from flintlock.ha.payloads import checksum
from flintlock.ha.zookeeper import tree
from flintlock.ha.zookeeper.leadership_deadline import STEP_DOWN_AT
from flintlock.ha.zookeeper.operations import LinkState, SetData
from flintlock.ha.zookeeper.tree import Tree
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.errors import Fenced, Incompatible, Unavailable
from flintlock.model.ids import Epoch, FencingToken, JobId

pytestmark = pytest.mark.anyio

HELPER = Path(__file__).parent / "frozen_leader.py"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def harness(zookeeper: Ensemble, tmp_path: Path) -> AsyncGenerator[ClusterHarness]:
    async with running_cluster(zookeeper.quorum, tmp_path) as harness:
        yield harness


@pytest.fixture
async def wire(zookeeper: Ensemble) -> AsyncGenerator[Wire]:
    async with wired(zookeeper.servers[0].port) as wire:
        yield wire


async def test_the_session_timeout_is_what_the_ensemble_grants(harness: ClusterHarness) -> None:
    ha = await harness.process(timeout_s=500)

    assert ha.link.timeout_s == 20.0


async def test_cut_off_it_writes_nothing_and_back_in_time_with_its_session_it_goes_on(
    harness: ClusterHarness, wire: Wire
) -> None:
    ha = await harness.process(timeout_s=15, quorum=wire.address)
    leader = harness.contend(ha)
    await leader.until(lambda leader: leader.leads)
    session = ha.link.session

    wire.cut()
    await until("SUSPENDED", lambda: ha.link.state is LinkState.SUSPENDED)
    assert ha.election.paused(leader.tokens[0]) == "the connection to ZooKeeper is lost"
    with pytest.raises(Unavailable):
        await leader.stores.graphs.put(stored_job(JOB_A))
    wire.restore()
    await until("CONNECTED", lambda: ha.link.state is LinkState.CONNECTED)
    await leader.stores.graphs.put(stored_job(JOB_B))

    assert ha.election.paused(leader.tokens[0]) is None
    assert len(leader.tokens) == 1
    assert leader.leads
    assert ha.link.session == session
    assert await leader.stores.graphs.ids() == (JOB_B,), "what was refused is not sent later"


async def test_cut_off_for_good_it_steps_down_by_its_own_clock_before_another_leads(
    harness: ClusterHarness, wire: Wire
) -> None:
    timeout_s = 3.0
    old = harness.contend(await harness.process(timeout_s=timeout_s, quorum=wire.address))
    await old.until(lambda leader: leader.leads)
    new = harness.contend(await harness.process(timeout_s=timeout_s))

    cut_s = boot_time_s()
    wire.cut()
    await new.until(lambda leader: leader.leads)
    led_s = boot_time_s()

    assert not old.leads, "it stepped down before the session expired"
    assert old.ends_s[0] < led_s
    assert old.ends_s[0] - cut_s < timeout_s * STEP_DOWN_AT + 0.5
    with pytest.raises(Fenced):
        await old.stores.graphs.put(stored_job())


async def test_unanswered_it_steps_down_and_a_lost_answer_discards_no_payload(
    harness: ClusterHarness, wire: Wire
) -> None:
    ha = await harness.process(timeout_s=3, quorum=wire.address)
    leader = harness.contend(ha)
    await leader.until(lambda leader: leader.leads)
    await leader.stores.graphs.put(stored_job(JOB_A))
    beside = JobId("aa" + "b" * 30)  # in a shard that is there: one transaction does it

    wire.hold_answers()
    with pytest.raises(Unavailable):
        await leader.stores.graphs.put(stored_job(beside))
    await leader.until(lambda leader: not leader.leads)
    wire.cut()
    wire.restore()

    await leader.until(lambda leader: leader.leads)
    assert await leader.stores.graphs.ids() == (JOB_A, beside), "it had taken place"
    assert await leader.stores.graphs.recover(beside) == stored_job(beside)
    assert leader.tokens[1].epoch > leader.tokens[0].epoch


async def test_an_expired_session_ends_the_term_and_it_contends_again(harness: ClusterHarness) -> None:
    ha = await harness.process(timeout_s=15)
    leader = harness.contend(ha)
    await leader.until(lambda leader: leader.leads)
    await leader.stores.graphs.put(stored_job())

    await asyncio.to_thread(_expire, harness.quorum, ha)
    await leader.until(lambda leader: len(leader.tokens) == 2)

    assert leader.tokens[1].epoch > leader.tokens[0].epoch
    with pytest.raises(Fenced):
        await ha.stores(leader.tokens[0]).graphs.remove(JOB_A)
    assert await leader.stores.graphs.recover(JOB_A) == stored_job()


async def test_leader_information_is_written_once_and_vanishes_with_its_session(harness: ClusterHarness) -> None:
    ha, reader = await harness.process(timeout_s=3), await harness.process(timeout_s=15)
    leader = harness.contend(ha)
    await leader.until(lambda leader: leader.leads)
    published = LeaderInfo(token=leader.tokens[0], rpc="here:1", rest="http://here:2")
    await ha.leader.publish(published)
    path = tree.Tree("/flintlock", harness.cluster_id).leader
    written = await reader.link.get(path)
    assert written is not None

    await leader.stores.graphs.put(stored_job())  # leading, and beating, changes nothing of it
    assert await reader.link.get(path) == written
    assert await reader.leader.current() == published

    changed = asyncio.Event()
    assert await reader.link.exists(path, changed)
    await ha.link.close()
    async with asyncio.timeout(LIMIT_S):
        await changed.wait()
    assert await reader.leader.current() is None
    assert await reader.link.children(tree.Tree("/flintlock", harness.cluster_id).latches) == []


async def test_a_leader_that_goes_hands_over_at_once_and_its_jobs_are_known(harness: ClusterHarness) -> None:
    first, second = await harness.process(timeout_s=15), await harness.process(timeout_s=15)
    standby = None
    async with await anext(first.election.terms()) as token:
        standby = harness.contend(second)
        await first.stores(token).graphs.put(stored_job())
        assert not standby.leads

    async with asyncio.timeout(5):  # a third of the session timeout
        await standby.until(lambda leader: leader.leads)

    assert await standby.stores.graphs.recover(JOB_A) == stored_job()


async def test_a_leader_that_is_declared_dead_while_it_runs_steps_down_and_stands_by(harness: ClusterHarness) -> None:
    one = harness.contend(await harness.process(timeout_s=15))
    await one.until(lambda leader: leader.leads)
    second = harness.contend(await harness.process(timeout_s=15))

    async with asyncio.timeout(5):
        assert await second.ha.leader.declare_dead(one.tokens[0])
        await second.until(lambda leader: leader.leads)
        await one.until(lambda leader: not leader.leads)

    assert second.tokens[0].epoch > one.tokens[0].epoch


async def test_a_leader_whose_latch_is_gone_steps_down_though_no_other_process_leads(harness: ClusterHarness) -> None:
    leader = harness.contend(await harness.process(timeout_s=15))
    await leader.until(lambda leader: leader.leads)
    bystander = await harness.process(timeout_s=15)

    async with asyncio.timeout(5):
        assert await bystander.leader.declare_dead(leader.tokens[0])
        await leader.until(lambda leader: len(leader.tokens) == 2)

    assert not await bystander.leader.declare_dead(leader.tokens[0]), "it leads in another term now"


async def test_no_term_begins_for_a_candidate_whose_latch_has_gone_meanwhile(harness: ClusterHarness) -> None:
    leader = harness.contend(await harness.process(timeout_s=15))
    await leader.until(lambda leader: leader.leads)
    late: Any = await harness.process(timeout_s=15)

    assert await late.election._begin("candidate-0000000007") is None

    await leader.stores.graphs.put(stored_job())  # its epoch is still the highest


async def test_a_cluster_that_a_newer_version_has_led_is_refused_with_the_reason(harness: ClusterHarness) -> None:
    standby: Any = await harness.process(timeout_s=15)
    paths, body = Tree("/flintlock", harness.cluster_id), b"what only the newer version can read"
    newer = b"\x02" + checksum(2, body).to_bytes(4, "big") + body
    assert await standby.link.transact([SetData(paths.epoch, newer, -1)]) is None

    async with asyncio.timeout(30):
        with pytest.raises(Incompatible, match="written by a newer Flintlock"):
            await harness.process(timeout_s=15)  # one that starts
        with pytest.raises(Incompatible, match="written by a newer Flintlock"):
            await anext(standby.election.terms())  # one that was there before
        while await standby.link.children(paths.latches):  # noqa: ASYNC110  # nothing of ours blocks who can lead
            await asyncio.sleep(0.01)


async def test_a_killed_leader_is_replaced_at_once_when_it_is_declared_dead(harness: ClusterHarness) -> None:
    standby = await harness.process(timeout_s=15)
    async with helper(harness, timeout_s=15) as process:
        dead = await _token_of(process)
        info = await standby.leader.current()
        assert info is not None
        assert (info.token, info.rpc) == (dead, "helper:1")
        new = harness.contend(standby)
        process.kill()
        await process.wait()

        async with asyncio.timeout(5):
            assert await standby.leader.declare_dead(dead)
            await new.until(lambda leader: leader.leads)

    assert new.tokens[0].epoch > dead.epoch
    assert await standby.leader.current() is None


async def test_a_frozen_leader_is_replaced_and_fenced_when_it_wakes_up(harness: ClusterHarness) -> None:
    async with helper(harness, timeout_s=2) as process:
        old = await _token_of(process)
        await _line(process, "wrote")
        process.send_signal(signal.SIGSTOP)
        new = harness.contend(await harness.process(timeout_s=2))

        await new.until(lambda leader: leader.leads)
        await new.stores.progress.record(region_record(JOB_A, attempt=1 << 40))
        process.send_signal(signal.SIGCONT)
        lines = await _line(process, "over")

    after_waking = [line for line in lines if line.startswith("refused")]
    assert all(line.split()[1] in ("Fenced", "Unavailable") for line in after_waking)
    assert new.tokens[0].epoch > old.epoch
    (record,) = await new.stores.progress.read(JOB_A)
    assert record.attempt == 1 << 40, "nothing that the old leader wrote after waking has counted"


@asynccontextmanager
async def helper(harness: ClusterHarness, timeout_s: float) -> AsyncGenerator[Process]:
    """Run a process that leads, on its own."""
    arguments = (str(os.getpid()), harness.quorum, harness.cluster_id, str(harness.storage_dir), str(timeout_s))
    environment = {**os.environ, "PYTHONPATH": str(HELPER.parent.parent.parent)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HELPER), *arguments, stdout=PIPE, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _line(process: Process, wanted: str) -> list[str]:
    """Return what the process says up to a line that begins so."""
    assert process.stdout is not None
    lines: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        while line := (await process.stdout.readline()).decode().strip():
            lines.append(line)
            if line.startswith(wanted):
                return lines
    raise AssertionError(f"it ended without {wanted!r}: {lines[-5:]}")


async def _token_of(process: Process) -> FencingToken:
    _, epoch, session = (await _line(process, "leads"))[-1].split()
    return FencingToken(Epoch(int(epoch)), session)


def _expire(quorum: str, ha: Any) -> None:
    """Take the session over and close it: for ZooKeeper that is its end."""
    client: Any = KazooClient(quorum, client_id=ha.link._client.client_id)  # kazoo's own way to do this
    client.start()
    client.stop()
    client.close()
