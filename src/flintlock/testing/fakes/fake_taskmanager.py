"""A TaskManager that records what it is asked to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from flintlock.model.application import ShutDownCluster
from flintlock.model.causes import CauseId, current_cause
from flintlock.model.commands import CommandAccepted, TaskAnswer, TaskCommand
from flintlock.model.diagnostics import ProcessAnswer, ProcessLogsListed, ProcessQuery
from flintlock.model.errors import FlintlockError, NotFound
from flintlock.model.ids import InstanceId, JobId
from flintlock.model.slots import (
    LivenessProbe,
)
from flintlock.model.tasks import (
    DeploymentAnswer,
    DeployTask,
    LogChunk,
    LoggedJobs,
    LoggedJobsQuery,
    LogQuery,
    PublishFiles,
    RemoveFiles,
    RemoveLogs,
)


class FakeTaskManager:
    """A TaskManagerGateway. `fail_with` is raised by every call; `on_deploy` is awaited after each deployment."""

    def __init__(self) -> None:
        self.deployed: list[DeployTask] = []
        self.commands: list[TaskCommand] = []
        self.causes: list[tuple[str, CauseId | None]] = []  # of each deployment and command
        self.published: list[PublishFiles] = []
        self.removed: list[RemoveFiles] = []
        self.shut_downs: list[ShutDownCluster] = []
        self.process_queries: list[ProcessQuery] = []
        self.logged: list[JobId] = []  # jobs whose output is there
        self.logs: dict[str, bytes] = {}  # by attempt, as text
        self.fail_with: FlintlockError | None = None
        self.on_deploy: Callable[[DeployTask], Awaitable[None]] | None = None
        self.silent = False  # commands are recorded, and never answered
        self.tries = 0  # calls of any kind, failed ones too
        self.over: set[InstanceId] = set()  # instances that have ended
        self.gone = asyncio.Event()  # set when the current instance has ended

    async def deploy(self, message: DeployTask) -> DeploymentAnswer:
        """Record the deployment."""
        self._try()
        self.deployed.append(message)
        self.causes.append(("deploy", current_cause()))
        if self.on_deploy is not None:
            await self.on_deploy(message)
        return DeploymentAnswer()

    async def command(self, message: TaskCommand) -> TaskAnswer:
        """Record the command."""
        self._try()
        self.commands.append(message)
        self.causes.append((type(message).__name__, current_cause()))
        if self.silent:
            await asyncio.get_running_loop().create_future()
        return CommandAccepted()

    async def publish(self, message: PublishFiles) -> None:
        """Record the request."""
        self._try()
        self.published.append(message)

    async def remove_files(self, message: RemoveFiles) -> None:
        """Record the request."""
        self._try()
        self.removed.append(message)

    async def watch_liveness(self, message: LivenessProbe) -> None:
        """Return once that instance has ended; at once for no instance."""
        self._try()
        if message.instance and message.instance not in self.over:
            await self.gone.wait()

    async def shut_down(self, message: ShutDownCluster) -> None:
        """Record the request."""
        self._try()
        self.shut_downs.append(message)

    async def query_process(self, message: ProcessQuery) -> ProcessAnswer:
        """Record the query, and list no log files."""
        self._try()
        self.process_queries.append(message)
        return ProcessLogsListed(files=())

    async def read_log(self, message: LogQuery) -> LogChunk:
        """Return from `logs`."""
        self._try()
        text = self.logs.get(str(message.attempt))
        if text is None:
            raise NotFound(f"no output of attempt {message.attempt} is here")
        piece = text[message.offset : message.offset + message.limit]
        return LogChunk(data=piece, offset=message.offset, size=len(text), complete=True)

    async def logged_jobs(self, message: LoggedJobsQuery) -> LoggedJobs:
        """Return a page of `logged`."""
        self._try()
        return LoggedJobs(job_ids=tuple(sorted(each for each in self.logged if each > message.after)[: message.limit]))

    async def remove_logs(self, message: RemoveLogs) -> None:
        """Remove them from `logged`."""
        self._try()
        self.logged = [job_id for job_id in self.logged if job_id not in message.job_ids]

    def _try(self) -> None:
        self.tries += 1
        if self.fail_with is not None:
            raise self.fail_with


class FakeTaskManagers:
    """A TaskManagerConnector: one FakeTaskManager for each address, created by the first call."""

    def __init__(self) -> None:
        self.at: dict[str, FakeTaskManager] = {}

    def __call__(self, address: str) -> FakeTaskManager:
        """Return the TaskManager at that address."""
        return self.at.setdefault(address, FakeTaskManager())
