"""One term of a JobManager: recover, then dispatch, until the term is over or the cluster shuts down.

    CREATED -> RUNNING (dirty results, graphs, progress; then a Dispatcher; then leadership is confirmed) -> STOPPED

Losing leadership cancels `run`, wherever it is. A term that is lost before or during recovery never has a Dispatcher.
The only other end is a shut-down of the whole cluster, which the Dispatcher is asked for: then `run` suspends the jobs,
has the other processes of the cluster end, and returns the status.

The process is made by a factory, which is what differs between deployment modes. `SessionLeaderProcessFactory` recovers
all jobs and waits for submissions, until the cluster is shut down on request. `ApplicationLeaderProcessFactory` is for
a cluster of one application: that stores its job before recovery, and decides when the cluster ends, and how.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.endpoint import Dispatcher, dispatching
from flintlock.dispatcher.recovery import recover
from flintlock.dispatcher.services import DispatcherServices, TermOpener
from flintlock.ha.leader_gate import LeaderGate
from flintlock.ha.protocols import Stores
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.causes import caused_by, internal_cause
from flintlock.model.errors import Conflict, InvariantBroken
from flintlock.model.ids import FencingToken, JobId

log: FilteringBoundLogger = structlog.get_logger()


class ClusterApplication(Protocol):
    """What a cluster of one application runs. What its methods raise ends the process; both may be cancelled."""

    def refuse(self, job_id: JobId) -> Conflict | None:
        """Return why the cluster does not accept a job now; None: it does. Must not block."""
        ...

    async def prepare(self, stores: Stores, services: DispatcherServices, gate: LeaderGate) -> None:
        """Store what recovery is to find. Each term calls it first: it has to be idempotent."""
        ...

    async def run(self, dispatcher: Dispatcher) -> ApplicationStatus:
        """Run beside the Dispatcher of a confirmed leader; return the status with which the cluster ends.

        Also a request to shut the cluster down (`Dispatcher.wait_for_shut_down`) is answered here.
        """
        ...


class LeaderState(StrEnum):
    """The state of a leader process."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class LeadershipListener(Protocol):
    """Is notified of what happens in a term."""

    def confirm(self, dispatcher: Dispatcher) -> None:
        """Leadership is confirmed: the Dispatcher takes calls."""
        ...

    def withdraw(self) -> None:
        """The Dispatcher is about to stop."""
        ...

    async def shut_down(self, status: ApplicationStatus) -> None:
        """The cluster shuts down; the jobs of the term are suspended. Notifies the other JobManagers."""
        ...


class DispatcherLeaderProcess:
    """One term. It runs once."""

    def __init__(
        self,
        token: FencingToken,
        stores: Stores,
        services: DispatcherServices,
        open_term: TermOpener,
        application: ClusterApplication | None = None,
    ) -> None:
        self.token: Final = token
        self.state = LeaderState.CREATED  # written by `_move`
        self._stores: Final = stores
        self._services: Final = services
        self._open_term: Final = open_term
        self._application: Final = application

    async def run(self, listener: LeadershipListener) -> ApplicationStatus:
        """Lead until cancelled, or until the Dispatcher is asked to shut the cluster down; return the status then.

        Raises (in a group) what ended the Dispatcher or the application, or the error of a store that cannot be listed.
        """
        if self.state is not LeaderState.CREATED:
            raise InvariantBroken(f"the leader process of {self.token} is {self.state}: it runs only once")
        with bound_contextvars(epoch=self.token.epoch):
            self._move(LeaderState.RUNNING)
            try:
                async with self._open_term(self.token, self._stores) as term:
                    with caused_by(internal_cause("recovery", self.token.epoch)):
                        if self._application is not None:
                            await self._application.prepare(self._stores, self._services, term.gate)
                        recovery = await recover(self._stores, self._services, term.gate)
                    await asyncio.sleep(0)  # a term that was lost meanwhile ends here, before there is a Dispatcher
                    async with dispatching(self._services, term, recovery, self._refuse) as dispatcher:
                        await asyncio.sleep(0)  # each recovered job takes its first step, which creates its JobMaster
                        term.admit()
                        listener.confirm(dispatcher)
                        try:
                            status = await self._until_shut_down(dispatcher)
                        finally:
                            listener.withdraw()
                    await listener.shut_down(status)
                    await term.stop_task_managers()
                    return status
            finally:
                self._move(LeaderState.STOPPED)

    def _refuse(self, job_id: JobId) -> Conflict | None:
        return None if self._application is None else self._application.refuse(job_id)

    async def _until_shut_down(self, dispatcher: Dispatcher) -> ApplicationStatus:
        if self._application is None:
            return await dispatcher.wait_for_shut_down()
        return await self._application.run(dispatcher)

    def _move(self, state: LeaderState) -> None:
        self.state = state
        log.info(log_events.LEADER_PROCESS_STATE_CHANGED, epoch=self.token.epoch, state=state)


class DispatcherLeaderProcessFactory(Protocol):
    """Makes the leader process of a term, as the deployment mode has it."""

    def create(self, token: FencingToken, stores: Stores) -> DispatcherLeaderProcess:
        """Return a leader process that has not run."""
        ...


@dataclass(frozen=True, slots=True)
class SessionLeaderProcessFactory:
    """The factory of a session cluster: all stored jobs are recovered, and clients submit more."""

    services: DispatcherServices
    open_term: TermOpener

    def create(self, token: FencingToken, stores: Stores) -> DispatcherLeaderProcess:
        """Return the leader process of a term."""
        return DispatcherLeaderProcess(token, stores, self.services, self.open_term)


@dataclass(frozen=True, slots=True)
class ApplicationLeaderProcessFactory:
    """The factory of a cluster that runs one application, and ends with it."""

    services: DispatcherServices
    open_term: TermOpener
    application: ClusterApplication

    def create(self, token: FencingToken, stores: Stores) -> DispatcherLeaderProcess:
        """Return the leader process of a term."""
        return DispatcherLeaderProcess(token, stores, self.services, self.open_term, self.application)
