"""Fakes of YARN: its side of an ApplicationMaster, of a client, and of a staging directory.

`FakeApplicationMaster` behaves as a real YARN was seen to: a container comes with a later heartbeat than its request, a
stopped one completes with a later heartbeat, and the containers of an attempt are handed to the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

from flintlock.model.errors import FlintlockError, NotFound, Unavailable
from flintlock.yarn.messages import (
    ABORTED,
    KILLED_BY_APPLICATION_MASTER,
    Allocation,
    ApplicationReport,
    ApplicationSubmission,
    Container,
    ContainerEnd,
    ContainerSize,
    FinalStatus,
    Launch,
    Registered,
    StagedFile,
    YarnApplicationState,
)


class FakeApplicationMaster:
    """An ApplicationMasterGateway. Tests decide when containers come and how they end; threads may use it."""

    def __init__(self, running: Sequence[Container] = ()) -> None:
        self.allocates = True  # at the heartbeat after the one that has requested it
        self.fails_to_launch: FlintlockError | None = None
        self.launches: Final = threading.Event()  # set; launches wait while it is not
        self.launches.set()
        self.stops = 0  # calls that were answered
        self.fails_to_stop: FlintlockError | None = None
        self.ignores_stops = False  # as while the ResourceManager of YARN is away
        self.fails_to_allocate: FlintlockError | None = None
        self.shut_down = False
        self.requested = 0  # requests that are open
        self.registered: tuple[str, int, str] | None = None
        self.running: Final[dict[str, Container]] = {each.id: each for each in running}
        self.launched: Final[dict[str, Launch]] = {}
        self.given_back: Final[list[str]] = []
        self.unregistered: tuple[FinalStatus, str] | None = None
        self.bridge_answers: Final = threading.Event()  # set; so is the next one
        self.resource_manager_answers: Final = threading.Event()
        self.bridge_ended: Final = threading.Event()
        self.bridge_answers.set()
        self.resource_manager_answers.set()
        self.nodes = 1
        self.excluded: frozenset[str] = frozenset()
        self.fails_to_exclude: FlintlockError | None = None
        self._earlier: Final = tuple(running)
        self._unlaunched: Final[dict[str, Container]] = {}
        self._completed: Final[list[ContainerEnd]] = []
        self._surplus = 0
        self._recovered: tuple[Container, ...] = ()  # reported with the next heartbeat
        self._numbers: Final = count(2 + len(running))
        self._lock: Final = threading.Lock()

    def register(self, host: str, port: int, tracking_url: str) -> Registered:
        """Return the containers of the earlier attempt."""
        self.registered = (host, port, tracking_url)
        return Registered(containers=self._earlier)

    def heartbeat(self, size: ContainerSize, wanted: int) -> Allocation:
        """Return what tests have let happen."""
        self.resource_manager_answers.wait()
        if self.fails_to_allocate is not None:
            raise self.fails_to_allocate
        with self._lock:
            served = min(self.requested, wanted) if self.allocates else 0
            number = served + self._surplus
            self.requested, self._surplus = wanted - served, 0
            allocated = tuple(
                Container(id=f"container_1_0001_01_{next(self._numbers):06d}", node="node:1", node_name="node")
                for _ in range(number)
            )
            self._unlaunched.update({each.id: each for each in allocated})
            completed = tuple(self._completed)
            self._completed.clear()
            recovered, self._recovered = self._recovered, ()
            return Allocation(
                allocated=allocated,
                recovered=recovered,
                completed=completed,
                nodes=self.nodes,
                shut_down=self.shut_down,
            )

    def exclude(self, nodes: frozenset[str]) -> None:
        """Record them; containers come from the one node there is all the same."""
        if self.fails_to_exclude is not None:
            raise self.fails_to_exclude
        self.excluded = nodes

    def launch(self, container: Container, launch: Launch) -> None:
        """Run it, unless launches fail. YARN may have taken the container back meanwhile."""
        self.launches.wait()
        if self.fails_to_launch is not None:
            raise self.fails_to_launch
        with self._lock:
            if container.id in self.given_back:
                raise Unavailable("it was given back")
            if self._unlaunched.pop(container.id, None) is not None:  # else it has completed already
                self.running[container.id] = container
            self.launched[container.id] = launch

    def stop(self, container: Container) -> None:
        """Complete it at the next heartbeat."""
        if self.fails_to_stop is not None:
            raise self.fails_to_stop
        self.stops += 1
        if self.ignores_stops:
            return
        self.complete(container.id, KILLED_BY_APPLICATION_MASTER)

    def give_back(self, container: Container) -> None:
        """Complete it as YARN does, without knowing whether its process has ended."""
        with self._lock:
            self.given_back.append(container.id)
        self.complete(container.id, ABORTED)

    def check_bridge(self) -> None:
        """Wait until it answers, or was ended."""
        self.bridge_answers.wait()
        if self.bridge_ended.is_set():
            raise Unavailable("the bridge to YARN does not answer")

    def end_bridge(self) -> None:
        """Have all calls that wait for it fail."""
        self.bridge_ended.set()
        self.fails_to_allocate = Unavailable("the bridge to YARN does not answer")
        for each in (self.bridge_answers, self.resource_manager_answers):
            each.set()

    def unregister(self, status: FinalStatus, diagnostics: str) -> None:
        """Record it."""
        self.unregistered = (status, diagnostics)

    def complete(self, container_id: str, exit_status: int, diagnostics: str = "") -> None:
        """Let a container complete."""
        with self._lock:
            self.running.pop(container_id, None)
            self._unlaunched.pop(container_id, None)
            self._completed.append(ContainerEnd(id=container_id, exit_status=exit_status, diagnostics=diagnostics))

    def recover(self, container: Container) -> None:
        """Let a container of an earlier attempt become known."""
        with self._lock:
            self.running[container.id] = container
            self._recovered += (container,)

    def allocate_one_more(self) -> None:
        """Bring a container that was not requested."""
        with self._lock:
            self._surplus += 1


class FakeStaging:
    """A StagingGateway in memory."""

    def __init__(self, application_id: str = "application_1_0001") -> None:
        self.url: Final = f"hdfs://files/home/.flintlock/{application_id}"
        self.exists = False
        self.contents: Final[dict[str, bytes]] = {}
        self.elsewhere: Final[dict[str, tuple[str, ...]]] = {}  # names of files by directory
        self.removals = 0

    def create(self) -> None:
        """Make it."""
        self.exists = True

    def put(self, name: str, source: Path) -> None:
        """Read the file."""
        self.contents[name] = source.read_bytes()

    def read(self, name: str) -> bytes:
        """Return what was put."""
        if name not in self.contents:
            raise NotFound(f"{name} does not exist")
        return self.contents[name]

    def files(self) -> tuple[StagedFile, ...]:
        """Return what was put."""
        return tuple(
            StagedFile(name=name, url=f"{self.url}/{name}", size=len(content), timestamp_ms=1)
            for name, content in self.contents.items()
        )

    def provided(self, url: str, at_most: int) -> tuple[StagedFile, ...]:
        """Return the files that tests have put there."""
        if url not in self.elsewhere:
            raise NotFound(f"there is no {url}")
        return tuple(
            StagedFile(name=name, url=f"{url}/{name}", size=1, timestamp_ms=1, is_provided=True)
            for name in self.elsewhere[url][:at_most]
        )

    def remove(self) -> None:
        """Remove all."""
        self.exists = False
        self.removals += 1
        self.contents.clear()


class FakeYarn:
    """A YarnGateway. The reports of a submitted application are those of `states`, the last one for ever."""

    def __init__(self) -> None:
        self.secure = False
        self.hosts = frozenset({"node"})
        self.queue_names: tuple[str, ...] = ("default",)
        self.largest = ContainerSize(memory_mb=8192, vcores=4)
        self.states: list[YarnApplicationState] = [YarnApplicationState.ACCEPTED, YarnApplicationState.RUNNING]
        self.diagnostics = ""
        self.containers = 0  # of an application that is ACCEPTED; one that runs has one
        self.kind = "FLINTLOCK"
        self.final_status = "UNDEFINED"
        self.tracking_url = "http://127.0.0.1:8081"
        self.is_known = False  # an application that another client has submitted
        self.fails_to_submit: FlintlockError | None = None
        self.created = 0
        self.submitted: list[ApplicationSubmission] = []
        self.killed: list[str] = []

    def is_secure(self) -> bool:
        """As set."""
        return self.secure

    def node_hosts(self) -> frozenset[str]:
        """As set."""
        return self.hosts

    def queues(self) -> tuple[str, ...]:
        """As set."""
        return self.queue_names

    def create_application(self) -> tuple[str, ContainerSize]:
        """Count it."""
        self.created += 1
        return f"application_1_{self.created:04d}", self.largest

    def submit(self, submission: ApplicationSubmission) -> None:
        """Record it."""
        if self.fails_to_submit is not None:
            raise self.fails_to_submit
        self.submitted.append(submission)

    def report(self, application_id: str) -> ApplicationReport:
        """Return the next state."""
        if not self.submitted and not self.is_known:
            raise NotFound(f"application {application_id} does not exist")
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        url = self.tracking_url if state is YarnApplicationState.RUNNING else ""
        return ApplicationReport(
            id=application_id,
            kind=self.kind,
            state=state,
            final_status=self.final_status,
            tracking_url=url,
            diagnostics=self.diagnostics,
            containers=1 if state is YarnApplicationState.RUNNING else self.containers,
        )

    def kill(self, application_id: str) -> None:
        """Record it; the application has ended then."""
        self.killed.append(application_id)
        self.states = [YarnApplicationState.KILLED]
