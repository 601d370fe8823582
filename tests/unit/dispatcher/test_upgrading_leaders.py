"""Upgrades whose leader dies or is replaced: the next one goes on where it was."""

from __future__ import annotations

import pytest
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, graph, settle, until
from tests.unit.dispatcher.test_savepoints import streaming
from tests.unit.dispatcher.upgrade_harness import (
    BACK,
    LOCATION,
    ended,
    former_graph,
    runner_of,
    running_of,
    snapshot,
    stopping,
    upgrade,
)

from flintlock.dispatcher import core
from flintlock.ha import payloads
from flintlock.model.errors import Fenced, JobFailed, Unavailable
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobs import StoredJob
from flintlock.model.states import JobStatus
from flintlock.testing.virtual_time import virtual_time


@virtual_time
async def test_a_leader_that_is_replaced_while_it_goes_back_ends_its_term() -> None:
    harness = DispatcherHarness()

    async def term() -> None:
        async with harness.leading() as dispatcher:
            (await stopping(harness, dispatcher)).finish()
            harness.savepoints.unreadable = Fenced("a newer leader goes on")
            (await running_of(harness, B)).fail("the state does not fit")
            await until(lambda: B not in dispatcher.jobs)

    with pytest.raises(ExceptionGroup) as ended_by:
        await term()
    assert ended_by.group_contains(Fenced)
    assert B in harness.cluster.graphs


@virtual_time
async def test_the_next_leader_goes_on_with_an_upgrade_whose_leader_died_while_the_predecessor_stopped() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopping(harness, dispatcher)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        (await running_of(harness, A)).finish()
        await running_of(harness, B)

        assert harness.savepoints.made == [(TriggerId(B), LOCATION)]
        assert (await snapshot(dispatcher, A)).successor == B


def store_last(harness: DispatcherHarness, job_id: JobId) -> None:
    """Have a job recovered after more jobs than start in one turn of the loop."""
    last = harness.cluster.graphs.pop(job_id)
    for number in range(60):
        other = StoredJob(graph=graph(JobId(f"{number:032x}")), submitted_ms=1)
        harness.cluster.graphs[other.graph.job_id] = payloads.STORED_JOB.encode(other)
    harness.cluster.graphs[job_id] = last


def store_former_again(harness: DispatcherHarness) -> None:
    """Store the former job again, as a leader that goes back does before the end of the failed job is durable."""
    stored = payloads.STORED_JOB.decode(harness.cluster.graphs[B], "the job")
    assert stored.upgrade is not None
    again = core.former_again(stored.graph, stored.upgrade.former, stored.graph.config["execution.state-recovery.path"])
    harness.cluster.graphs[BACK] = payloads.STORED_JOB.encode(StoredJob(graph=again, submitted_ms=1))


@virtual_time
async def test_a_predecessor_that_is_recovered_long_after_its_successor_is_stopped_first() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopping(harness, dispatcher)
    store_last(harness, A)
    harness.job_masters.made.clear()
    async with harness.leading():
        former = await running_of(harness, A)
        await settle()
        assert runner_of(harness, B) is None
        former.finish()
        await running_of(harness, B)

        assert harness.savepoints.restored == [B]


@virtual_time
async def test_a_former_job_that_is_recovered_long_after_the_failed_one_is_not_submitted_again() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await stopping(harness, dispatcher)).finish()
        await running_of(harness, B)
    store_former_again(harness)
    store_last(harness, BACK)
    harness.job_masters.made.clear()
    harness.job_masters.fail_for[B] = JobFailed("no")
    seen = len(harness.faults.seen)
    async with harness.leading() as dispatcher:
        await running_of(harness, BACK)
        await until(lambda: B not in dispatcher.jobs)

        assert (await snapshot(dispatcher, B)).successor == BACK
        assert "graphs.put:before" not in harness.faults.seen[seen:]


@virtual_time
async def test_the_next_leader_starts_a_job_whose_predecessor_has_ended() -> None:
    """The leader died between the end of the one and the start of the other."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        await until(lambda: bool(harness.savepoints.made))
        harness.savepoints.proceed.clear()
        await until(lambda: A not in dispatcher.jobs)
    harness.savepoints.proceed.set()
    async with harness.leading():
        await running_of(harness, B)

        assert harness.savepoints.restored == [B]


@virtual_time
async def test_a_leader_that_died_after_it_had_gone_back_is_followed_by_one_that_does_so_once() -> None:
    """The former job was stored, the end of the failed one was not: that one is not run again, beside it."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await stopping(harness, dispatcher)).finish()
        await running_of(harness, B)
    store_former_again(harness)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        await running_of(harness, BACK)
        await until(lambda: B not in dispatcher.jobs)

        assert (await snapshot(dispatcher, B)).status is JobStatus.FAILED
        assert (await snapshot(dispatcher, B)).successor == BACK
        assert runner_of(harness, B) is None
        assert harness.savepoints.restored == [B, BACK]
        assert [each.job.graph.job_id for each in harness.job_masters.made].count(BACK) == 1


@virtual_time
async def test_the_next_leader_fails_a_job_whose_predecessor_could_not_be_stopped() -> None:
    """The leader died before that was durable. The job is not quarantined: it has never run."""
    harness = DispatcherHarness()
    harness.savepoints.unprepared = Unavailable("the disk is full")
    async with harness.leading() as dispatcher:
        await streaming(harness, dispatcher)
        harness.faults.hold("results.create_dirty:before")
        await dispatcher.submit_job(upgrade(former_graph(harness)))
        await until(lambda: "results.create_dirty:before" in harness.faults.seen)
    harness.faults.held.clear()
    async with harness.leading() as dispatcher:
        assert (await ended(dispatcher, B)).status is JobStatus.FAILED
        assert (await snapshot(dispatcher, A)).status is JobStatus.RUNNING
        assert not harness.cluster.quarantined
