"""The simulation's check of operations finds what it is there for: each promise, broken by hand."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.unit.dispatcher.dispatcher_harness import A, graph

from flintlock.ha import payloads
from flintlock.model.commands import JobOperation, JobOperations, OperationFailure, RescaleJob
from flintlock.model.ids import TriggerId
from flintlock.model.jobs import ParallelismRange, StoredJob
from flintlock.testing.fakes.memory_ha import MemoryCluster
from flintlock.testing.simulation.users.operations import DurableChanges

FAILURE = OperationFailure(error="Conflict", message="another change")


def operation(change: int, trigger: str = "1") -> JobOperation:
    return JobOperation(
        trigger_id=TriggerId(trigger * 32), command=RescaleJob(job_id=A, parallelism=change), started_ms=change
    )


class Records:
    """What is stored, and the check of it after each write."""

    def __init__(self) -> None:
        self._cluster = MemoryCluster()
        self.changes = DurableChanges(self._cluster)

    def store_requirements(self, change: int) -> None:
        ranges = {vertex.id: ParallelismRange(upper=change) for vertex in graph().vertices}
        job = StoredJob(graph=graph(), submitted_ms=0, requirements=ranges)
        self._cluster.graphs[A] = payloads.STORED_JOB.encode(job)
        self.changes.check()

    def store_operations(self, *operations: JobOperation) -> None:
        recorded = JobOperations(job_id=A, operations=operations)
        self._cluster.operations[A] = payloads.JOB_OPERATIONS.encode(recorded)
        self.changes.check()


@pytest.fixture
def records() -> Records:
    return Records()


def test_changes_that_follow_one_another_are_in_order(records: Records) -> None:
    records.store_operations(operation(100))
    records.store_requirements(100)
    records.store_operations(operation(100).completed(None, 5))
    records.store_requirements(101)
    records.store_operations(operation(100).completed(None, 5), operation(102, "2").completed(FAILURE, 6))

    assert records.changes.violations == []


def test_an_outcome_that_changes_is_found(records: Records) -> None:
    records.store_operations(operation(100).completed(FAILURE, 5))
    records.store_operations(operation(100).completed(None, 6))

    assert "the outcome of" in records.changes.violations[0]


def test_a_second_record_of_a_trigger_is_found(records: Records) -> None:
    records.store_operations(operation(100), operation(100))

    assert "has two records" in records.changes.violations[0]


def test_an_operation_that_is_lost_or_replaced_is_found(records: Records) -> None:
    records.store_operations(operation(100))
    records.store_operations(structs.replace(operation(100), started_ms=7))
    records.store_operations()

    assert [text.partition(": ")[0][-12:] for text in records.changes.violations] == ["was replaced", "was replaced"]


def test_a_completed_change_that_is_not_in_force_is_found(records: Records) -> None:
    records.store_requirements(99)
    records.store_operations(operation(100).completed(None, 5))

    assert "has completed, but 99 is stored" in records.changes.violations[0]


def test_a_later_change_that_an_earlier_one_replaces_is_found(records: Records) -> None:
    records.store_operations(operation(100))
    records.store_requirements(101)
    records.changes.acknowledge(A, 101)
    records.store_requirements(100)

    assert f"change 101 of job {A} was replaced by the earlier 100" in records.changes.violations
