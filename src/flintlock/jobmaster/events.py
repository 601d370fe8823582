"""What a JobMaster's core hears (events, past tense) and what it wants done (effects, imperative).

Messages of the gateways are events as they are (`Word`). Time and chance come with each step as a `Moment`; a timer is
an effect that names the event to hear later. Events that come too late are ignored by the core, so nobody needs to take
a timer back.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from flintlock.model.ids import AttemptId, InstanceId, RegionId
from flintlock.model.jobs import ParallelismRange
from flintlock.model.slots import DeployedTasks, NoResources, ResourceRequirements, SlotGrant, TaskManagerLost
from flintlock.model.tasks import CancelTask, DeployTask, Failure, PublishFiles, RegionRecord, TaskReport


class Moment(Struct, frozen=True, kw_only=True):
    """What the world adds to an event: when it is heard, and a number from 0 to 1 that nobody could foresee."""

    now_ms: int
    chance: float = 0.5


class Started(Struct, frozen=True):
    """The job may begin, or go on where its records say that it was."""


class CancelRequested(Struct, frozen=True):
    """The user wants the job to end. Ask `refusal_to_cancel` first."""


class Suspended(Struct, frozen=True):
    """This JobMaster stops; another goes on with the job."""


class Recorded(Struct, frozen=True):
    """The record is durable."""

    record: RegionRecord


class DeploymentTaken(Struct, frozen=True):
    """The TaskManager has the attempt."""

    attempt: AttemptId
    instance: InstanceId


class DeploymentUndelivered(Struct, frozen=True):
    """The TaskManager refused the attempt or could not be asked."""

    attempt: AttemptId
    instance: InstanceId
    reason: str


class PublicationUndelivered(Struct, frozen=True):
    """The TaskManager refused to publish, or could not be asked."""

    attempt: AttemptId
    instance: InstanceId
    reason: str
    refused: bool


class CancelAnswered(Struct, frozen=True):
    """The TaskManager was asked to end the attempt, or could not be; `unreachable`: nothing listens there any more."""

    attempt: AttemptId
    unreachable: bool


class Probed(Struct, frozen=True):
    """The TaskManager of an attempt that is to be adopted was asked whether that life of it goes on."""

    attempt: AttemptId
    over: bool  # it has answered that it does not
    unreachable: bool  # nothing listens there any more


class DeploymentDue(Struct, frozen=True):
    """Time to send a deployment again."""

    attempt: AttemptId


class CancelDue(Struct, frozen=True):
    """Time to ask again for the end of an attempt."""

    attempt: AttemptId


class ReconcileTimedOut(Struct, frozen=True):
    """So much time has passed that whoever had this interrupted attempt would be known, or is dead."""

    attempt: AttemptId


class ProbeDue(Struct, frozen=True):
    """Time to ask again for the life that an attempt was sent to."""

    attempt: AttemptId


class PublicationDue(Struct, frozen=True):
    """Time to publish again."""

    attempt: AttemptId


class RestartDue(Struct, frozen=True):
    """The restart strategy's delay after the failure of this attempt is over."""

    attempt: AttemptId


class TimedOut(Struct, frozen=True):
    """The time that the job was given is over."""


class Required(Struct, frozen=True):
    """The user lets regions use other numbers of slots."""

    ranges: dict[RegionId, ParallelismRange]


class Labelled(Struct, frozen=True):
    """Enrichers have looked at a failure: of this attempt, or of the job itself."""

    attempt: AttemptId | None
    labels: dict[str, str]


Wish: TypeAlias = Started | CancelRequested | Required | Suspended
"""What the Dispatcher wants."""

Word: TypeAlias = SlotGrant | TaskManagerLost | NoResources | DeployedTasks | TaskReport
"""What the cluster says, by the JobMaster's gateway."""

Answer: TypeAlias = (
    Recorded | DeploymentTaken | DeploymentUndelivered | PublicationUndelivered | CancelAnswered | Probed | Labelled
)
"""What came of an effect."""

Due: TypeAlias = DeploymentDue | CancelDue | ProbeDue | PublicationDue | RestartDue | ReconcileTimedOut | TimedOut
"""What a timer was set for."""

JobEvent: TypeAlias = Wish | Word | Answer | Due


class Declare(Struct, frozen=True):
    """Tell the ResourceManager all that the job wants now; only the newest declaration matters."""

    requirements: ResourceRequirements


class Record(Struct, frozen=True):
    """Make this durable, after all earlier records of its region, then hear `Recorded`."""

    record: RegionRecord


class SendDeploy(Struct, frozen=True):
    """Deploy, once; hear `DeploymentTaken` or `DeploymentUndelivered`."""

    address: str
    instance: InstanceId
    order: DeployTask


class SendCancel(Struct, frozen=True):
    """Ask for the end of an attempt, once; hear `CancelAnswered`."""

    address: str
    order: CancelTask


class SendProbe(Struct, frozen=True):
    """Ask whether that life of the TaskManager goes on, once; hear `Probed`."""

    address: str
    attempt: AttemptId
    instance: InstanceId


class SendPublish(Struct, frozen=True):
    """Ask to publish, once; hear `PublicationUndelivered` if that fails."""

    address: str
    instance: InstanceId
    order: PublishFiles


class After(Struct, frozen=True):
    """Hear the event once so many seconds have passed."""

    delay_s: float
    event: JobEvent


class Enrich(Struct, frozen=True):
    """Let the failure enrichers look at it; hear `Labelled` if they have something to say."""

    attempt: AttemptId | None
    failure: Failure


class Moved(Struct, frozen=True):
    """Something changed its state: for the log."""

    subject: str  # "job", or region and attempt as "0#1"
    old: str
    new: str


JobEffect: TypeAlias = Declare | Record | SendDeploy | SendCancel | SendProbe | SendPublish | After | Enrich | Moved
