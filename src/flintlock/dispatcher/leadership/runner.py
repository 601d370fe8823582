"""The DispatcherRunner: contends for leadership until the JobManager ends.

Terms follow one another: a term begins when the one before has ended as a whole, its JobMasters suspended, its tasks
done. A term that the stores refuse (Fenced) is given up, and the runner contends again. A leader process that returns
shuts the cluster down. Anything else that ends a leader process by itself is fatal and leaves `run`, so that the
JobManager process ends and can be started again.

The leader's address is published twice: when the term begins, so that standbys can watch the leader, and when the
leader serves. A store that is out of reach is retried; the term does not wait for it.

A shut-down is announced to the standbys before the term is given up: each of them has a `watch_liveness` call open, and
its answer carries the status. A standby that does not watch the leader misses it and takes over: then the cluster goes
on, with all its jobs, and the request has to be repeated. Rejected: a durable mark that the cluster is shut down. It
would have to be removed before the next start, by a process that cannot know whether others still have to read it.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog
from structlog.typing import FilteringBoundLogger

from flintlock.dispatcher.endpoint import Dispatcher
from flintlock.dispatcher.leadership.current_dispatcher import CurrentDispatcher
from flintlock.dispatcher.leadership.leader_process import DispatcherLeaderProcess, DispatcherLeaderProcessFactory
from flintlock.dispatcher.leadership.members import JobManagers
from flintlock.gateways.leader import LeaderAnswer, LeaderLivenessProbe, TermEnd
from flintlock.ha.leader_info import LeaderAddresses, LeaderInfo
from flintlock.ha.protocols import HaServices
from flintlock.model import log_events
from flintlock.model.application import ApplicationStatus
from flintlock.model.errors import Fenced, Unavailable
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import FencingToken

log: FilteringBoundLogger = structlog.get_logger()

_PUBLISH_AGAIN_S: Final = 0.1
#: How long a leader that shuts down keeps its term after it has answered the standbys: their answers are on the way.
_ANNOUNCEMENT_S: Final = 0.5


class DispatcherRunner:
    """Leads whenever it is granted leadership. Implements LeaderGateway.

    `removes_ha_data`: a cluster that has ended for good leaves nothing in the HA services.
    """

    def __init__(
        self,
        ha: HaServices,
        leader_processes: DispatcherLeaderProcessFactory,
        dispatcher: CurrentDispatcher,
        addresses: LeaderAddresses,
        *,
        members: JobManagers | None = None,
        removes_ha_data: bool = False,
    ) -> None:
        self._ha: Final = ha
        self._leader_processes: Final = leader_processes
        self._current: Final = dispatcher
        self._addresses: Final = addresses
        self._members: Final = members or JobManagers(lambda: 0)
        self._removes_ha_data: Final = removes_ha_data
        self._terms: Final[dict[FencingToken, _Term]] = {}  # the term it is in

    async def run(self) -> ApplicationStatus:
        """Contend and lead until cancelled, or until the cluster shuts down. Raises what is fatal to the process."""
        async for term in self._ha.election.terms():
            status: ApplicationStatus | None = None
            try:
                async with term as token:
                    status = await self._lead(token)
            except* Fenced as fenced:
                log.warning(log_events.LEADER_FENCED, errors=[str(error) for error in fenced.exceptions])
            _raise_if_cancelled()  # a TaskGroup that raises Fenced drops a cancellation that came meanwhile
            if status is not None:
                return status
        return ApplicationStatus.UNKNOWN  # the election has ended: this process has resigned

    def is_in(self, token: FencingToken) -> bool:
        """Return whether this process is in that term, confirmed or not."""
        return token in self._terms

    async def watch_liveness(self, message: LeaderLivenessProbe) -> TermEnd:
        """Answer when that term is over here."""
        term = self._terms.get(message.token)
        if term is None:
            return TermEnd()
        with self._members.watched_by(message.standby):
            return await term.ended()

    async def check_liveness(self, message: LeaderLivenessProbe) -> LeaderAnswer:
        """Answer at once whether this process is in that term."""
        return LeaderAnswer(in_term=self.is_in(message.token))

    async def _lead(self, token: FencingToken) -> ApplicationStatus:
        term = self._terms.setdefault(token, _Term(token, self._current))
        process = self._leader_processes.create(token, self._ha.stores(token))
        try:
            with self._members.leading(token, self._addresses.as_standby()):
                return await self._run_process(token, term, process)
        finally:
            del self._terms[token]
            term.end(None)

    async def _run_process(
        self, token: FencingToken, term: _Term, process: DispatcherLeaderProcess
    ) -> ApplicationStatus:
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(self._publish_address(token, term.confirmed), name=f"publish-{token.epoch}")
            try:
                status = await process.run(term)
            finally:
                publishing.cancel()
        if self._removes_ha_data and status.is_final:
            await self._remove_ha_data(token)
        return status

    async def _remove_ha_data(self, token: FencingToken) -> None:
        try:
            await self._ha.cleanup_all_data(token)
        except Unavailable as error:  # the cluster has ended all the same
            log.warning(log_events.HA_DATA_NOT_REMOVED, reason=error.public)

    async def _publish_address(self, token: FencingToken, confirmed: asyncio.Event) -> None:
        """Publish where this leader listens, and again when it serves. Raises Fenced if a newer leader has."""
        await self._publish(self._addresses.leads(token, confirmed=False))
        await confirmed.wait()
        await self._publish(self._addresses.leads(token, confirmed=True))

    async def _publish(self, info: LeaderInfo) -> None:
        problem = RepeatedFailure()
        while True:
            try:
                await self._ha.leader.publish(info)
            except Unavailable as error:
                if problem.occurred(error.public, asyncio.get_running_loop().time()):
                    log.info(log_events.LEADER_ADDRESS_NOT_PUBLISHED, epoch=info.token.epoch, reason=error.public)
                await asyncio.sleep(_PUBLISH_AGAIN_S)
            else:
                return


def _raise_if_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class _Term:
    """What others see of one term. Implements LeadershipListener."""

    def __init__(self, token: FencingToken, current: CurrentDispatcher) -> None:
        self._token: Final = token
        self._current: Final = current
        self._over: Final = asyncio.Event()  # set once, by `end`
        self._end = TermEnd()  # written before that is set
        self.confirmed: Final = asyncio.Event()

    def confirm(self, dispatcher: Dispatcher) -> None:
        """Forward calls to the Dispatcher."""
        self._current.confirm(self._token, dispatcher)
        self.confirmed.set()

    def withdraw(self) -> None:
        """Forward no more calls."""
        self._current.withdraw(self._token)

    async def shut_down(self, status: ApplicationStatus) -> None:
        """Answer the standbys, and give the answers time to arrive."""
        log.info(log_events.CLUSTER_SHUTTING_DOWN, status=status)
        self.end(status)
        await asyncio.sleep(_ANNOUNCEMENT_S)

    def end(self, shut_down: ApplicationStatus | None) -> None:
        """The term is over, with the whole cluster if there is a status. The first call counts."""
        if not self._over.is_set():
            self._end = TermEnd(shut_down=shut_down)
            self._over.set()

    async def ended(self) -> TermEnd:
        """Return once the term is over."""
        await self._over.wait()
        return self._end
