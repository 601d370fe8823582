"""What is said between Flintlock and YARN, without a class of YARN in it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct


class ContainerSize(Struct, frozen=True, kw_only=True):
    """The resources of a container."""

    memory_mb: int
    vcores: int

    def __str__(self) -> str:
        return f"{self.memory_mb} MB and {self.vcores} vcores"

    def fits_into(self, other: ContainerSize) -> bool:
        """Return whether a container of the other size has all that this one needs."""
        return self.memory_mb <= other.memory_mb and self.vcores <= other.vcores


class StagedFile(Struct, frozen=True, kw_only=True):
    """A file in the staging directory of an application. YARN refuses it if size or timestamp have changed."""

    name: str  # as containers see it, a path in their working directory
    url: str
    size: int
    timestamp_ms: int
    is_archive: bool = False  # containers see a directory with its content
    is_provided: bool = False  # not of this application only: nodes keep it for others of the same user


class Launch(Struct, frozen=True, kw_only=True):
    """What runs in a container: a line of shell, in which `<LOG_DIR>` is the directory of the container's logs."""

    command: str
    environment: dict[str, str] = {}
    files: tuple[StagedFile, ...] = ()
    tokens: bytes = b""  # delegation tokens, as Hadoop's Credentials write them


class ApplicationSubmission(Struct, frozen=True, kw_only=True):
    """An application, as it is submitted."""

    id: str
    name: str
    queue: str
    size: ContainerSize  # of the ApplicationMaster
    launch: Launch
    attempts: int = 1
    attempt_failures_validity_ms: int = 10_000
    priority: int = -1  # -1: the queue's default
    tags: tuple[str, ...] = ()
    node_label: str = ""
    rolled_logs: str = ""  # a pattern of files that are aggregated while the application runs


class YarnApplicationState(StrEnum):
    """How far an application is, as YARN says it."""

    NEW = "NEW"
    NEW_SAVING = "NEW_SAVING"
    SUBMITTED = "SUBMITTED"
    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def has_ended(self) -> bool:
        """Whether nothing of the application runs any more."""
        return self in (YarnApplicationState.FINISHED, YarnApplicationState.FAILED, YarnApplicationState.KILLED)


class ApplicationReport(Struct, frozen=True, kw_only=True):
    """What the ResourceManager of YARN knows of an application."""

    id: str
    name: str = ""
    kind: str = ""
    user: str = ""
    queue: str = ""
    state: YarnApplicationState
    final_status: str = "UNDEFINED"
    tracking_url: str = ""  # as the ApplicationMaster registered it; empty until then
    diagnostics: str = ""
    containers: int = 0  # that it has now

    @property
    def awaits_turn(self) -> bool:
        """Whether its queue has no room for its ApplicationMaster yet: nothing of it has been started."""
        return self.state is YarnApplicationState.ACCEPTED and self.containers == 0


class Container(Struct, frozen=True, kw_only=True):
    """A container that belongs to this application."""

    id: str
    node: str  # host:port of its NodeManager
    node_name: str  # what the scheduler of YARN calls that node: its host, unless YARN is configured otherwise


class ContainerEnd(Struct, frozen=True, kw_only=True):
    """YARN says that a container has completed."""

    id: str
    exit_status: int
    diagnostics: str = ""

    @property
    def is_known_to_have_ended(self) -> bool:
        """Whether the NodeManager saw the end of the process.

        Otherwise YARN's ResourceManager has only written the container off: because its node is lost, or before the
        NodeManager kills it. The process may still run.
        """
        return self.exit_status not in _WRITTEN_OFF

    @property
    def is_failure_of_node(self) -> bool:
        """Whether the node may be the cause: neither YARN nor the application has decided to end the container."""
        return self.is_known_to_have_ended and self.exit_status not in _NOT_THE_NODE


#: ContainerExitStatus: ABORTED (released, or its node is lost), PREEMPTED, KILLED_BY_RESOURCEMANAGER.
ABORTED: Final = -100
PREEMPTED: Final = -102
KILLED_BY_APPLICATION_MASTER: Final = -105
_WRITTEN_OFF: Final = frozenset({ABORTED, PREEMPTED, -106})
#: SUCCESS, KILLED_EXCEEDED_VMEM and _PMEM, KILLED_BY_APPMASTER, KILLED_AFTER_APP_COMPLETION,
#: KILLED_BY_CONTAINER_SCHEDULER, KILLED_FOR_EXCESS_LOGS.
_NOT_THE_NODE: Final = frozenset({0, -103, -104, KILLED_BY_APPLICATION_MASTER, -107, -108, -109})


class Registered(Struct, frozen=True, kw_only=True):
    """The answer to an ApplicationMaster that registers."""

    containers: tuple[Container, ...] = ()  # of earlier attempts of the application, which run on


class Allocation(Struct, frozen=True, kw_only=True):
    """The answer to a heartbeat of an ApplicationMaster."""

    allocated: tuple[Container, ...] = ()
    recovered: tuple[Container, ...] = ()  # of earlier attempts, whose NodeManager has reported them only now
    completed: tuple[ContainerEnd, ...] = ()
    nodes: int = 0  # of the cluster, as YARN counts them
    shut_down: bool = False  # YARN does not know this attempt any more


class FinalStatus(StrEnum):
    """YARN's FinalApplicationStatus."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    KILLED = "KILLED"
