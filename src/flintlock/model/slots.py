"""Messages about slots between JobMaster, ResourceManager and TaskManager."""

from __future__ import annotations

from msgspec import Struct

from flintlock.model.ids import AttemptId, Epoch, FencingToken, InstanceId, JobId, RequestId, TaskManagerId
from flintlock.model.jobgraph import Resources, Versions


class Claim(Struct, frozen=True, kw_only=True):
    """An attempt that an earlier JobMaster has sent, and where: its successor requests the slots that it uses."""

    task_manager: TaskManagerId
    instance: InstanceId
    attempt: AttemptId
    address: str = ""  # where that TaskManager listened: one with the same id elsewhere says nothing about it


class AttemptSlots(Struct, frozen=True, kw_only=True):
    """An attempt on a TaskManager with its slots; without slots if only its end has not been reported yet."""

    attempt: AttemptId
    slots: tuple[int, ...] = ()
    resources: Resources | None = None  # what it was deployed with; None: the share of its slots


class SlotRequest(Struct, frozen=True, kw_only=True):
    """A request for slots of one TaskManager. `slots` None: all of one TaskManager's, within these limits."""

    id: RequestId
    slots: int | None = None
    at_least: int = 1
    at_most: int | None = None
    resources: Resources | None = None  # None: the share that belongs to the slots
    claim: Claim | None = None  # only the slots that this attempt uses; the fields above are ignored then
    endless: bool = False  # for a streaming query: its slots become free only when it is stopped or fails


class ResourceRequirements(Struct, frozen=True, kw_only=True):
    """All requests of a job; what is no longer in it is released. Declaring the same again changes nothing."""

    job_id: JobId
    name: str = ""
    requests: tuple[SlotRequest, ...] = ()
    priority: int = 0  # higher ones are served first
    submitted_ms: int = 0  # among jobs of one priority the earlier one is served first


class SlotGrant(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: these slots answer that request until it is withdrawn."""

    job_id: JobId
    request: RequestId
    task_manager: TaskManagerId
    instance: InstanceId
    address: str
    slots: tuple[int, ...]
    listed_by: int | None = None  # the heartbeat of the TaskManager that lists the attempt, where one was claimed


class TaskManagerLost(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: that incarnation of that TaskManager has ended, for this reason."""

    job_id: JobId
    task_manager: TaskManagerId
    instance: InstanceId
    reason: str


class NoResources(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: that request can never be served. `reason`: what was requested and what exists."""

    job_id: JobId
    request: RequestId
    reason: str


class DeployedTasks(Struct, frozen=True, kw_only=True):
    """ResourceManager to JobMaster: the attempts of the job on a TaskManager, by the heartbeat of that number.

    Attempts whose end is not yet reported are among them. Heartbeats may arrive late, twice, or out of order.
    """

    job_id: JobId
    task_manager: TaskManagerId
    instance: InstanceId
    heartbeat: int = 0
    attempts: tuple[AttemptId, ...] = ()


class UnwantedTasks(Struct, frozen=True, kw_only=True):
    """JobMaster to ResourceManager: of those attempts, these are to be cancelled."""

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
    engine: str = ""  # the Spark master of its engine
    followed_epoch: Epoch | None = None  # of the leader that it follows, or has followed
    busy: bool = False  # something runs under a lease of an earlier leader: the first heartbeat lists it
    worker: bool = False  # a leader has started it (active mode): it is released when it is idle


class RegistrationAnswer(Struct, frozen=True, kw_only=True):
    """The leader to follow, the heartbeat interval, and the silence after which a TaskManager is declared dead."""

    token: FencingToken
    heartbeat_interval_s: float
    heartbeat_timeout_s: float


class Heartbeat(Struct, frozen=True, kw_only=True):
    """TaskManager to ResourceManager: this instance is alive, with these attempts in these slots."""

    id: TaskManagerId
    instance: InstanceId
    number: int = 0  # counts the heartbeats of a TaskManager, in the order in which they were made
    attempts: tuple[AttemptSlots, ...] = ()  # not yet torn down, or not yet reported as ended
    free_memory: int = 0
    engine_ready: bool = True
    lease_s: float = 0.0  # the length of the lease that covers the attempts, whichever leader granted it
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
    ready: bool = True  # False: nothing is deployed to it now, as its engine is dead or it refuses connections
    last_heartbeat_ms: int
    hardware: Hardware = Hardware()
    engine: str = ""  # the Spark master of its engine
    allocated: tuple[AllocatedSlot, ...] = ()
    free_resources: Resources = Resources()
    metrics: dict[str, float] = {}


class WaitingRequest(Struct, frozen=True, kw_only=True):
    """A place in the queue for slots."""

    job_id: JobId
    request: RequestId
    slots: int | None
    resources: Resources | None = None  # beside the slots; None: the share that belongs to them
    since_ms: int
    name: str = ""  # the job's
    priority: int = 0
    behind_streaming: bool = False  # streaming queries use the slots that it needs: other requests are served before it


class RegisteredTaskManagers(Struct, frozen=True, kw_only=True):
    """All TaskManagers, and how many requests wait for slots."""

    task_managers: tuple[TaskManagerInfo, ...] = ()
    waiting: int = 0
    starting: int = 0  # TaskManagers that were requested and have not registered yet
    queue_version: int = 0  # another one: other requests wait, or others are served before them


class ResourceOverview(Struct, frozen=True, kw_only=True):
    """All TaskManagers, and the requests that wait for slots, in order."""

    task_managers: tuple[TaskManagerInfo, ...] = ()
    waiting: tuple[WaitingRequest, ...] = ()
    starting: int = 0  # TaskManagers that were requested and have not registered yet
