"""The ResourceManager's shell, for one term: hears everybody, tells JobMasters what its core decided.

What one job is told arrives in the order of the decisions (a grant that overtakes the news of a loss would send a task
to a dead TaskManager): each job that has to hear something has a courier for as long as there is something to say. A
JobMaster that is gone wants nothing any more: what it held is free.

The calls of the gateway answer as soon as the decision is made; nobody waits for a courier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.gateways.jobmaster import JobMasterGateway
from flintlock.gateways.taskmanager import TaskManagerConnector
from flintlock.model import options
from flintlock.model.configuration import Configuration
from flintlock.model.errors import Fenced, FlintlockError, NotFound, Refused, Unavailable
from flintlock.model.ids import FencingToken, JobId
from flintlock.model.jobgraph import Versions
from flintlock.model.slots import (
    Heartbeat,
    HeartbeatAnswer,
    RegistrationAnswer,
    ResourceOverview,
    ResourceRequirements,
    SlotGrant,
    TaskManagerLost,
    TaskManagerRegistration,
)
from flintlock.model.tasks import LogChunk, LogQuery, RemoveFiles
from flintlock.resourcemanager.core import ResourceManagerCore, Word

log: FilteringBoundLogger = structlog.get_logger()

TASK_MANAGER_REGISTERED: Final = "task-manager-registered"
TASK_MANAGER_LOST: Final = "task-manager-lost"
JOB_MASTER_GONE: Final = "job-master-gone"
FILES_NOT_REMOVED: Final = "files-not-removed"

_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 5.0


class ResourceManager:
    """Implements ResourceManagerGateway. It hears everybody from the beginning, and speaks while `run` runs.

    Once `run` has ended, every call raises Unavailable.
    """

    def __init__(
        self,
        *,
        job_masters: JobMasterGateway,
        task_managers: TaskManagerConnector,
        clock_ms: Callable[[], int],
        token: FencingToken,
        versions: Versions,
        configuration: Configuration,
    ) -> None:
        self._job_masters = job_masters
        self._connect = task_managers
        self._clock_ms = clock_ms
        self._answer: Final = RegistrationAnswer(
            token=token,
            heartbeat_interval_s=configuration.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=configuration.get(options.HEARTBEAT_TIMEOUT),
        )
        self._core: Final = ResourceManagerCore(versions, self._answer.heartbeat_timeout_s)
        self._scope: asyncio.TaskGroup | None = None  # while it runs
        self._over = False  # it has run
        self._words: dict[JobId, deque[Word]] = {}  # not yet delivered; each emptied by the job's own courier

    async def run(self) -> None:
        """Serve for a term. Ends only by being cancelled, or with Fenced if a newer leader was met."""
        try:
            async with asyncio.TaskGroup() as scope:
                self._scope = scope
                for job_id in self._words:
                    self._send_courier(scope, job_id)
                try:
                    await self._watch()
                finally:
                    self._scope, self._over = None, True
        except* Fenced as group:
            raise Fenced("a JobMaster follows a newer leader") from group

    # For TaskManagers

    async def register_task_manager(self, message: TaskManagerRegistration) -> RegistrationAnswer:
        """Take a TaskManager's offer; its slots are given out from its first heartbeat on.

        Asking again changes nothing. Raises Refused for one that does not fit.
        """
        self._require_term()
        self._core.register(message, _now_s())
        return self._answer

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        """Note that a TaskManager lives; one that is not known has to register."""
        self._require_term()
        before = self._core.is_registered(message)
        known, words = self._core.heartbeat(message, _now_s())
        if known and not before:
            log.info(TASK_MANAGER_REGISTERED, task_manager=message.id, instance=message.instance)
        self._tell(words)
        return HeartbeatAnswer(known=known)

    async def unregister_task_manager(self, message: Heartbeat) -> None:
        """Let a TaskManager go at once. Harmless if it is not known."""
        self._require_term()
        self._tell(self._core.unregister(message))

    # For JobMasters

    async def declare_requirements(self, message: ResourceRequirements) -> None:
        """Replace all that a job wants. Idempotent."""
        self._require_term()
        self._tell(self._core.declare(message, self._clock_ms()))

    # For everybody

    async def overview(self) -> ResourceOverview:
        """Return TaskManagers and the queue."""
        self._require_term()
        return self._core.overview(_now_s(), self._clock_ms())

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Ask the TaskManager that has it. Raises NotFound if that is not registered."""
        self._require_term()
        return await self._connect(self._core.address(message.task_manager)).read_log(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Have one TaskManager after another try it, until one has done it.

        Raises Unavailable if there is none, Refused if the last one refused.
        """
        self._require_term()
        problem: FlintlockError = Unavailable("no TaskManager is registered that could remove files")
        for address in self._core.addresses():
            try:
                await self._connect(address).remove_files(message)
                return
            except Fenced:
                raise
            except FlintlockError as error:
                log.warning(FILES_NOT_REMOVED, job_id=message.job_id, address=address, reason=error.public)
                problem = error
        if isinstance(problem, Refused | Unavailable):
            raise problem
        raise Unavailable(f"no TaskManager could remove the files of job {message.job_id}") from problem

    # Inside

    async def _watch(self) -> None:
        """Give up those who fall silent. Who registers meanwhile cannot be overdue before this looks again."""
        while True:
            await asyncio.sleep(self._core.next_silence_s(_now_s()) + 0.001)
            self._tell(self._core.hear_silence(_now_s()))

    def _tell(self, words: Iterable[Word]) -> None:
        for word in words:
            if isinstance(word, TaskManagerLost):
                log.warning(
                    TASK_MANAGER_LOST,
                    task_manager=word.task_manager,
                    instance=word.instance,
                    reason=word.reason,
                    job_id=word.job_id,
                )
            waiting = self._words.get(word.job_id)
            if waiting is not None:
                waiting.append(word)
                continue
            self._words[word.job_id] = deque((word,))
            if self._scope is not None:
                self._send_courier(self._scope, word.job_id)

    def _send_courier(self, scope: asyncio.TaskGroup, job_id: JobId) -> None:
        scope.create_task(self._deliver(job_id), name=f"tell-{job_id}")

    async def _deliver(self, job_id: JobId) -> None:
        """Tell a job what it has to hear, in order, until nothing is left."""
        words = self._words[job_id]
        wait_s = _FIRST_WAIT_S
        try:
            while words:
                try:
                    await self._deliver_one(words[0])
                    words.popleft()
                    wait_s = _FIRST_WAIT_S
                except NotFound:
                    log.info(JOB_MASTER_GONE, job_id=job_id)
                    words.clear()
                    self._tell(self._core.declare(ResourceRequirements(job_id=job_id), self._clock_ms()))
                except Unavailable:
                    await asyncio.sleep(wait_s)
                    wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
        finally:
            del self._words[job_id]

    async def _deliver_one(self, word: Word) -> None:
        match word:
            case SlotGrant():
                if self._core.is_granted(word):  # else it was taken back while it waited
                    await self._job_masters.slots_granted(word)
            case TaskManagerLost():
                await self._job_masters.task_manager_lost(word)

    def _require_term(self) -> None:
        if self._over:
            raise Unavailable("this ResourceManager's term is over")


def _now_s() -> float:
    """Return the loop's own time: it never jumps."""
    return asyncio.get_running_loop().time()
