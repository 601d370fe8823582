"""Operations during faults: users change what their running jobs may use, and every promise about that is checked.

Each change has a number that is higher than that of the change before it, so a stored requirement says which change it
is of. Promised is: an acknowledged operation gets one outcome, which never changes, however often it was triggered; one
that completed without a failure is in force at that moment; and a change that was acknowledged, or has completed, is
never replaced by an earlier one, which a new leader may have resumed. Some operations are savepoints instead: one that
completed without a failure has been made, under the name of its trigger id.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec import Struct

from flintlock.gateways.dispatcher import DispatcherGateway
from flintlock.ha import payloads
from flintlock.model.commands import (
    JobOperation,
    JobOperations,
    OperationQuery,
    OperationStatus,
    RescaleJob,
    StopJob,
    TriggerOperation,
    TriggerSavepoint,
)
from flintlock.model.errors import Conflict, Corrupt, FlintlockError, NotFound
from flintlock.model.ids import JobId, TriggerId
from flintlock.model.jobs import JobQuery
from flintlock.testing.fakes.memory_ha import MemoryCluster
from flintlock.testing.simulation.users.savepoints import SimulatedSavepoints

#: The number of a job's first change: more slots than there are, so that no job waits for what it can never have.
FIRST_CHANGE: Final = 100
_MOST: Final = 3


class DurableChanges:
    """Checks each write of operations and requirements against those before it."""

    def __init__(self, records: MemoryCluster) -> None:
        self.violations: Final[list[str]] = []
        self._records: Final = records
        self._operations: Final[dict[JobId, JobOperations]] = {}  # as they were seen last
        self._read: Final[dict[tuple[str, JobId], bytes]] = {}  # payloads that were checked
        self._latest: Final[dict[JobId, int]] = {}  # the latest change of each job that must not be replaced

    def acknowledge(self, job_id: JobId, change: int) -> None:
        """No earlier change may replace this one from now on."""
        self._latest[job_id] = max(change, self._latest.get(job_id, 0))

    def check(self) -> None:
        """Check what is stored now. Called after each write that took effect."""
        for job_id, payload in self._records.operations.items():
            if self._read.get(("operations", job_id)) != payload:
                self._read["operations", job_id] = payload
                self._check_operations(payloads.JOB_OPERATIONS.decode(payload, f"job {job_id}"))
        for job_id, payload in self._records.graphs.items():
            if self._read.get(("graphs", job_id)) != payload:
                self._read["graphs", job_id] = payload
                stored = self._stored_change(job_id)
                if stored is not None and stored < self._latest.get(job_id, 0):
                    self.violations.append(
                        f"change {self._latest[job_id]} of job {job_id} was replaced by the earlier {stored}"
                    )

    def _check_operations(self, stored: JobOperations) -> None:
        job_id = stored.job_id
        known = self._operations.get(job_id, JobOperations(job_id=job_id))
        ids = [each.trigger_id for each in stored.operations]
        twice = sorted({each for each in ids if ids.count(each) > 1})
        self.violations.extend(f"trigger {each} of job {job_id} has two records" for each in twice)
        for before in known.operations:
            now = stored.get(before.trigger_id)
            ended = before.status is OperationStatus.COMPLETED
            if now is None or (now.command, now.started_ms) != (before.command, before.started_ms):
                self.violations.append(f"operation {before.trigger_id} of job {job_id} was replaced: {now}")
            elif ended and now != before:
                self.violations.append(f"the outcome of {before.trigger_id} of job {job_id} has changed: {now}")
        self._operations[job_id] = stored
        for each in stored.operations:
            done = each.status is OperationStatus.COMPLETED and each.failure is None
            if done and isinstance(each.command, RescaleJob) and each != known.get(each.trigger_id):
                self._check_in_force(job_id, each)

    def _check_in_force(self, job_id: JobId, operation: JobOperation) -> None:
        change, stored = _change(operation), self._stored_change(job_id)
        if stored is not None and stored != change:
            self.violations.append(f"change {change} of job {job_id} has completed, but {stored} is stored")
        self.acknowledge(job_id, change)

    def _stored_change(self, job_id: JobId) -> int | None:
        """Return the change whose requirements are stored: 0 for none, None for a job that has ended or is damaged."""
        payload = self._records.graphs.get(job_id)
        if payload is None:
            return None
        try:
            ranges = payloads.STORED_JOB.decode(payload, f"job {job_id}").requirements.values()
        except Corrupt:
            return None
        return min((limits.upper for limits in ranges), default=0)


class ObservedOperation(Struct):
    """An operation that a user has triggered, and what the user was answered."""

    trigger: TriggerOperation
    acknowledged: JobOperation | None = None  # the first acknowledgement
    outcome: JobOperation | None = None  # as it was seen first


class OperatingUser(ABC):
    """Triggers operations of one job, each until it is acknowledged, and polls them until they have an outcome."""

    def __init__(
        self,
        random: Random,
        job_id: JobId,
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        self.violations: Final[list[str]] = []
        self._random: Final = random
        self._job_id: Final = job_id
        self._gateway: Final = gateway
        self._try_another: Final = try_another
        self._record: Final = record
        self._operations: Final[list[ObservedOperation]] = []

    async def check(self) -> None:
        """Check that each acknowledged operation still has the outcome that was seen first."""
        for operation in self._operations:
            await self._await_outcome(operation)

    async def _trigger(self, operation: ObservedOperation) -> None:
        """Trigger it until it is acknowledged, or the job has ended."""
        while True:
            try:
                answer = await self._gateway().trigger(operation.trigger)
            except Conflict:
                return  # the job has ended
            except NotFound:
                if not self._may_be_gone():
                    self.violations.append(f"job {self._job_id}: acknowledged, but not known when it was changed")
                return
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(self._random.uniform(0.05, 0.5))
                continue
            self._record(f"{_name(answer)} of {self._job_id} acknowledged: {answer.status}")
            first = operation.acknowledged = operation.acknowledged or answer
            if answer.started_ms != first.started_ms:
                self.violations.append(f"trigger {answer.trigger_id} is two operations: {first} and {answer}")
            return

    async def _await_outcome(self, operation: ObservedOperation) -> None:
        """Poll an acknowledged operation until it has an outcome, and compare that with what was seen before."""
        query = OperationQuery(job_id=self._job_id, trigger_id=operation.trigger.trigger_id)
        while operation.acknowledged is not None:
            try:
                answer = await self._gateway().operation(query)
            except NotFound:
                self.violations.append(f"{_name(operation.acknowledged)} {query.trigger_id}: acknowledged, not known")
                return
            except FlintlockError:
                self._try_another()
                await asyncio.sleep(0.5)
                continue
            if answer.status is OperationStatus.COMPLETED:
                known, first = operation.outcome, operation.outcome or answer
                operation.outcome = first
                if answer != first:
                    self.violations.append(f"{_name(answer)} {answer.trigger_id} was {first}, and now is {answer}")
                else:
                    await self._check_outcome(answer, is_new=known is None)
                return
            if operation.outcome is not None:
                self.violations.append(f"operation {query.trigger_id} had completed, and is in progress again")
                return
            await asyncio.sleep(0.5)

    def _may_be_gone(self) -> bool:
        """Return whether the job need not be known any more."""
        return False

    @abstractmethod
    async def _check_outcome(self, answer: JobOperation, *, is_new: bool) -> None:
        """Check what a completed operation promises; `is_new`: it is seen for the first time."""


class RescalingUser(OperatingUser):
    """Changes one job up to a few times: as operations, and in the end in some cases by a command that waits."""

    def __init__(
        self,
        random: Random,
        job_id: JobId,
        changes: DurableChanges,
        savepoints: SimulatedSavepoints,
        *,
        gateway: Callable[[], DispatcherGateway],
        try_another: Callable[[], None],
        record: Callable[[str], None],
    ) -> None:
        super().__init__(random, job_id, gateway=gateway, try_another=try_another, record=record)
        self._changes: Final = changes
        self._savepoints: Final = savepoints
        self._saving: Final = Random(f"savepoints-{job_id}")

    async def run(self) -> None:
        """Make the changes, one after another, until all are made or the job has ended; then wait for all outcomes."""
        count = self._random.randint(1, _MOST)
        for change in range(FIRST_CHANGE, FIRST_CHANGE + count):
            await asyncio.sleep(self._random.uniform(0.0, 3.0))
            operation = ObservedOperation(trigger=self._draw(change))
            self._operations.append(operation)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._random.choice([1, 1, 1, 2])):  # two processes of one user, with one trigger id
                    tasks.create_task(self._trigger(operation), name=f"trigger-{change}")
            if operation.acknowledged is None:
                break
            if self._random.random() < 0.5:
                await self._await_outcome(operation)
        else:
            if self._random.random() < 0.6:
                await self._change(FIRST_CHANGE + count)
        for operation in self._operations:
            await self._await_outcome(operation)

    def _draw(self, change: int) -> TriggerOperation:
        trigger_id = TriggerId(f"{self._random.getrandbits(128):032x}")
        if self._saving.random() < 0.3:
            return TriggerOperation(trigger_id=trigger_id, command=TriggerSavepoint(job_id=self._job_id))
        return TriggerOperation(trigger_id=trigger_id, command=RescaleJob(job_id=self._job_id, parallelism=change))

    async def _change(self, change: int) -> None:
        """Change the job and wait for the answer; repeat it until it is accepted, or the job has ended."""
        while True:
            try:
                await self._gateway().command(RescaleJob(job_id=self._job_id, parallelism=change))
            except Conflict as error:
                if "under way" not in error.public:
                    return  # the job has ended
            except FlintlockError:
                self._try_another()
            else:
                self._record(f"change {change} of {self._job_id} accepted")
                self._changes.acknowledge(self._job_id, change)
                return
            await asyncio.sleep(self._random.uniform(0.05, 0.5))

    async def _check_outcome(self, answer: JobOperation, *, is_new: bool) -> None:
        """Check that a savepoint is there, or that a change or a later one is in force in the job as it runs."""
        if answer.failure is not None:
            return
        if isinstance(answer.command, TriggerSavepoint):
            if not self._savepoints.has(answer.location):
                self.violations.append(f"savepoint {answer.trigger_id} has completed, but was never made")
            return
        change = _change(answer)
        try:
            required = await self._gateway().requirements(JobQuery(job_id=self._job_id))
        except FlintlockError:
            return  # the job has ended, or there is no leader
        if any(limits.upper < change for limits in required.vertices.values()):
            self.violations.append(f"change {change} of job {self._job_id} has completed, but is not in force")


def _change(operation: JobOperation) -> int:
    """Return the number of the change that an operation makes."""
    command = operation.command
    return (command.parallelism or 0) if isinstance(command, RescaleJob) else 0


def _name(operation: JobOperation) -> str:
    match operation.command:
        case RescaleJob():
            return f"change {_change(operation)}"
        case StopJob():
            return "stop"
        case _:
            return "savepoint"
