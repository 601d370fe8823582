"""What JobMaster, ResourceManager and TaskManager tell each other about slots."""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.ids import AttemptId, FencingToken, InstanceId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions


class Claim(Struct, frozen=True, kw_only=True):
    """An attempt that an earlier JobMaster has sent, and where: its successor asks for the slots that it holds."""

    task_manager: TaskManagerId
    instance: InstanceId
    attempt: AttemptId


class AttemptSlots(Struct, frozen=True, kw_only=True):
    """An attempt on a TaskManager with its slots; without slots if only its end has not been reported yet."""

    attempt: AttemptId
    slots: tuple[int, ...] = ()


class SlotRequest(Struct, frozen=True, kw_only=True):
    """A wish for slots of one TaskManager. `slots` None: all of one TaskManager's, within these limits."""

    id: RequestId
    slots: int | None = None
    at_least: int = 1
    at_most: int | None = None
    resources: Resources | None = None  # None: whatever comes with the slots
    claim: Claim | None = None  # only the slots that this attempt holds; the rest does not matter then


class ResourceRequirements(Struct, frozen=True, kw_only=True):
    """All that a job wants now; what is no longer in it is given back. Declaring the same again changes nothing."""

    job_id: JobId
    name: str = ""
    requests: tuple[SlotRequest, ...] = ()
    priority: int = 0  # higher ones are served first


class SlotGrant(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: these slots answer that request until it is withdrawn."""

    job_id: JobId
    request: RequestId
    task_manager: TaskManagerId
    instance: InstanceId
    address: str
    slots: tuple[int, ...]


class TaskManagerLost(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: that life of that TaskManager is over, for this reason."""

    job_id: JobId
    task_manager: TaskManagerId
    instance: InstanceId
    reason: str


class NoResources(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: nobody can ever serve that request. `reason`: what was asked and what exists."""

    job_id: JobId
    request: RequestId
    reason: str


class DeployedTasks(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: what a TaskManager says that it holds of the job, by its latest heartbeat.

    Attempts whose end is not yet told are among them.
    """

    job_id: JobId
    task_manager: TaskManagerId
    instance: InstanceId
    attempts: tuple[AttemptId, ...] = ()


class UnwantedTasks(Struct, frozen=True, kw_only=True):
    """JobMaster to ResourceManager: of those, nobody wants these any more."""

    attempts: tuple[AttemptId, ...] = ()


class LivenessProbe(Struct, frozen=True, kw_only=True):
    """ResourceManager to TaskManager: answered once that incarnation of the TaskManager has ended."""

    instance: InstanceId


class Hardware(Struct, frozen=True, kw_only=True):
    """What a TaskManager has, as REST shows it."""

    cpu_cores: int = 0
    physical_memory: int = 0
    free_memory: int = 0
    managed_memory: int = 0


class TaskManagerRegistration(Struct, frozen=True, kw_only=True):
    """A TaskManager whose engine is warm offers its slots. A newer instance replaces the older one of its id."""

    id: TaskManagerId
    instance: InstanceId
    address: str
    slots: int
    versions: Versions
    hardware: Hardware = Hardware()
    engine: str = ""
    busy: bool = False  # something runs under a lease of an earlier leader: the first heartbeat tells what


class RegistrationAnswer(Struct, frozen=True, kw_only=True):
    """Whom to follow from now on, how often to report, and after how long a silence one is given up."""

    token: FencingToken
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class Heartbeat(Struct, frozen=True, kw_only=True):
    """TaskManager to ResourceManager: this instance is alive, with these attempts in these slots."""

    id: TaskManagerId
    instance: InstanceId
    attempts: tuple[AttemptSlots, ...] = ()  # not yet torn down, or not yet reported as ended
    free_memory: int = 0
    engine_ready: bool = True
    metrics: dict[str, float] = {}  # what the TaskManager measures of itself, by name


class HeartbeatAnswer(Struct, frozen=True, kw_only=True):
    """A lease on what runs, for the heartbeat timeout, counted from when the heartbeat was *sent*.

    `known` False: this leader does not know that instance of the TaskManager, which has to register again together with
    what it runs.
    """

    known: bool
    unwanted: tuple[AttemptId, ...] = ()  # these are to be cancelled: no JobMaster wants them


class AllocatedSlot(Struct, frozen=True, kw_only=True):
    """One job's share of a TaskManager."""

    job_id: JobId
    slots: int


class TaskManagerInfo(Struct, frozen=True, kw_only=True):
    """A registered TaskManager as REST shows it."""

    id: TaskManagerId
    instance: InstanceId
    address: str
    slots: int
    free_slots: int
    last_heartbeat_ms: int
    hardware: Hardware = Hardware()
    engine: str = ""
    allocated: tuple[AllocatedSlot, ...] = ()
    free_resources: Resources = Resources()
    metrics: dict[str, float] = {}


class WaitingRequest(Struct, frozen=True, kw_only=True):
    """A place in the queue for slots."""

    job_id: JobId
    request: RequestId
    slots: int | None
    since_ms: int
    name: str = ""  # the job's
    priority: int = 0


class ResourceOverview(Struct, frozen=True, kw_only=True):
    """All TaskManagers, and who waits for slots, in order."""

    task_managers: tuple[TaskManagerInfo, ...] = ()
    waiting: tuple[WaitingRequest, ...] = ()
    starting: int = 0  # TaskManagers that were asked for and have not registered yet
