"""What a JobMaster depends on. Entrypoints build the implementations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from flintlock.config.configuration import Configuration
from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.gateways.taskmanager import TaskManagerConnector
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import JobProgressStore
from flintlock.jobmaster.directory import JobMasterDirectory
from flintlock.jobmaster.enrichers import FailureEnricher
from flintlock.jobmaster.reporting.metrics import JobMasterMetrics
from flintlock.jobmaster.target_claims import TargetClaims
from flintlock.model.jobgraph import JobGraph
from flintlock.monitoring.current_job import CurrentJob

#: Returns whether a query of a job has a batch after the savepoint that the job began from. Raises Unavailable.
HasGoneOn: TypeAlias = Callable[[JobGraph], Awaitable[bool]]


async def never_gone_on(job: JobGraph) -> bool:  # noqa: ARG001 - no job begins from a savepoint
    """Return False."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMasterServices:
    """What the JobMasters of one term share."""

    progress: JobProgressStore
    resource_manager: ResourceManagerGateway
    task_managers: TaskManagerConnector
    directory: JobMasterDirectory
    clock_ms: Callable[[], int]
    random: Random
    configuration: Configuration
    work_dir: str  # contains a directory with the blocking results of each job
    checkpoints_dir: str = ""  # contains a directory with the checkpoints of each streaming job
    has_gone_on: HasGoneOn = never_gone_on
    enrichers: tuple[FailureEnricher, ...] = ()
    metrics: JobMasterMetrics | None = None
    claims: TargetClaims = field(default_factory=TargetClaims)  # which job writes to which path
    gate: LeaderGate = field(default_factory=LeaderGate)  # whether the leader may act at present
    current_job: CurrentJob = field(default_factory=CurrentJob)  # which job the loop works on
