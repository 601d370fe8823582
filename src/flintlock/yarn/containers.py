"""All containers of one ApplicationMaster, over all terms of its process.

The registration with YARN is the process's, and so are its containers: a leadership that is lost and won again changes
nothing about them. A term may begin before it: what needs to know the containers of earlier attempts waits for it. One
task sends heartbeats: each says how many containers are awaited at that moment, so that a request that is not needed
any more is withdrawn by the next one, and brings the containers that were allocated and those that have completed.
Calls to NodeManagers never wait behind a heartbeat, which blocks while the ResourceManager of YARN is away.

A container that YARN has only written off (`ContainerEnd.is_known_to_have_ended`) is not reported as ended: its
TaskManager may still run, and may have work. It is then as any other TaskManager that falls silent, or does not:
its heartbeats decide.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.gateways.workers import WorkerEnded
from flintlock.host.processes.daemon_threads import DaemonThreads
from flintlock.model import log_events
from flintlock.model.errors import FlintlockError, Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.yarn.gateways import ApplicationMasterGateway
from flintlock.yarn.held_containers import HeldContainers
from flintlock.yarn.messages import Allocation, Container, ContainerEnd, ContainerSize, Launch
from flintlock.yarn.node_failures import ExclusionRules, NodeFailures

log: FilteringBoundLogger = structlog.get_logger()
T = TypeVar("T")

HEARTBEATS: Final = "yarn-heartbeat"
_CALLS: Final = 8  # calls to NodeManagers at the same time
_RELEASE_S: Final = 30.0
_TOGETHER_S: Final = 0.05  # requests that come together are sent together
_NO_EXCLUSION: Final = ExclusionRules(failures=0, duration_s=0.0)


@dataclass(frozen=True, kw_only=True)
class HeartbeatIntervals:
    """How often YARN is asked what has happened."""

    idle_s: float
    waiting_s: float  # while a container is awaited, or its end


class BlockingCalls(Protocol):
    """Where calls to YARN block: in threads, or in a simulation on virtual time."""

    def submit(self, work: Callable[[], T]) -> Future[T] | asyncio.Future[T]:
        """Have the call made, whether or not anybody waits for its outcome."""
        ...


class YarnContainers:
    """The containers of this application. Calls raise Unavailable if YARN cannot be reached."""

    def __init__(
        self,
        gateway: ApplicationMasterGateway,
        size: ContainerSize,
        launch: Callable[[Container], Launch],
        intervals: HeartbeatIntervals,
        *,
        release_s: float = _RELEASE_S,
        exclusion: ExclusionRules = _NO_EXCLUSION,
        blocking_calls: Callable[[int, str], BlockingCalls] = DaemonThreads,
    ) -> None:
        """`blocking_calls` takes how many calls may block at a time, and a name."""
        self.size: Final = size
        self.registered: Final = asyncio.Event()  # set once, by `register`
        self._gateway: Final = gateway
        self._launch: Final = launch
        self._intervals: Final = intervals
        self._release_s: Final = release_s  # how long YARN may take to confirm the end of a container
        self._heartbeats: Final = blocking_calls(1, HEARTBEATS)
        self._calls: Final = blocking_calls(_CALLS, "yarn-call")
        self._held: Final = HeldContainers()
        self._gone: Final[dict[str, asyncio.Event]] = {}  # of those that are released: set when they are not held
        self._awaited: Final[deque[asyncio.Future[Container | None]]] = (
            deque()
        )  # starts, in the order of their requests
        self._ends: asyncio.Queue[WorkerEnded] | None = None  # of the term that listens
        self._found: asyncio.Queue[TaskManagerId] | None = None  # likewise
        self._sooner = asyncio.Event()  # the next heartbeat is wanted now
        self._failures: Final = NodeFailures(exclusion)
        self._excluded: frozenset[str] = frozenset()  # nodes that get no containers; written by `run`

    def running(self) -> tuple[TaskManagerId, ...]:
        """Return the workers of this application that run, of earlier attempts too."""
        return tuple(map(TaskManagerId, self._held.ids()))

    def listen(
        self, ends: asyncio.Queue[WorkerEnded] | None, found: asyncio.Queue[TaskManagerId] | None = None
    ) -> None:
        """Report the ends of workers here from now on, and those of earlier attempts that become known."""
        self._ends, self._found = ends, found

    async def register(self, host: str, port: int, tracking_url: str) -> None:
        """Register this attempt of the application, and take the containers of earlier attempts over."""
        answer = await self._call(lambda: self._gateway.register(host, port, tracking_url))
        self._recover(answer.containers)
        self.registered.set()
        log.info(
            log_events.YARN_REGISTERED, tracking_url=tracking_url, containers=[each.id for each in answer.containers]
        )

    async def run(self) -> None:
        """Send heartbeats until cancelled.

        Raises Unavailable if YARN does not know this attempt any more, or cannot be reached for long; Refused if it can
        never serve what was requested.
        """
        while True:
            self._sooner.clear()
            wanted = sum(not awaited.done() for awaited in self._awaited)
            beat = self._heartbeats.submit(lambda wanted=wanted: self._gateway.heartbeat(self.size, wanted))
            answer = await asyncio.wrap_future(beat)
            if answer.shut_down:
                raise Unavailable("YARN has ended this attempt of the application: another one may have begun")
            self._take(answer)
            await self._exclude_nodes(answer.nodes)
            waits = bool(self._awaited) or self._held.awaits_ends()
            await self._pause(self._intervals.waiting_s if waits else self._intervals.idle_s)

    async def start(self) -> TaskManagerId | None:
        """Request a container, wait for it however long that takes, and start a TaskManager in it.

        If the caller is cancelled, the request is withdrawn; None if `withdraw_start` has withdrawn it. Raises
        Unavailable if the TaskManager cannot be started.
        """
        awaited: asyncio.Future[Container | None] = asyncio.get_running_loop().create_future()
        self._awaited.append(awaited)
        self._sooner.set()
        try:
            container = await awaited
        except BaseException:
            self._abandon(awaited)
            raise
        if container is None:
            return None
        await self._launch_in(container)
        return TaskManagerId(container.id)

    async def _launch_in(self, container: Container) -> None:
        """Start a TaskManager there. Raises Unavailable if it is not started, or if YARN says first that it has ended.

        If the caller is cancelled, it may be started all the same, and is the next leader's.
        """
        self._held.launch(container)
        refused: FlintlockError | None = None
        try:
            await self._call(lambda: self._gateway.launch(container, self._launch(container)))
        except FlintlockError as error:
            refused = error
            end = self._held.launch_failed(container.id)
            self._set_gone(container.id)
            if end is None:
                self._failures.failed(container.node_name, asyncio.get_running_loop().time())
                self._calls.submit(lambda: self._gateway.give_back(container))
        except BaseException:
            self._held.launch_abandoned(container.id)
            raise
        else:
            end = self._held.launched(container.id)
        if end is not None:
            raise Unavailable(f"container {container.id} was not started: {_end_text(end, container)}") from refused
        if refused is not None:
            raise Unavailable(
                f"container {container.id} cannot be started on {container.node}: {refused.public}"
            ) from refused

    def withdraw_start(self) -> bool:
        """Withdraw the latest start that waits for a container; return whether there was one."""
        while self._awaited:
            awaited = self._awaited.pop()
            if not awaited.done():
                awaited.set_result(None)
                self._sooner.set()
                return True
        return False

    async def release(self, worker: TaskManagerId) -> None:
        """End a container; return once YARN says that it has ended. Raises Unavailable if that takes too long."""
        await self.registered.wait()  # it may be one of an earlier attempt
        container = self._held.release(worker)
        if container is None:
            return
        gone = self._gone.setdefault(worker, asyncio.Event())
        try:
            await self._call(lambda: self._gateway.stop(container))
        except FlintlockError:  # nothing was ever started in it, or its node cannot be reached
            await self._call(lambda: self._gateway.give_back(container))
        self._sooner.set()
        try:
            async with asyncio.timeout(self._release_s):
                await gone.wait()
        except TimeoutError:
            raise Unavailable(f"YARN does not confirm the end of container {worker}") from None

    async def call(self, work: Callable[[], T]) -> T:
        """Call YARN in a thread."""
        return await self._call(work)

    def _take(self, answer: Allocation) -> None:
        for container in answer.recovered:
            if self._held.take_over(container) and self._found is not None:
                self._found.put_nowait(TaskManagerId(container.id))
        for container in answer.allocated:
            while self._awaited:
                awaited = self._awaited.popleft()
                if not awaited.done():
                    awaited.set_result(container)
                    break
            else:
                self._calls.submit(lambda container=container: self._gateway.give_back(container))
        for end in answer.completed:
            self._complete(end)

    def _recover(self, containers: tuple[Container, ...]) -> None:
        for container in containers:
            self._held.take_over(container)

    def _complete(self, end: ContainerEnd) -> None:
        meaning = self._held.complete(end)
        if meaning is None:
            return  # of an earlier attempt, or given back
        self._set_gone(end.id)
        if meaning.failure_of_node:
            self._failures.failed(meaning.container.node_name, asyncio.get_running_loop().time())
        if meaning.written_off:
            log.warning(
                log_events.YARN_CONTAINER_WRITTEN_OFF,
                task_manager=end.id,
                exit_status=end.exit_status,
                reason=end.diagnostics,
            )
        if meaning.worker_ended and self._ends is not None:
            self._ends.put_nowait(WorkerEnded(TaskManagerId(end.id), _end_text(end, meaning.container)))

    def _set_gone(self, container_id: str) -> None:
        gone = self._gone.pop(container_id, None)
        if gone is not None:
            gone.set()

    async def _exclude_nodes(self, count: int) -> None:
        """Tell YARN which nodes get no containers, if that has changed. What fails in it is no reason to end."""
        nodes = self._failures.excluded(count, asyncio.get_running_loop().time())
        if nodes == self._excluded:
            return
        self._excluded = nodes  # also if the call fails: the next change contains this one
        try:
            await self._call(lambda: self._gateway.exclude(nodes))
        except FlintlockError as error:
            log.warning(log_events.YARN_NODES_NOT_EXCLUDED, nodes=sorted(nodes), reason=error.public)
        else:
            log.warning(log_events.YARN_NODES_EXCLUDED, nodes=sorted(nodes))

    def _abandon(self, awaited: asyncio.Future[Container | None]) -> None:
        """Withdraw a request, or give the container back that has come for it meanwhile."""
        if awaited in self._awaited:
            self._awaited.remove(awaited)
            self._sooner.set()
        elif awaited.done() and not awaited.cancelled() and (container := awaited.result()) is not None:
            self._calls.submit(lambda: self._gateway.give_back(container))

    async def _pause(self, interval_s: float) -> None:
        """Wait for the next heartbeat, which comes at once when something is requested."""
        try:
            async with asyncio.timeout(interval_s):
                await self._sooner.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(interval_s, _TOGETHER_S))

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._calls.submit(work))


def _end_text(end: ContainerEnd, container: Container) -> str:
    said = f": {end.diagnostics}" if end.diagnostics else ""
    return f"its container on {container.node} has ended with exit status {end.exit_status}{said}"
