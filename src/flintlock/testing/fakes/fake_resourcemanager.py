"""ResourceManagers without a SlotManager.

`FakeResourceManager` registers every TaskManager and grants no slots; `GrantingResourceManager` has endless slots.
"""

from __future__ import annotations

import asyncio

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.diagnostics import ProcessAnswer, ProcessQuery
from flintlock.model.errors import FlintlockError, NotFound, Refused, Unavailable
from flintlock.model.ids import (
    AttemptId,
    Epoch,
    FencingToken,
    InstanceId,
    JobId,
    TaskManagerId,
)
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegisteredTaskManagers,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    SlotRequest,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LoggedJobs, LoggedJobsQuery, LogQuery, RemoveFiles, RemoveLogs
from flintlock.testing.samples import TOKEN


class FakeResourceManager:
    """A ResourceManagerGateway that registers every TaskManager and grants no slots."""

    def __init__(self, *, epoch: int = 1, heartbeat_interval_s: float = 2.0) -> None:
        self.fail_with: FlintlockError | None = None  # raised by every call while it is set
        self.refuse_busy = False  # refuse TaskManagers that register with running work
        self.over: set[InstanceId] = set()  # refuse these incarnations
        self.deaf = False  # heartbeats of registered TaskManagers are not answered
        self.token = FencingToken(Epoch(epoch), f"session-{epoch}")
        self.heartbeat_interval_s = heartbeat_interval_s
        self.heartbeat_timeout_s: float | None = None  # ten intervals, unless it is set
        self.registered: list[TaskManagerRegistration] = []
        self.heartbeats: list[Heartbeat] = []
        self.unregistered: list[Heartbeat] = []
        self.requirements: list[ResourceRequirements] = []
        self.removed: list[RemoveFiles] = []
        self.removals_s: list[float] = []  # when each removal was requested, failed ones too
        self.seen = ResourceOverview()  # what `overview` answers
        self.overviews = 0  # how often it was called
        self.looks = 0  # how often `task_managers` was called
        self.logged: list[JobId] = []  # jobs whose output is at some TaskManager
        self.logged_pages: list[LoggedJobsQuery] = []  # of them that were asked for
        self.logs: dict[AttemptId, bytes] = {}
        self.process_answers: dict[ProcessQuery, ProcessAnswer] = {}
        self.complete_logs: set[AttemptId] = set()
        self.stderr: dict[AttemptId, tuple[tuple[int, int], ...]] = {}  # which bytes of `logs` are standard error
        self._known: set[InstanceId] = set()

    def lead(self, epoch: int) -> None:
        """Become the ResourceManager of another term, with which no TaskManager is registered."""
        self.token = FencingToken(Epoch(epoch), f"session-{epoch}")
        self._known.clear()

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Register it."""
        self._fail()
        if (message.busy and self.refuse_busy) or message.instance in self.over:
            raise Refused(f"instance {message.instance} is over")
        self.registered.append(message)
        self._known.add(message.instance)
        return RegistrationAnswer(
            token=self.token,
            heartbeat_interval_s=self.heartbeat_interval_s,
            heartbeat_timeout_s=self.heartbeat_timeout_s or 10 * self.heartbeat_interval_s,
        )

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Return whether it is registered."""
        self._fail()
        if self.deaf and message.instance in self._known:
            raise Unavailable("no answer")
        self.heartbeats.append(message)
        return HeartbeatAnswer(known=message.instance in self._known)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Remove it."""
        self._fail()
        self.unregistered.append(message)
        self._known.discard(message.instance)

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Record it."""
        self._fail()
        self.requirements.append(message)

    async def task_managers(self) -> RegisteredTaskManagers:
        """Return what `seen` says of them."""
        self.looks += 1
        self._fail()
        return RegisteredTaskManagers(
            task_managers=self.seen.task_managers,
            waiting=len(self.seen.waiting),
            starting=self.seen.starting,
            queue_version=hash(self.seen.waiting),
        )

    async def overview(self) -> ResourceOverview:
        """Return `seen`."""
        self.overviews += 1
        self._fail()
        return self.seen

    async def query_task_manager(self, message: ProcessQuery) -> ProcessAnswer:
        """Return the entry of `process_answers` for this query."""
        self._fail()
        found = self.process_answers.get(message)
        if found is None:
            raise NotFound(f"TaskManager {message.task_manager!r} is not registered")
        return found

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return a part of an entry of `logs`."""
        self._fail()
        whole = self.logs.get(message.attempt)
        if whole is None:
            raise NotFound(f"no output of attempt {message.attempt}")
        offset = max(len(whole) + message.offset, 0) if message.offset < 0 else min(message.offset, len(whole))
        return LogChunk(
            data=whole[offset : offset + message.limit],
            offset=offset,
            size=len(whole),
            complete=message.attempt in self.complete_logs,
            stderr=self.stderr.get(message.attempt, ()),
        )

    async def remove_files(self, message: RemoveFiles) -> None:
        """Record it."""
        self.removals_s.append(asyncio.get_running_loop().time())
        self._fail()
        self.removed.append(message)

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return a page of `logged`."""
        self.logged_pages.append(message)
        self._fail()
        return LoggedJobs(job_ids=tuple(sorted(each for each in self.logged if each > message.after)[: message.limit]))

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Remove them from `logged`."""
        self._fail()
        self.logged = [job_id for job_id in self.logged if job_id not in message.job_ids]

    def _fail(self) -> None:
        if self.fail_with is not None:
            raise self.fail_with


class GrantingResourceManager:
    """A ResourceManagerGateway with endless slots: grants each request once and immediately, unless `automatic` is off.

    TaskManager ids are "tm-1", "tm-2", …; new grants are on `place_on`.
    """

    def __init__(self, job_masters: JobMasterGateway, *, automatic: bool = True) -> None:
        self._job_masters = job_masters
        self.automatic = automatic
        self.place_on = TaskManagerId("tm-1")
        self.declarations: list[ResourceRequirements] = []
        self.causes: list[CauseId | None] = []  # of each declaration
        self.granted: dict[tuple[JobId, str], SlotGrant] = {}
        self.fail_with: FlintlockError | None = None
        self.removed: list[RemoveFiles] = []
        self.registered: list[TaskManagerRegistration] = []
        self.heartbeats: list[Heartbeat] = []

    def wanted(self, job_id: JobId) -> tuple[SlotRequest, ...]:
        """Return the latest requests of the job."""
        latest = [d for d in self.declarations if d.job_id == job_id]
        return latest[-1].requests if latest else ()

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Record it, and grant the requests that are new in it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.declarations.append(message)
        self.causes.append(current_cause())
        requested = {(message.job_id, str(request.id)) for request in message.requests}
        for key in [key for key in self.granted if key[0] == message.job_id and key not in requested]:
            del self.granted[key]
        if self.automatic:
            for request in message.requests:
                if (message.job_id, str(request.id)) not in self.granted:
                    await self.grant(message.job_id, request)

    async def grant(self, job_id: JobId, request: SlotRequest) -> SlotGrant:
        """Grant a request on `place_on`."""
        name = self.place_on
        grant = SlotGrant(
            job_id=job_id,
            request=request.id,
            task_manager=name,
            instance=InstanceId(f"{name}-instance"),
            address=f"{name}:1",
            slots=tuple(range(request.slots or request.at_most or 1)),
        )
        self.granted[job_id, str(request.id)] = grant
        await self._job_masters.slots_granted(grant)
        return grant

    async def lose(self, name: str, reason: str = "it was silent") -> None:
        """Notify every job that has slots on that TaskManager that it is lost."""
        lost = {key: grant for key, grant in self.granted.items() if grant.task_manager == name}
        for key in lost:
            del self.granted[key]
        for job_id in dict.fromkeys(key[0] for key in lost):
            await self._job_masters.task_manager_lost(
                TaskManagerLost(
                    job_id=job_id,
                    task_manager=TaskManagerId(name),
                    instance=InstanceId(f"{name}-instance"),
                    reason=reason,
                )
            )

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Record it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.registered.append(message)
        return RegistrationAnswer(token=TOKEN, heartbeat_interval_s=2.0, heartbeat_timeout_s=50.0)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Return whether it is registered."""
        if self.fail_with is not None:
            raise self.fail_with
        self.heartbeats.append(message)
        return HeartbeatAnswer(known=any(r.instance == message.instance for r in self.registered))

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Remove it."""
        self.registered = [r for r in self.registered if r.instance != message.instance]

    async def task_managers(self) -> RegisteredTaskManagers:
        """Return none."""
        return RegisteredTaskManagers()

    async def overview(self) -> ResourceOverview:
        """Return an empty overview."""
        return ResourceOverview()

    async def query_task_manager(self, message: ProcessQuery) -> ProcessAnswer:
        """Raise NotFound: nothing answers."""
        raise NotFound(f"TaskManager {message.task_manager!r} is not registered")

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Raise NotFound: there are no logs."""
        raise NotFound(f"TaskManager {message.task_manager!r} is not registered")

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return none."""
        return LoggedJobs()

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Do nothing."""

    async def remove_files(self, message: RemoveFiles) -> None:
        """Record it."""
        if self.fail_with is not None:
            raise self.fail_with
        self.removed.append(message)
