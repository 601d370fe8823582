"""Upgrades: a job takes the place of another one, or that goes on. Deaths of leaders: `test_upgrading_leaders`."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.unit.dispatcher.dispatcher_harness import A, B, DispatcherHarness, outcome_of, settle, until
from tests.unit.dispatcher.test_savepoints import STOP, streaming
from tests.unit.dispatcher.upgrade_harness import (
    BACK,
    LOCATION,
    ended,
    former_graph,
    other_upgrade,
    runner_of,
    running_of,
    snapshot,
    stopping,
    upgrade,
)

from flintlock.model.commands import CancelJob, OperationQuery, OperationStatus
from flintlock.model.errors import Conflict, DuplicateJob, Forbidden, Invalid, NotFound, Unavailable
from flintlock.model.ids import TriggerId, VertexId
from flintlock.model.jobs import JobQuery, JobSubmission, Submitted
from flintlock.model.states import JobStatus
from flintlock.testing.virtual_time import virtual_time


@virtual_time
async def test_a_job_begins_from_where_its_predecessor_was_stopped_and_both_name_each_other() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        assert runner_of(harness, B) is None, "it does not start before its predecessor has ended"
        former.finish()
        await running_of(harness, B)

        assert harness.savepoints.made == [(TriggerId(B), LOCATION)]
        assert harness.savepoints.restored == [B]
        stored = former_graph(harness, B)
        assert stored.name == former_graph(harness, B).name == (await snapshot(dispatcher, A)).graph.name
        assert stored.config["execution.state-recovery.path"] == LOCATION
        assert stored.config["execution.state-recovery.claim-mode"] == "CLAIM"
        assert (await snapshot(dispatcher, A)).successor == B
        assert (await snapshot(dispatcher, A)).status is JobStatus.FINISHED
        assert (await snapshot(dispatcher, B)).graph.config["execution.upgrade-of"] == A


@virtual_time
async def test_what_does_not_fit_is_refused_and_the_job_goes_on() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        harness.savepoints.refuse_with = Invalid("no query takes the state of 'files-v1'")
        former = former_graph(harness)
        assert isinstance(await outcome_of(dispatcher.submit_job(upgrade(former))), Invalid)
        harness.savepoints.refuse_with = None
        unknown = structs.replace(former, job_id=B, config={"execution.upgrade-of": "9" * 32})
        assert isinstance(await outcome_of(dispatcher.submit_job(JobSubmission(graph=unknown))), NotFound)
        restored = upgrade(former).graph
        restored = structs.replace(restored, config={**restored.config, "execution.state-recovery.path": "/s"})
        assert isinstance(await outcome_of(dispatcher.submit_job(JobSubmission(graph=restored))), Invalid)
        await settle()

        assert (runner.queries, [*harness.cluster.graphs]) == ([], [A])
        assert (await snapshot(dispatcher, A)).status is JobStatus.RUNNING


@virtual_time
async def test_a_job_that_is_being_stopped_is_not_upgraded_once_more() -> None:
    """A client that sends the same job again is answered that it is known."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopping(harness, dispatcher)
        assert isinstance(await outcome_of(dispatcher.submit_job(upgrade(former_graph(harness)))), DuplicateJob)
        assert isinstance(await outcome_of(dispatcher.submit_job(other_upgrade(former_graph(harness)))), Conflict)


@virtual_time
async def test_of_two_upgrades_that_are_compared_at_the_same_time_one_is_refused() -> None:
    """The other one is stored, and its predecessor is not being stopped yet."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        runner = await streaming(harness, dispatcher)
        former = former_graph(harness)
        harness.savepoints.proceed.clear()
        first = clients.create_task(outcome_of(dispatcher.submit_job(upgrade(former))))
        second = clients.create_task(outcome_of(dispatcher.submit_job(other_upgrade(former))))
        await settle()
        harness.savepoints.proceed.set()

        assert await first == Submitted(job_id=B)
        refusal = await second
        assert isinstance(refusal, Conflict)
        assert refusal.public == f"job {B} is taking the place of job {A} already"
        runner.finish()
        await running_of(harness, B)
        assert harness.savepoints.restored == [B]


@virtual_time
async def test_a_job_that_is_stopped_while_an_upgrade_is_compared_with_it_is_not_upgraded() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        await streaming(harness, dispatcher)
        harness.savepoints.proceed.clear()
        upgraded = clients.create_task(outcome_of(dispatcher.submit_job(upgrade(former_graph(harness)))))
        await settle()
        await dispatcher.trigger(STOP)
        harness.savepoints.proceed.set()

        assert isinstance(await upgraded, Conflict)
        assert [*harness.cluster.graphs] == [A]


@virtual_time
async def test_a_job_that_ends_while_an_upgrade_is_compared_with_it_is_not_upgraded() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher, asyncio.TaskGroup() as clients:
        runner = await streaming(harness, dispatcher)
        harness.savepoints.proceed.clear()
        upgraded = clients.create_task(outcome_of(dispatcher.submit_job(upgrade(former_graph(harness)))))
        await settle()
        runner.fail("no rows")
        await until(lambda: runner.status is JobStatus.FAILED)
        harness.savepoints.proceed.set()

        assert isinstance(await upgraded, Conflict)
        assert B not in harness.cluster.graphs


@virtual_time
async def test_a_job_whose_predecessor_cannot_be_stopped_fails_and_the_predecessor_runs_on() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        harness.savepoints.unprepared = Unavailable("the disk is full")
        await dispatcher.submit_job(upgrade(former_graph(harness)))
        failed = await ended(dispatcher, B)

        assert failed.status is JobStatus.FAILED
        assert failed.exceptions[-1].failure.message == f"job {A} could not be stopped: the disk is full"
        assert (runner.queries, (await snapshot(dispatcher, A)).status) == ([], JobStatus.RUNNING)
        await until(lambda: B not in dispatcher.jobs)
        harness.savepoints.unprepared = None
        await dispatcher.submit_job(other_upgrade(former_graph(harness)))
        await until(lambda: bool(runner.queries))


@virtual_time
async def test_a_job_whose_predecessor_has_failed_without_a_savepoint_fails_and_is_not_quarantined() -> None:
    """Under the next leader, too: it was never initialised, so nothing has changed that could be found out."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopping(harness, dispatcher)
    harness.job_masters.made.clear()
    harness.savepoints.fail_with = Invalid(f"{LOCATION} is not a savepoint")
    async with harness.leading() as dispatcher:
        (await running_of(harness, A)).fail("out of memory")

        assert (await ended(dispatcher, B)).status is JobStatus.FAILED
        await until(lambda: B not in dispatcher.jobs)
        assert not harness.cluster.quarantined


@virtual_time
async def test_a_job_that_is_cancelled_while_its_predecessor_stops_ends_and_never_starts() -> None:
    """Also under the next leader."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await stopping(harness, dispatcher)
    harness.job_masters.made.clear()
    async with harness.leading() as dispatcher:
        former = await running_of(harness, A)
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED
        former.finish()
        assert (await ended(dispatcher, A)).status is JobStatus.FINISHED
        assert harness.savepoints.made == [(TriggerId(B), LOCATION)], "a stop that was acknowledged is completed"
        assert runner_of(harness, B) is None


@virtual_time
async def test_a_job_that_is_cancelled_before_its_predecessor_stops_leaves_that_as_it_is() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        runner = await streaming(harness, dispatcher)
        await dispatcher.submit_job(upgrade(former_graph(harness)))
        await dispatcher.command(CancelJob(job_id=B))

        assert (await ended(dispatcher, B)).status is JobStatus.CANCELED
        assert not (await dispatcher.job_changes(JobQuery(job_id=A))).operations
        assert (runner.queries, (await snapshot(dispatcher, A)).status) == ([], JobStatus.RUNNING)


@virtual_time
async def test_a_job_that_fails_before_its_first_batch_is_followed_by_the_former_one() -> None:
    """From the same savepoint, under an id of its own, before the failure is durable."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await stopping(harness, dispatcher)).finish()
        (await running_of(harness, B)).fail("the state does not fit")
        await running_of(harness, BACK)
        await until(lambda: B not in dispatcher.jobs)

        failed, back = await snapshot(dispatcher, B), await snapshot(dispatcher, BACK)
        assert (failed.status, failed.successor) == (JobStatus.FAILED, BACK)
        assert (back.status, back.graph.rerun_of) == (JobStatus.RUNNING, A)
        assert back.graph.config["execution.state-recovery.path"] == LOCATION
        assert "execution.upgrade-of" not in back.graph.config
        assert harness.savepoints.restored == [B, BACK]
        assert {vertex.id for vertex in back.graph.vertices}.isdisjoint({VertexId(v.id) for v in failed.graph.vertices})


@virtual_time
async def test_a_job_that_has_committed_a_batch_is_not_followed_by_the_former_one() -> None:
    """It would process again what is in the sink already."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        (await stopping(harness, dispatcher)).finish()
        runner = await running_of(harness, B)
        harness.savepoints.progressed = True
        runner.fail("the state does not fit")
        await until(lambda: B not in dispatcher.jobs)

        assert (await snapshot(dispatcher, B)).successor == ""
        assert runner_of(harness, BACK) is None


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), Forbidden("it is not below /savepoints")])
def test_a_job_whose_way_back_cannot_be_found_out_fails_alone(error: Exception) -> None:
    @virtual_time
    async def scenario() -> None:
        harness = DispatcherHarness()
        async with harness.leading() as dispatcher:
            (await stopping(harness, dispatcher)).finish()
            runner = await running_of(harness, B)
            harness.savepoints.unreadable = error
            with capture_logs() as lines:
                runner.fail("the state does not fit")
                await until(lambda: B not in dispatcher.jobs)

            failed = await snapshot(dispatcher, B)
            assert (failed.status, failed.successor) == (JobStatus.FAILED, "")
            assert [line["reason"] for line in lines if line["event"] == "job-upgrade-not-reverted"] == [repr(error)]

    scenario()


@virtual_time
async def test_the_operation_that_stops_the_predecessor_is_found_by_the_id_of_the_new_job() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        former.finish()
        await running_of(harness, B)
        found = await dispatcher.operation(OperationQuery(job_id=A, trigger_id=TriggerId(B)))
        assert (found.status, found.location) == (OperationStatus.COMPLETED, LOCATION)


@virtual_time
async def test_the_former_job_does_not_take_its_sinks_back_once_more() -> None:
    """It began with that: again, it would be refused, because the failed job has the same sinks until it has ended."""
    harness = DispatcherHarness()
    config = {"execution.state-recovery.path": "/s/one", "execution.state-recovery.rewind-sinks": "true"}
    async with harness.leading() as dispatcher:
        former = await streaming(harness, dispatcher, config)
        await dispatcher.submit_job(upgrade(former_graph(harness)))
        await until(lambda: bool(former.queries))
        former.finish()
        (await running_of(harness, B)).fail("the state does not fit")
        await until(lambda: B not in dispatcher.jobs)

        assert (await snapshot(dispatcher, B)).successor == BACK
        assert "execution.state-recovery.rewind-sinks" not in former_graph(harness, BACK).config


@virtual_time
async def test_a_disk_that_is_full_for_a_while_delays_an_upgrade_and_leaves_none_without_a_job() -> None:
    """First the savepoint of the predecessor cannot be made, which no longer runs; then the new job not be restored."""
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await stopping(harness, dispatcher)
        harness.savepoints.fail_with = Unavailable("the disk is full")
        former.finish()
        await asyncio.sleep(5)
        harness.savepoints.fail_with = None
        await until(lambda: bool(harness.savepoints.made))
        harness.savepoints.fail_with = Unavailable("the disk is full")
        await asyncio.sleep(5)
        assert runner_of(harness, B) is None
        harness.savepoints.fail_with = None

        await running_of(harness, B)
        assert (await snapshot(dispatcher, A)).successor == B


@virtual_time
async def test_a_job_that_its_user_stops_too_names_its_successor() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        former = await streaming(harness, dispatcher)
        await dispatcher.submit_job(upgrade(former_graph(harness)))
        await dispatcher.trigger(STOP)
        await until(lambda: bool(former.queries))
        await settle()
        former.finish()
        await running_of(harness, B)

        operations = (await dispatcher.job_changes(JobQuery(job_id=A))).operations
        assert [each.trigger_id for each in operations] == [STOP.trigger_id, B]
        assert (await snapshot(dispatcher, A)).successor == B
