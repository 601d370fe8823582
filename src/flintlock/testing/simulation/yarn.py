"""A simulated YARN for one application: its ResourceManager, and nodes that run containers.

It behaves as a real one was seen to, and at its worst. Containers come up to a minute after their request, some of them
though the request was withdrawn or was never made. An end is reported late, to whichever attempt of the
ApplicationMaster is the present one, and to the next one again. A container may be written off: its process ends a
little later, or runs on for as long as it has a leader. All that YARN counts as running passes to the next attempt,
also what was allocated and never launched; some nodes report theirs only after that attempt has registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from flintlock.model.errors import Unavailable
from flintlock.model.ids import TaskManagerId
from flintlock.testing.simulation.network import SimulatedNetwork
from flintlock.yarn.messages import (
    ABORTED,
    KILLED_BY_APPLICATION_MASTER,
    PREEMPTED,
    Allocation,
    Container,
    ContainerEnd,
    Registered,
)

_NODES: Final = 3
_KILLED: Final = 137  # by a signal from outside
_LATEST_ALLOCATIONS_S: Final = (1.0, 5.0, 60.0)
_SURPLUS: Final = 0.1  # probability that one more container comes with one that was requested
_TOO_LATE: Final = 0.3  # probability that a container comes for a request that was withdrawn
_LAUNCH_FAILURES: Final = 0.1
_STALLED_STARTS: Final = 0.05  # probability that a process is started and never registers
_UNANSWERED_STOPS: Final = 0.1
_LATE_REPORTS: Final = 0.1
_LATEST_REPORT_S: Final = 30.0
_UNSEEN: Final = 0.3  # probability that a node reports a container only after the next attempt has begun
_REPEATED_ENDS: Final = 5  # that are reported to the next attempt again


class SimulatedYarn:
    """What YARN knows of the application, and the processes in its containers."""

    def __init__(
        self,
        random: Random,
        network: SimulatedNetwork,
        run: Callable[[str], Awaitable[None]],
        record: Callable[[str], None],
    ) -> None:
        self.attempt = 0  # the present one
        self.has_finished = False  # it was unregistered
        self.running: Final[dict[TaskManagerId, str]] = {}  # the node of each container whose process runs
        self._random: Final = random
        self._network: Final = network
        self._record: Final = record
        self._run: Final = run  # runs the process of a TaskManager, until it ends
        self._tasks: asyncio.TaskGroup | None = None  # while the cluster runs
        self._allocated = 0  # so far
        self._held: Final[dict[str, Container]] = {}  # those that YARN counts as running, until their end is reported
        self._unseen: dict[str, float] = {}  # those of them that their nodes have not reported, until when
        self._requests: list[float] = []  # of the present attempt: when each is granted
        self._surplus = 0  # containers that come with the next heartbeat, for no request
        self._ends: list[tuple[float, ContainerEnd]] = []  # not yet reported, with the time when YARN learns of them
        self._reported: list[ContainerEnd] = []  # the latest ones
        self._stalled: Final[dict[str, asyncio.Event]] = {}  # processes that never register; set when one is ended
        self._statuses: Final[dict[str, int]] = {}  # exit statuses of processes that are being ended

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Run containers as children of this group."""
        self._tasks = tasks

    def left_over(self) -> list[str]:
        """Return the processes that run, and the containers that YARN counts as running."""
        return sorted({*self.running, *self._held})

    def begin_attempt(self) -> int:
        """Start the next attempt: it has no requests, and gets all containers."""
        self.attempt += 1
        self._requests, self._surplus = [], 0
        now_s = _now_s()
        self._unseen = {
            each: now_s + self._random.uniform(1.0, 30.0)
            for each in self._held
            if each in self.running and self._random.random() < _UNSEEN
        }
        self._ends += [(now_s, end) for end in self._reported[-_REPEATED_ENDS:]]
        return self.attempt

    # What an ApplicationMaster calls

    def register(self, attempt: int) -> Registered:
        """Return the containers of earlier attempts that are known to run."""
        if attempt != self.attempt:
            raise Unavailable(f"attempt {attempt} was given up")
        containers = tuple(each for each in self._held.values() if each.id not in self._unseen)
        self._record(f"attempt {attempt} registers and gets {[each.id for each in containers]}")
        return Registered(containers=containers)

    def heartbeat(self, attempt: int, wanted: int, given_back: list[Container], excluded: frozenset[str]) -> Allocation:
        """Take containers back, grant requests whose time has come, and report ends."""
        if attempt != self.attempt or self.has_finished:
            return Allocation(shut_down=True)
        for container in given_back:
            self._write_off(container.id, ABORTED, self._random.uniform(0.0, 2.0))
        now_s = _now_s()
        seen = [each for each, until_s in self._unseen.items() if until_s <= now_s]
        for each in seen:
            del self._unseen[each]
            self._record(f"attempt {attempt} gets {each} from a node that reports it late")
        completed = tuple(end for due_s, end in self._ends if due_s <= now_s)
        self._ends = [(due_s, end) for due_s, end in self._ends if due_s > now_s]
        self._reported += completed
        for end in completed:
            self._held.pop(end.id, None)
            self._record(f"attempt {attempt} learns that {end.id} has completed with exit status {end.exit_status}")
        return Allocation(
            recovered=tuple(self._held[each] for each in seen if each in self._held),
            allocated=tuple(self._allocate(excluded) for _ in range(self._granted(wanted, now_s))),
            completed=completed,
            nodes=_NODES,
        )

    def launch(self, container: Container) -> None:
        """Start the process of a container. A node takes that from an attempt that was given up, too."""
        if self._tasks is None or container.id not in self._held or self._random.random() < _LAUNCH_FAILURES:
            raise Unavailable("the container was not started: simulated")
        worker = TaskManagerId(container.id)
        self.running[worker] = container.node
        self._tasks.create_task(self._keep(worker), name=f"keep-{worker}")

    def stop(self, container: Container) -> None:
        """End the process of a container. Raises Unavailable for one in which nothing was started."""
        if self._random.random() < _UNANSWERED_STOPS:
            raise Unavailable("the node does not answer: simulated")
        if container.id in self.running:
            self._kill(container.id, KILLED_BY_APPLICATION_MASTER, self._random.uniform(0.0, 0.5))
        elif not any(end.id == container.id for _, end in self._ends):
            raise Unavailable(f"{container.node} does not know container {container.id}")

    def unregister(self, attempt: int) -> None:
        """End the application with all containers that YARN knows."""
        if attempt != self.attempt:
            raise Unavailable(f"attempt {attempt} was given up")
        self.has_finished = True
        for each in self._held:
            self._kill(each, _KILLED, self._random.uniform(0.0, 2.0))
        self._held.clear()

    # What goes wrong

    def lose_a_container(self) -> str:
        """Write a container off, and end its process soon, or never; return which."""
        running = [each for each in self._held if each in self.running]
        if not running:
            return "no container"
        lost = self._random.choice(running)
        status = self._random.choice([ABORTED, ABORTED, PREEMPTED])
        # One that has stalled has no leader: no promise says who ends it once YARN does not.
        runs_on = status == ABORTED and self._random.random() < 0.7 and lost not in self._stalled
        self._write_off(lost, status, None if runs_on else self._random.uniform(0.0, 5.0))
        return f"{lost}, which runs on," if runs_on else lost

    def _write_off(self, container_id: str, status: int, ends_s: float | None) -> None:
        if self._held.pop(container_id, None) is None:
            return
        self._ends.append((_now_s(), ContainerEnd(id=container_id, exit_status=status, diagnostics="simulated")))
        if ends_s is not None:
            self._kill(container_id, status, ends_s)

    # Inside

    def _granted(self, wanted: int, now_s: float) -> int:
        """Return how many containers come now."""
        for _ in range(len(self._requests), wanted):
            self._requests.append(now_s + self._random.uniform(0.2, self._random.choice(_LATEST_ALLOCATIONS_S)))
        while len(self._requests) > wanted:
            self._requests.pop()
            self._surplus += self._random.random() < _TOO_LATE
        due = [at_s for at_s in self._requests if at_s <= now_s]
        self._requests = [at_s for at_s in self._requests if at_s > now_s]
        if due and self._random.random() < _SURPLUS:
            self._surplus += 1
        granted, self._surplus = len(due) + self._surplus, 0
        return granted

    def _allocate(self, excluded: frozenset[str]) -> Container:
        self._allocated += 1
        hosts = [host for number in range(_NODES) if (host := f"node-{number}") not in excluded]
        host = self._random.choice(hosts)
        container = Container(id=f"container-{self._allocated}", node=f"{host}:1", node_name=host)
        self._held[container.id] = container
        self._record(f"YARN allocates {container.id}")
        return container

    async def _keep(self, worker: TaskManagerId) -> None:
        """Run the process of a container; its node reports the end, unless the container was written off."""
        if self._random.random() < _STALLED_STARTS:
            self._record(f"{worker} starts, and will not register")
            stalled = self._stalled[worker] = asyncio.Event()
            await stalled.wait()
        else:
            await self._run(worker)
        del self.running[worker]
        if worker not in self._held:
            return
        latest_s = _LATEST_REPORT_S if self._random.random() < _LATE_REPORTS else 1.0
        end = ContainerEnd(id=worker, exit_status=self._statuses.pop(worker, _KILLED), diagnostics="simulated")
        self._ends.append((_now_s() + self._random.uniform(0.1, latest_s), end))

    def _kill(self, container_id: str, status: int, after_s: float) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self._end(container_id, status, after_s), name=f"end-{container_id}")

    async def _end(self, container_id: str, status: int, after_s: float) -> None:
        await asyncio.sleep(after_s)
        process, stalled = self._network.at(container_id), self._stalled.pop(container_id, None)
        if stalled is not None:
            self._statuses[container_id] = status
            stalled.set()
        if process is not None and process.alive:
            self._statuses[container_id] = status
            process.crash()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
