"""Events of the JobMaster's core (past tense) and its effects (imperative).

Messages of the gateways are events as they are (`ClusterMessage`). Time and randomness come with each step as a
`StepContext`; a timer is an effect that names the event to deliver later. The core ignores events that come too late,
so timers are never cancelled.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from flintlock.model.commands import CancelTask
from flintlock.model.ids import AttemptId, InstanceId, RegionId
from flintlock.model.jobs import JobHistory, ParallelismRange
from flintlock.model.slots import DeployedTasks, NoResources, ResourceRequirements, SlotGrant, TaskManagerLost
from flintlock.model.streaming.checkpoints import StateRescale
from flintlock.model.tasks import DeployTask, Failure, PublishFiles, RegionRecord, TaskReport


class StepContext(Struct, frozen=True, kw_only=True):
    """What the shell adds to an event: the time, and a random number from 0 to 1.

    Users are shown the wall clock. What is counted over changes of leader is counted on the clock of the cluster, which
    runs on where the wall clock of a leader jumps or differs from that of the next.
    """

    now_ms: int  # the wall clock
    cluster_ms: int
    random: float = 0.5


class JobStarted(Struct, frozen=True):
    """The JobMaster runs: the job starts, or continues from its records."""


class CancelRequested(Struct, frozen=True):
    """A user cancels the job. The caller checks `refusal_to_cancel` first. `force`: publications end, too."""

    force: bool = False


class Suspended(Struct, frozen=True):
    """This JobMaster stops; another one continues the job."""


class Recorded(Struct, frozen=True):
    """The record is durable."""

    record: RegionRecord


class DeploymentTaken(Struct, frozen=True):
    """The TaskManager acknowledged the deployment: its heartbeats after this one list the attempt."""

    attempt: AttemptId
    instance: InstanceId
    heartbeat: int = 0


class DeploymentUndelivered(Struct, frozen=True):
    """The TaskManager refused the deployment or could not be reached."""

    attempt: AttemptId
    instance: InstanceId
    reason: str


class PublicationUndelivered(Struct, frozen=True):
    """The TaskManager refused to publish, or could not be reached."""

    attempt: AttemptId
    instance: InstanceId
    reason: str
    refused: bool


class CancelAnswered(Struct, frozen=True):
    """A cancellation was sent, with or without success; `unreachable`: nothing listens at that address."""

    attempt: AttemptId
    unreachable: bool


class Probed(Struct, frozen=True):
    """The TaskManager of an attempt that is to be adopted was asked whether that incarnation is alive."""

    attempt: AttemptId
    over: bool  # it has answered that it is not
    unreachable: bool  # nothing listens at that address


class DeploymentDue(Struct, frozen=True):
    """Time to send a deployment again."""

    attempt: AttemptId


class CancelDue(Struct, frozen=True):
    """Time to send a cancellation again."""

    attempt: AttemptId


class ReconcileTimedOut(Struct, frozen=True):
    """A whole lease has passed: a TaskManager that ran this attempt has registered by now, or has ended it."""

    attempt: AttemptId


class ProbeDue(Struct, frozen=True):
    """Time to probe again the TaskManager incarnation that an attempt was sent to."""

    attempt: AttemptId


class PublicationDue(Struct, frozen=True):
    """Time to publish again."""

    attempt: AttemptId


class RestartDue(Struct, frozen=True):
    """The restart strategy's delay after the failure of this attempt is over."""

    attempt: AttemptId


class TimedOut(Struct, frozen=True):
    """The job has reached its timeout."""


class RequirementsChanged(Struct, frozen=True):
    """A user changed how many slots regions may use."""

    ranges: dict[RegionId, ParallelismRange]
    rescale: StateRescale | None = None  # of a streaming job: its queries are restarted with it
    reverts: bool = False  # a rescale has failed: the ranges replace all others


class ProgressFound(Struct, frozen=True):
    """The files of the job's queries, of which none runs, say whether one of them has gone on from the savepoint."""

    gone_on: bool


class FailureLabelled(Struct, frozen=True):
    """Enrichers added labels to a failure: of this attempt, or (None) of the job itself."""

    attempt: AttemptId | None
    labels: dict[str, str]


DispatcherCommand: TypeAlias = JobStarted | CancelRequested | RequirementsChanged | Suspended
"""What the Dispatcher calls on a JobMaster."""

ClusterMessage: TypeAlias = SlotGrant | TaskManagerLost | NoResources | DeployedTasks | TaskReport
"""What ResourceManager and TaskManagers send through the JobMaster's gateway."""

EffectOutcome: TypeAlias = (
    Recorded
    | DeploymentTaken
    | DeploymentUndelivered
    | PublicationUndelivered
    | CancelAnswered
    | Probed
    | ProgressFound
    | FailureLabelled
)
"""The result of an effect."""

TimerFired: TypeAlias = (
    DeploymentDue | CancelDue | ProbeDue | PublicationDue | RestartDue | ReconcileTimedOut | TimedOut
)
"""What a timer delivers."""

JobEvent: TypeAlias = DispatcherCommand | ClusterMessage | EffectOutcome | TimerFired


class Declare(Struct, frozen=True):
    """Declare all of the job's requirements to the ResourceManager; only the newest declaration counts."""

    requirements: ResourceRequirements


class Record(Struct, frozen=True):
    """Make this durable, after all earlier records of its region; results in `Recorded`."""

    record: RegionRecord


class RecordHistory(Struct, frozen=True):
    """Make what has happened to the job durable. A record of a region that follows waits for it."""

    history: JobHistory


class SendDeploy(Struct, frozen=True):
    """Deploy, once; results in `DeploymentTaken` or `DeploymentUndelivered`."""

    address: str
    instance: InstanceId
    order: DeployTask


class SendCommand(Struct, frozen=True):
    """Send a command to an attempt, once; results in `CancelAnswered`."""

    address: str
    order: CancelTask


class SendProbe(Struct, frozen=True):
    """Ask whether that incarnation of the TaskManager is alive, once; results in `Probed`."""

    address: str
    attempt: AttemptId
    instance: InstanceId


class SendPublish(Struct, frozen=True):
    """Ask to publish, once; results in `PublicationUndelivered` if that fails."""

    address: str
    instance: InstanceId
    order: PublishFiles


class DiscardStaging(Struct, frozen=True):
    """Have the staging directories of an ended attempt removed, once. The job's cleanup removes what is left."""

    directories: tuple[str, ...]


class FindProgress(Struct, frozen=True):
    """Read what the queries of the job have done since its savepoint, however long that takes: `ProgressFound`."""


class StartTimer(Struct, frozen=True):
    """Deliver the event after a delay."""

    delay_s: float
    event: JobEvent


class Enrich(Struct, frozen=True):
    """Pass the failure to the enrichers; results in `FailureLabelled` if they add labels."""

    attempt: AttemptId | None
    failure: Failure


class Moved(Struct, frozen=True):
    """The job or an attempt changed its state: for the log."""

    subject: str  # "job", or region and attempt as "0#1"
    old: str
    new: str


JobEffect: TypeAlias = (
    Declare
    | Record
    | RecordHistory
    | SendDeploy
    | SendCommand
    | SendProbe
    | SendPublish
    | DiscardStaging
    | FindProgress
    | StartTimer
    | Enrich
    | Moved
)
