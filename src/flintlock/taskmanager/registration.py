"""Staying registered: find who leads, register, report every few seconds, and notice when nobody knows us any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from msgspec import structs

from flintlock.gateways.resourcemanager import ResourceManagerGateway
from flintlock.model.errors import Fenced, FlintlockError, Refused
from flintlock.model.ids import InstanceId
from flintlock.model.slots import Heartbeat, RegistrationAnswer, TaskManagerRegistration

_RETRY_S: Final = 0.3
_REFUSED_RETRY_S: Final = 5.0
log = structlog.get_logger()


class Registration:
    """The bond between one life of the engine and whoever leads."""

    def __init__(
        self,
        *,
        offer: TaskManagerRegistration,
        resource_manager: Callable[[], ResourceManagerGateway],
        adopt: Callable[[RegistrationAnswer], None],
        heartbeat: Callable[[InstanceId], Heartbeat],
        end_everything: Callable[[], Awaitable[None]],
        new_instance: Callable[[], InstanceId],
    ) -> None:
        self._offer = offer
        self._resource_manager = resource_manager
        self._adopt = adopt
        self._heartbeat = heartbeat
        self._end_everything = end_everything
        self._new_instance = new_instance
        self.instance: InstanceId = offer.instance  # a new one for each time that nobody knew the last

    async def keep(self) -> None:
        """Register and report until cancelled. What runs is ended before registering with one who does not know it."""
        while True:
            answer = await self._register()
            await self._report(answer)
            self.instance = self._new_instance()  # first: what is still on its way here was meant for the old one
            await self._end_everything()

    async def leave(self) -> None:
        """Say good-bye, so that nobody waits for our silence; harmless if nobody leads."""
        try:
            async with asyncio.timeout(2.0):
                await self._resource_manager().unregister_task_manager(self._heartbeat(self.instance))
        except (FlintlockError, TimeoutError):
            log.info("good-bye-unheard")

    async def _register(self) -> RegistrationAnswer:
        while True:
            try:
                offer = structs.replace(self._offer, instance=self.instance)
                answer = await self._resource_manager().register_task_manager(offer)
                self._adopt(answer)  # Fenced: whoever answered has been succeeded already
            except Refused as error:
                log.error("registration-refused", reason=error.public)
                await asyncio.sleep(_REFUSED_RETRY_S)
            except FlintlockError as error:
                log.info("registration-failed", reason=error.public)
                await asyncio.sleep(_RETRY_S)
            else:
                log.info("registered", epoch=answer.token.epoch, instance=self.instance)
                return answer

    async def _report(self, answer: RegistrationAnswer) -> None:
        """Report until the leader does not know us."""
        while True:
            try:
                heard = await self._resource_manager().heartbeat(self._heartbeat(self.instance))
                if not heard.known:
                    log.warning("leader-does-not-know-us", instance=self.instance)
                    return
                await asyncio.sleep(answer.heartbeat_interval_s)
            except Fenced as error:
                log.warning("leader-changed", reason=error.public)
                return
            except FlintlockError as error:
                log.info("heartbeat-unanswered", reason=error.public)
                await asyncio.sleep(_RETRY_S)
