"""What REST returns about the cluster: TaskManagers, the queue, the configuration, metrics. Names are Flink's."""

from __future__ import annotations

from typing import Any

from msgspec import field

from flintlock.api.base import ApiStruct, CamelCase, KebabCase


class Features(KebabCase, frozen=True, kw_only=True):
    """What a dashboard may offer."""

    web_submit: bool
    web_cancel: bool
    web_rescale: bool
    web_history: bool


class DashboardConfig(KebabCase, frozen=True, kw_only=True):
    """GET /config."""

    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str
    flink_revision: str
    features: Features


class ClusterOverview(KebabCase, frozen=True, kw_only=True):
    """GET /overview."""

    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str


class ResourceProfileInfo(CamelCase, frozen=True, kw_only=True):
    """A share of a TaskManager."""

    cpu_cores: float
    task_heap_memory: int
    task_off_heap_memory: int
    managed_memory: int
    network_memory: int
    extended_resources: dict[str, Any]


class HardwareDescription(CamelCase, frozen=True, kw_only=True):
    """What a TaskManager's machine has."""

    cpu_cores: int
    physical_memory: int
    free_memory: int
    managed_memory: int


class MemoryConfiguration(CamelCase, frozen=True, kw_only=True):
    """A TaskManager's memory as Flink divides it; the engine's heap is the task heap, the rest does not exist here."""

    framework_heap: int
    task_heap: int
    framework_off_heap: int
    task_off_heap: int
    network_memory: int
    managed_memory: int
    jvm_metaspace: int
    jvm_overhead: int
    total_flink_memory: int
    total_process_memory: int


class TaskManagerSummary(CamelCase, frozen=True, kw_only=True):
    """One entry of GET /taskmanagers."""

    id: str
    path: str
    data_port: int
    jmx_port: int
    time_since_last_heartbeat: int
    slots_number: int
    free_slots: int
    assigned_tasks: int
    total_resource: ResourceProfileInfo
    free_resource: ResourceProfileInfo
    hardware: HardwareDescription
    memory_configuration: MemoryConfiguration
    spark_master: str = ""  # Flintlock's own: where its engine's work is done


class TaskManagersResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /taskmanagers."""

    taskmanagers: list[TaskManagerSummary]


class AllocatedSlotInfo(CamelCase, frozen=True, kw_only=True):
    """One job's share of a TaskManager."""

    job_id: str
    resource: ResourceProfileInfo
    assigned_tasks: int


class GarbageCollector(CamelCase, frozen=True, kw_only=True):
    """What one of a JVM's garbage collectors did."""

    name: str
    count: int
    time: int


class TaskManagerMetrics(CamelCase, frozen=True, kw_only=True):
    """A TaskManager's memory in use, as Flink's dashboard reads it; 0 where Flintlock does not measure it."""

    heap_used: int = 0
    heap_committed: int = 0
    heap_max: int = 0
    non_heap_used: int = 0
    non_heap_committed: int = 0
    non_heap_max: int = 0
    direct_count: int = 0
    direct_used: int = 0
    direct_max: int = 0
    mapped_count: int = 0
    mapped_used: int = 0
    mapped_max: int = 0
    netty_shuffle_memory_segments_available: int = 0
    netty_shuffle_memory_segments_used: int = 0
    netty_shuffle_memory_segments_total: int = 0
    netty_shuffle_memory_available: int = 0
    netty_shuffle_memory_used: int = 0
    netty_shuffle_memory_total: int = 0
    garbage_collectors: list[GarbageCollector] = field(default_factory=list[GarbageCollector])


class TaskManagerDetails(TaskManagerSummary, frozen=True, kw_only=True):
    """GET /taskmanagers/:taskmanagerid."""

    allocated_slots: list[AllocatedSlotInfo]
    metrics: TaskManagerMetrics


class ConfigEntry(ApiStruct, frozen=True, kw_only=True):
    """One entry of GET /jobmanager/config."""

    key: str
    value: str


class WaitingJob(ApiStruct, frozen=True, kw_only=True):
    """A position in the queue for slots: the model's WaitingRequest."""

    job_id: str = field(name="jobid")
    name: str = ""
    priority: int = 0
    request: str = ""
    slots: int | None = None  # None: all slots of one TaskManager
    since_ms: int = field(default=0, name="since")
    behind_streaming: bool = field(default=False, name="behind-streaming")  # streaming jobs use the slots that it needs


class ClusterResources(ApiStruct, frozen=True, kw_only=True):
    """GET /resources: the jobs that wait for slots, in order, and how many TaskManagers are being started."""

    waiting: tuple[WaitingJob, ...] = ()
    starting: int = 0


class JobManagerSummary(KebabCase, frozen=True, kw_only=True):
    """One JobManager: where it is reached, and the epoch in which it leads, 0 for a standby.

    `since`: since when it leads, or watches the leader.
    """

    rest: str
    rpc: str
    host: str = ""
    epoch: int = 0
    since_ms: int = field(default=0, name="since")


class JobManagersResponse(ApiStruct, frozen=True, kw_only=True):
    """GET /jobmanagers: the leader, then its standbys."""

    jobmanagers: tuple[JobManagerSummary, ...] = ()


class Health(ApiStruct, frozen=True, kw_only=True):
    """GET /healthz and /readyz."""

    status: str


class Metric(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric by its id; with its value if the request names it (`get`)."""

    id: str
    value: str | None = None


class AggregatedMetric(ApiStruct, frozen=True, kw_only=True, omit_defaults=True):
    """A metric of several subjects by its id; with the aggregations that the request names (`get`, `agg`)."""

    id: str
    min: float | None = None
    max: float | None = None
    avg: float | None = None
    sum: float | None = None


class SparkUiLink(KebabCase, frozen=True, kw_only=True):
    """A link to Spark's own UI of an engine, relative to the cluster's address. It is a credential for that UI."""

    path: str
    expires_in: int  # seconds
