"""Staying registered: find who leads, register, report every few seconds, and notice when that life is over.

When another leads, or the leader does not know us, we register again with what we run. A life is over when that is
refused, or when the lease ends because nobody answers in time. Then all work is ended, and only then does another life
begin, under another instance.

When somebody else is said to lead, whatever waits for the one before is given up: it may be dead, or frozen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

import structlog
from msgspec import structs

from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model import log_events
from flintlock.model.errors import Fenced, FlintlockError, Refused
from flintlock.model.ids import AttemptId, InstanceId
from flintlock.model.slots import Heartbeat, HeldSlots, RegistrationAnswer, TaskManagerRegistration
from flintlock.taskmanager.lease import Lease

_RETRY_S: Final = 0.3
_REFUSED_RETRY_S: Final = 5.0
_NEWS_S: Final = 0.05
#: How long an answer is waited for, and the longest pause between two heartbeats, as a part of the lease.
_ANSWER_PART: Final = 0.25
log = structlog.get_logger()


class RegisteredWork(Protocol):
    """The work that a registration answers for."""

    def heartbeat(self, instance: InstanceId) -> Heartbeat:
        """Return what is to be reported now."""
        ...

    def held(self) -> tuple[HeldSlots, ...]:
        """Return what is here and has not been told to have ended, with its slots."""
        ...

    def renewed(self) -> None:
        """The lease has been renewed."""
        ...

    def discard(self, attempts: tuple[AttemptId, ...]) -> None:
        """Nobody wants these any more."""
        ...

    def end_everything(self, patience_s: float) -> Awaitable[None]:
        """End all attempts, by force those that take longer than this; nobody is told."""
        ...

    def begin(self, instance: InstanceId) -> None:
        """The life before is over, with all its work; this one begins."""
        ...


class Registration:
    """The bond between one life of the engine and whoever leads."""

    def __init__(
        self,
        *,
        offer: TaskManagerRegistration,
        resource_manager: Callable[[], ResourceManagerGateway],
        adopt: Callable[[RegistrationAnswer], None],
        work: RegisteredWork,
        new_instance: Callable[[], InstanceId],
        clock_s: Callable[[], float],
        moved: Callable[[], Awaitable[None]],
    ) -> None:
        self._offer = offer
        self._resource_manager = resource_manager
        self._moved = moved
        self._wait: asyncio.Timeout | None = None  # for an answer of the leader, or for the next heartbeat
        self._adopt = adopt
        self._work = work
        self._new_instance = new_instance
        self._clock_s = clock_s
        self._known_as: InstanceId = offer.instance  # what the leader may know us as: good-bye is said by it
        self.instance: InstanceId = offer.instance  # a new one for each time that a life is over
        self.lease: Lease | None = None  # written by keep; None once everything that it covered has ended

    def is_open(self) -> bool:
        """Tell whether work may be taken: the leader knows us, and the lease is not about to end."""
        return self.lease is not None and self._known_as == self.instance and self.lease.is_open(self._clock_s())

    def is_leased(self) -> bool:
        """Tell whether what runs may go on."""
        return self.lease is not None and self.lease.is_open(self._clock_s())

    def has_lapsed(self) -> bool:
        """Tell whether the lease has ended under work that may still be here: nobody waits for word of it."""
        return self.lease is not None and not self.lease.is_open(self._clock_s())

    async def keep(self) -> None:
        """Register and report until cancelled.

        Another leader is shown what runs, under the lease that the former one gave; it goes on if its JobMaster claims
        it. Where that is refused, or the lease ends first, everything is ended, and another life begins.
        """
        while True:
            answer = await self._register()
            if answer is not None and await self._report(answer):
                continue
            self.instance = self._new_instance()  # first: what is still on its way here was meant for the old one
            left_s = self.lease.left_s(self._clock_s()) if self.lease is not None else 0.0
            await self._work.end_everything(left_s)
            self.lease = None
            self._work.begin(self.instance)

    async def mind_news(self) -> None:
        """Let nothing wait for a leader once another one leads, until cancelled."""
        while True:
            await self._moved()
            if self._wait is not None and not self._wait.expired():
                log.info(log_events.LEADER_ADDRESS_CHANGED)
                self._wait.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(_NEWS_S)

    async def leave(self) -> None:
        """Say good-bye, so that nobody waits for our silence; harmless if nobody leads."""
        try:
            async with asyncio.timeout(2.0):
                await self._resource_manager().unregister_task_manager(self._work.heartbeat(self._known_as))
        except (FlintlockError, TimeoutError):
            log.info(log_events.UNREGISTER_FAILED)

    async def _register(self) -> RegistrationAnswer | None:
        """Find somebody who takes us in. None: what runs here must not go on."""
        while True:
            held = self._work.held()
            if held and not self.is_leased():
                log.warning(log_events.LEASE_EXPIRED, instance=self.instance)
                return None
            try:
                offer = structs.replace(self._offer, instance=self.instance, busy=bool(held))
                sent_s = self._clock_s()
                async with self._waiting(None):
                    answer = await self._resource_manager().register_task_manager(offer)
                self._adopt(answer)  # Fenced: whoever answered has been succeeded already
            except Refused as error:
                log.error(log_events.REGISTRATION_REFUSED, reason=error.public)
                if held:
                    return None
                await asyncio.sleep(_REFUSED_RETRY_S)
            except FlintlockError as error:
                log.info(log_events.REGISTRATION_FAILED, reason=error.public)
                await asyncio.sleep(_RETRY_S)
            except TimeoutError:
                log.info(log_events.REGISTRATION_FAILED, reason="somebody else leads")
            else:
                log.info(log_events.REGISTERED_WITH_LEADER, epoch=answer.token.epoch, instance=self.instance)
                self._known_as = self.instance
                if not held:  # else its JobMaster has to want it first: that is what an answered heartbeat tells
                    self.lease = Lease(sent_s=sent_s, length_s=answer.heartbeat_timeout_s)
                return answer

    async def _report(self, answer: RegistrationAnswer) -> bool:
        """Report until the lease ends (False), or until somebody else leads, or nobody knows us (True)."""
        patience_s = answer.heartbeat_timeout_s * _ANSWER_PART
        while self.lease is not None:
            sent_s = self._clock_s()
            left_s = self.lease.left_s(sent_s)
            if left_s <= 0:
                log.warning(log_events.LEASE_EXPIRED, instance=self.instance)
                return False
            try:
                async with self._waiting(min(left_s, patience_s)):
                    heard = await self._resource_manager().heartbeat(self._work.heartbeat(self.instance))
            except TimeoutError:
                log.info(log_events.HEARTBEAT_UNANSWERED, reason="no answer in time")
                continue
            except Fenced as error:
                log.warning(log_events.LEADER_CHANGED, reason=error.public)
                return True
            except FlintlockError as error:
                log.info(log_events.HEARTBEAT_UNANSWERED, reason=error.public)
                await asyncio.sleep(min(_RETRY_S, left_s))
                continue
            if not heard.known:
                log.warning(log_events.LEADER_DOES_NOT_KNOW_TASKMANAGER, instance=self.instance)
                return True
            self.lease = structs.replace(self.lease.renewed(sent_s), length_s=answer.heartbeat_timeout_s)
            self._work.renewed()
            self._work.discard(heard.unwanted)
            with suppress(TimeoutError):
                async with self._waiting(
                    min(answer.heartbeat_interval_s, patience_s, self.lease.left_s(self._clock_s()))
                ):
                    await asyncio.get_running_loop().create_future()  # until it is time, or another one leads
        return False

    @asynccontextmanager
    async def _waiting(self, limit_s: float | None) -> AsyncGenerator[None]:
        """Wait. Raises TimeoutError after `limit_s`, or as soon as somebody else leads."""
        async with asyncio.timeout(limit_s) as wait:
            self._wait = wait
            try:
                yield
            finally:
                self._wait = None
