"""Staying registered: find the leader, register, send heartbeats, and notice when this incarnation is over.

When the leader changes, or does not know this TaskManager, it registers again together with what it runs. An
incarnation is over when that is refused, or when the lease ends because no leader answers in time. Then all work is
ended, and only after that the next incarnation begins, under another instance id.

Attempts of an earlier leader continue under leases that are no longer than the one with which they were recorded: a
leader with a longer `heartbeat.timeout` does not extend it, as the leader after that one could not know.

When the leader's address changes, calls that wait for the former leader are abandoned: it may be dead or frozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

import structlog
from msgspec import structs

from flintlock.model import log_events
from flintlock.model.errors import Fenced, FlintlockError, Refused, Unauthenticated
from flintlock.model.failures.repeated_failures import RepeatedFailure
from flintlock.model.ids import InstanceId
from flintlock.model.slots import RegistrationAnswer
from flintlock.taskmanager.lease import CurrentLease, Lease
from flintlock.taskmanager.services import TaskManagerServices
from flintlock.taskmanager.token_guard import TokenGuard
from flintlock.taskmanager.work import LeasedWork

_RETRY_S: Final = 0.3
_REFUSED_RETRY_S: Final = 5.0
_LEADER_CHANGE_PAUSE_S: Final = 0.05
_UNREGISTER_S: Final = 2.0
#: How long to wait for an answer, and the longest pause between two heartbeats, as a fraction of the lease.
_ANSWER_PART: Final = 0.25
log = structlog.get_logger()


class Registration:
    """Keeps the work on one engine registered with the current leader."""

    def __init__(
        self,
        services: TaskManagerServices,
        *,
        lease: CurrentLease,
        work: LeasedWork,
        guard: TokenGuard,
        on_new_instance: Callable[[InstanceId], None],
    ) -> None:
        self._services: Final = services
        self._lease: Final = lease
        self._work: Final = work
        self._guard: Final = guard
        self._on_new_instance: Final = on_new_instance
        self._wait: asyncio.Timeout | None = None  # for an answer of the leader, or for the next heartbeat
        self._refused: Final = RepeatedFailure()
        self._logged: tuple[str, str] | None = None  # the latest problem: while it repeats it is not logged again
        self._registered_as: InstanceId = lease.instance  # what the leader may know this TaskManager as

    async def run(self) -> None:
        """Register and send heartbeats until cancelled.

        Another leader is shown what runs, under the lease that the former one granted; it continues if its JobMaster
        claims it. Where that is refused, or the lease ends first, everything is ended, and the next incarnation begins.
        """
        while True:
            answer = await self._register()
            if answer is not None and await self._send_heartbeats(answer):
                continue
            # First: a deployment that is on its way was meant for the old instance.
            self._lease.instance, self._lease.acknowledged = self._services.new_instance(), False
            await self._work.end_everything(self._lease.left_s())
            self._lease.lease = None
            self._work.update_watchdog()
            self._on_new_instance(self._lease.instance)

    async def watch_leader_changes(self) -> None:
        """Abandon what waits for a leader as soon as the leader's address changes, until cancelled."""
        while True:
            await self._services.leader_moved()
            if self._wait is not None and not self._wait.expired():
                log.info(log_events.LEADER_ADDRESS_CHANGED)
            self.send_heartbeat_now()
            await asyncio.sleep(_LEADER_CHANGE_PAUSE_S)

    def send_heartbeat_now(self) -> None:
        """Send the next heartbeat at once: what it reports has changed."""
        if self._wait is not None and not self._wait.expired():
            self._wait.reschedule(asyncio.get_running_loop().time())

    async def unregister(self) -> None:
        """Unregister, so that the leader need not wait for a timeout; harmless if there is no leader."""
        try:
            async with asyncio.timeout(_UNREGISTER_S):
                await self._services.resource_manager().unregister_task_manager(
                    self._work.heartbeat(self._registered_as)
                )
        except (FlintlockError, TimeoutError):
            log.info(log_events.UNREGISTER_FAILED)

    async def _register(self) -> RegistrationAnswer | None:
        """Register with the leader, retrying. None: what runs here must not continue."""
        lease = self._lease
        while True:
            busy = bool(self._work.attempts())
            if busy and not lease.is_open():
                log.warning(log_events.LEASE_EXPIRED, instance=lease.instance)
                return None
            try:
                followed = self._guard.token
                offer = structs.replace(
                    self._services.offer,
                    instance=lease.instance,
                    busy=busy,
                    followed_epoch=None if followed is None else followed.epoch,
                )
                sent_s = self._services.clock_s()
                async with self._waiting(None):
                    answer = await self._services.resource_manager().register_task_manager(offer)
                self._guard.adopt(answer, idle=not busy)  # Fenced: the leader that answered has a lower epoch
            except Unauthenticated as error:
                # Nothing is known of the leader, and what runs here has a lease: it goes on until that ends.
                self._log_once(log_events.REGISTRATION_REFUSED, error.public)
                await asyncio.sleep(_RETRY_S)
            except Refused as error:
                same = error.public.replace(lease.instance, "")  # for each incarnation
                if self._refused.occurred(same, asyncio.get_running_loop().time()):
                    log.error(log_events.REGISTRATION_REFUSED, reason=error.public)
                if not busy:
                    await asyncio.sleep(_REFUSED_RETRY_S)
                return None  # the leader may remember this incarnation as one that is over: the next one is another
            except FlintlockError as error:
                self._log_once(log_events.REGISTRATION_FAILED, error.public)
                await asyncio.sleep(_RETRY_S)
            except TimeoutError:
                log.info(log_events.REGISTRATION_FAILED, reason="the leader has changed")
            else:
                self._logged = None
                self._refused.ended()
                log.info(log_events.REGISTERED_WITH_LEADER, epoch=answer.token.epoch, instance=lease.instance)
                self._registered_as, lease.acknowledged = lease.instance, True
                if not busy:  # else its JobMaster has to claim the work first: an answered heartbeat confirms that
                    lease.lease = Lease(sent_s=sent_s, length_s=answer.heartbeat_timeout_s)
                return answer

    async def _send_heartbeats(self, answer: RegistrationAnswer) -> bool:
        """Send heartbeats until the lease ends (False), or the leader changes or does not know this instance (True)."""
        services, lease = self._services, self._lease
        while lease.lease is not None:
            sent_s = services.clock_s()
            patience_s = min(answer.heartbeat_timeout_s, lease.lease.length_s) * _ANSWER_PART
            left_s = lease.lease.left_s(sent_s)
            if left_s <= 0:
                log.warning(log_events.LEASE_EXPIRED, instance=lease.instance)
                return False
            try:
                async with self._waiting(min(left_s, patience_s)):
                    response = await services.resource_manager().heartbeat(self._work.heartbeat(lease.instance))
            except TimeoutError:
                self._log_once(log_events.HEARTBEAT_UNANSWERED, "no answer in time")
                continue
            except Fenced as error:
                log.info(log_events.LEADER_CHANGED, reason=error.public)
                return True
            except FlintlockError as error:
                self._log_once(log_events.HEARTBEAT_UNANSWERED, error.public)
                await asyncio.sleep(min(_RETRY_S, left_s))
                continue
            if not response.known:
                log.info(log_events.LEADER_DOES_NOT_KNOW_TASKMANAGER, instance=lease.instance)
                return True
            length_s = min(answer.heartbeat_timeout_s, self._work.longest_lease_s())
            lease.lease = structs.replace(lease.lease.renewed(sent_s), length_s=length_s)
            self._guard.heard()
            self._logged = None
            self._work.update_watchdog()
            self._work.discard(response.unwanted)
            with suppress(TimeoutError):
                async with self._waiting(min(answer.heartbeat_interval_s, patience_s, lease.left_s())):
                    await asyncio.get_running_loop().create_future()  # until it is time, or the leader changes
        return False

    def _log_once(self, event: str, reason: str) -> None:
        """Log a problem, unless it is the latest one again: without a leader it repeats three times a second."""
        if self._logged != (event, reason):
            self._logged = (event, reason)
            log.info(event, reason=reason)

    @asynccontextmanager
    async def _waiting(self, limit_s: float | None) -> AsyncGenerator[None]:
        """Wait. Raises TimeoutError after `limit_s`, or as soon as the leader's address changes."""
        async with asyncio.timeout(limit_s) as wait:
            self._wait = wait
            try:
                yield
            finally:
                self._wait = None
