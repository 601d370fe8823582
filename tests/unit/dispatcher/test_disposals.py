"""Savepoints that are removed: recorded before, once for each trigger id, and resumed by the next leader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import DispatcherHarness, outcome_of

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.model.errors import Conflict, Invalid, InvariantBroken, NotFound, Unavailable
from flintlock.model.ids import TriggerId
from flintlock.model.streaming.savepoints import (
    MAX_DISPOSALS,
    MAX_PATH_BYTES,
    DisposalQuery,
    DisposeSavepoint,
    SavepointDisposal,
)
from flintlock.testing.virtual_time import run_virtual, virtual_time

TRIGGER = TriggerId("1" * 32)
DISPOSE = DisposeSavepoint(trigger_id=TRIGGER, path="/s/one")


async def disposed(dispatcher: Dispatcher) -> SavepointDisposal:
    """Wait for the outcome of a disposal, as a client does."""
    for _ in range(1000):
        found = await dispatcher.disposal(DisposalQuery(trigger_id=TRIGGER))
        if found.completed:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the disposal never completed")


@virtual_time
async def test_a_savepoint_is_disposed_of_once_for_each_trigger_id() -> None:
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        both = [dispatcher.dispose_savepoint(DISPOSE) for _ in range(2)]
        assert not any(disposal.completed for disposal in await asyncio.gather(*both))
        assert not (await dispatcher.disposal(DisposalQuery(trigger_id=TRIGGER))).completed
        harness.savepoints.proceed.set()
        assert not (await disposed(dispatcher)).error
        assert (await dispatcher.dispose_savepoint(DISPOSE)).completed
        assert harness.savepoints.disposed == ["/s/one"]
        other = await outcome_of(dispatcher.dispose_savepoint(structs.replace(DISPOSE, path="/s/two")))
        assert isinstance(other, Conflict)
        unknown = await outcome_of(dispatcher.disposal(DisposalQuery(trigger_id=TriggerId("9" * 32))))
        assert isinstance(unknown, NotFound)


@virtual_time
async def test_a_savepoint_that_cannot_be_removed_is_an_outcome_with_the_reason() -> None:
    harness = DispatcherHarness()
    harness.savepoints.fail_with = Invalid("there is none")
    async with harness.leading() as dispatcher:
        await dispatcher.dispose_savepoint(DISPOSE)
        outcome = await disposed(dispatcher)

    assert (outcome.error, outcome.message) == ("Invalid", "there is none")


@virtual_time
async def test_a_disposal_of_what_is_no_savepoint_has_failed_at_once() -> None:
    harness = DispatcherHarness()
    harness.savepoints.undisposable = Invalid("there is none")
    async with harness.leading() as dispatcher:
        outcome = await dispatcher.dispose_savepoint(DISPOSE)

    assert (outcome.completed, outcome.error, outcome.message) == (True, "Invalid", "there is none")
    assert not harness.savepoints.asked
    async with harness.leading() as dispatcher:
        assert await dispatcher.disposal(DisposalQuery(trigger_id=TRIGGER)) == outcome


@virtual_time
async def test_a_disposal_that_was_acknowledged_is_carried_out_by_the_next_leader() -> None:
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        assert not (await dispatcher.dispose_savepoint(DISPOSE)).completed
    assert not harness.savepoints.disposed

    harness.savepoints.proceed.set()
    harness.savepoints.undisposable = Invalid("there is none")  # the former leader has removed it, in fact
    async with harness.leading() as dispatcher:
        assert not (await disposed(dispatcher)).error
        assert not (await dispatcher.dispose_savepoint(DISPOSE)).error
    assert harness.savepoints.disposed == ["/s/one"]


@virtual_time
async def test_a_disposal_that_is_triggered_while_a_leader_begins_is_carried_out_once() -> None:
    harness = DispatcherHarness()
    harness.faults.failing_once["disposals.read:before"] = Unavailable("no answer")
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        await dispatcher.dispose_savepoint(DISPOSE)
        await asyncio.sleep(60)
        harness.savepoints.proceed.set()
        await disposed(dispatcher)
        await asyncio.sleep(60)
    assert harness.savepoints.disposed == ["/s/one"]


@virtual_time
async def test_a_disposal_has_the_same_outcome_after_a_change_of_leader() -> None:
    harness = DispatcherHarness()
    harness.savepoints.fail_with = Unavailable("the disk is read-only")
    async with harness.leading() as dispatcher:
        await dispatcher.dispose_savepoint(DISPOSE)
        outcome = await disposed(dispatcher)

    async with harness.leading() as dispatcher:
        assert await dispatcher.disposal(DisposalQuery(trigger_id=TRIGGER)) == outcome
        assert await dispatcher.dispose_savepoint(DISPOSE) == outcome
    assert harness.savepoints.asked == 1


@virtual_time
async def test_only_the_latest_disposals_are_remembered() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        await dispatcher.dispose_savepoint(DISPOSE)
        await disposed(dispatcher)
        for number in range(MAX_DISPOSALS):
            await dispatcher.dispose_savepoint(structs.replace(DISPOSE, trigger_id=TriggerId(f"{number:032x}")))
        forgotten = await outcome_of(dispatcher.disposal(DisposalQuery(trigger_id=TRIGGER)))
        assert isinstance(forgotten, NotFound)
        assert await dispatcher.disposal(DisposalQuery(trigger_id=TriggerId(f"{0:032x}")))


@virtual_time
async def test_no_disposal_is_forgotten_while_it_is_in_progress() -> None:
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        for number in range(MAX_DISPOSALS):
            await dispatcher.dispose_savepoint(structs.replace(DISPOSE, trigger_id=TriggerId(f"{number:032x}")))
        assert isinstance(await outcome_of(dispatcher.dispose_savepoint(DISPOSE)), Conflict)


@virtual_time
async def test_a_path_of_a_savepoint_has_a_bound() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        longer = structs.replace(DISPOSE, path="/" + "a" * MAX_PATH_BYTES)
        assert isinstance(await outcome_of(dispatcher.dispose_savepoint(longer)), Invalid)


@virtual_time
async def test_a_disposal_whose_store_does_not_answer_counts_once_it_does() -> None:
    harness = DispatcherHarness()
    async with harness.leading() as dispatcher:
        harness.faults.failing_once["disposals.record:after"] = Unavailable("no answer")
        assert isinstance(await outcome_of(dispatcher.dispose_savepoint(DISPOSE)), Unavailable)
        assert (await dispatcher.dispose_savepoint(DISPOSE)).trigger_id == TRIGGER
        assert not (await disposed(dispatcher)).error
        assert harness.savepoints.disposed == ["/s/one"]


def test_a_disposal_is_completed_wherever_its_leader_dies() -> None:
    """After a death at any step of a store the next leader has an outcome for every disposal that was acknowledged."""

    async def dies_after(steps: int) -> bool:
        harness = DispatcherHarness()
        harness.faults.die_after(steps)
        acknowledged = False

        async def use() -> None:
            nonlocal acknowledged
            async with harness.leading() as dispatcher:
                await dispatcher.dispose_savepoint(DISPOSE)
                acknowledged = True
                await disposed(dispatcher)

        async with asyncio.TaskGroup() as tasks:
            using = tasks.create_task(outcome_of(use()), name="use")
            await asyncio.wait((using,), timeout=60)
            survived = using.done() and using.result() is None
            using.cancel()
        harness.faults.clear_death()
        async with harness.leading() as dispatcher:
            if not acknowledged:
                await dispatcher.dispose_savepoint(DISPOSE)
            assert not (await disposed(dispatcher)).error
        assert "/s/one" in harness.savepoints.disposed
        return survived

    steps = 0
    while not run_virtual(dies_after(steps)):
        steps += 1
        assert steps < 500
    assert steps > 4


@virtual_time
async def test_an_error_that_nobody_expects_is_the_outcome_and_ends_no_leader() -> None:
    """The disposal is durable: each leader that resumes it would end."""
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    harness.savepoints.fail_with = ValueError("embedded null byte")
    async with harness.leading() as dispatcher:
        assert not (await dispatcher.dispose_savepoint(DISPOSE)).completed
    harness.savepoints.proceed.set()
    async with harness.leading() as dispatcher:
        outcome = await disposed(dispatcher)
        assert outcome.message == "an error that Flintlock did not expect: ValueError('embedded null byte')"
        assert (await dispatcher.dispose_savepoint(DISPOSE)) == outcome


@virtual_time
async def test_a_path_whose_check_raises_what_nobody_expects_is_an_outcome_too() -> None:
    harness = DispatcherHarness()
    harness.savepoints.undisposable = RuntimeError("Symlink loop")
    async with harness.leading() as dispatcher:
        outcome = await dispatcher.dispose_savepoint(DISPOSE)
        assert (outcome.completed, "Symlink loop" in outcome.message) == (True, True)


@virtual_time
async def test_a_broken_invariant_ends_the_term_all_the_same() -> None:
    harness = DispatcherHarness()
    harness.savepoints.fail_with = InvariantBroken("a bug")

    async def use() -> None:
        async with harness.leading() as dispatcher:
            await dispatcher.dispose_savepoint(DISPOSE)
            await disposed(dispatcher)

    with pytest.raises(ExceptionGroup):
        await use()


@virtual_time
async def test_storage_that_does_not_answer_is_no_outcome() -> None:
    """It passes: what was recorded would be the answer to this trigger id for ever."""
    harness = DispatcherHarness()
    harness.savepoints.undisposable = Unavailable("Stale file handle")
    async with harness.leading() as dispatcher:
        assert isinstance(await outcome_of(dispatcher.dispose_savepoint(DISPOSE)), Unavailable)
        harness.savepoints.undisposable = None
        await dispatcher.dispose_savepoint(DISPOSE)
        assert not (await disposed(dispatcher)).error
    assert harness.savepoints.disposed == ["/s/one"]


@virtual_time
async def test_the_next_leader_removes_the_savepoint_that_was_there_and_no_other_one() -> None:
    harness = DispatcherHarness()
    harness.savepoints.proceed.clear()
    async with harness.leading() as dispatcher:
        await dispatcher.dispose_savepoint(DISPOSE)
    harness.savepoints.proceed.set()
    async with harness.leading() as dispatcher:
        await disposed(dispatcher)
    assert harness.savepoints.identities == ["identity of /s/one"]
