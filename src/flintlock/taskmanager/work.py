"""The work on one engine as the leader sees it: what heartbeats report of it, and how it ends with its lease."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from flintlock.model import log_events
from flintlock.model.ids import AttemptId, InstanceId
from flintlock.model.slots import AttemptSlots, Heartbeat
from flintlock.taskmanager.core import TaskManagerCore
from flintlock.taskmanager.engine_session import EngineSession
from flintlock.taskmanager.lease import CurrentLease
from flintlock.taskmanager.outbox import Outbox
from flintlock.taskmanager.services import TaskManagerServices

log = structlog.get_logger()


class LeasedWork:
    """The attempts of one engine session, together with the lease that covers them."""

    def __init__(
        self,
        services: TaskManagerServices,
        *,
        core: TaskManagerCore,
        session: EngineSession,
        outbox: Outbox,
        lease: CurrentLease,
        engine_restarts: int,
    ) -> None:
        self._services: Final = services
        self._core: Final = core
        self._session: Final = session
        self._outbox: Final = outbox
        self._lease: Final = lease
        self._engine_restarts: Final = engine_restarts
        self.heartbeats = 0  # how many were made

    def update_watchdog(self) -> None:
        """Send the watchdog the time at which it kills the work; without work there is none.

        Called at each renewal of the lease, also while nothing runs: the watchdog's answer shows that it is alive.
        """
        lease = self._lease.lease
        self._services.set_watchdog_deadline(lease.kills_s if lease is not None and self._core.running() else math.inf)

    def discard(self, attempts: tuple[AttemptId, ...]) -> None:
        """Begin to cancel attempts that no JobMaster wants."""
        for attempt in attempts:
            self._session.discard(attempt)

    async def end_everything(self, patience_s: float) -> None:
        """End all attempts without reporting them; kill those that take longer than `patience_s`.

        Where that ends after the watchdog's deadline, because this process was stopped or the work did not end in time,
        the watchdog kills the engine, perhaps only after this returns. No attempt may begin on that engine.
        """
        lease = self._lease.lease if self._core.running() else None
        self._outbox.clear()
        await self._session.end_all(patience_s)
        self._outbox.clear()
        if lease is not None and lease.kills_s <= self._services.clock_s():
            await self._session.replace_engine("the lease of its work has ended, for which the watchdog kills it")

    def longest_lease_s(self) -> float:
        """Return how long a lease on what runs may be at most."""
        return self._core.longest_lease_s()

    def attempts(self) -> tuple[AttemptSlots, ...]:
        """Return what a leader has to know of: what runs, and what ended without its JobMaster knowing yet."""
        unreported = {attempt: AttemptSlots(attempt=attempt) for attempt in self._outbox.waiting()}
        return tuple({**unreported, **self._core.occupied_slots()}.values())

    def heartbeat(self, instance: InstanceId) -> Heartbeat:
        """Return what to report now. An attempt is listed until its end was reported, or it would seem to be lost."""
        self.heartbeats += 1
        return Heartbeat(
            id=self._services.offer.id,
            instance=instance,
            number=self.heartbeats,
            attempts=self.attempts(),
            free_memory=int(self._measure(self._services.free_memory)),
            engine_ready=self._core.engine_cause is None,
            lease_s=0.0 if self._lease.lease is None else self._lease.lease.length_s,
            metrics=self._metrics(),
        )

    def _metrics(self) -> dict[str, float]:
        return {
            "slots_used": self._core.slots_used(),
            "running_tasks": len(self._core.running()),
            "runner_memory_bytes": self._measure(lambda: self._memory(self._session.runner_pids())),
            "engine_memory_bytes": self._measure(lambda: self._memory(self._session.engine_pids())),
            "engine_restarts": self._engine_restarts,
            "lease_left_s": self._lease.left_s(),
            "log_lines_dropped": self._services.dropped_log_lines(),
        }

    def _memory(self, pids: Iterable[int]) -> int:
        processes = self._services.processes
        return sum(map(processes.resident_bytes, pids)) if processes is not None else 0

    def _measure(self, measurement: Callable[[], float]) -> float:
        """Return the measured value, or 0 on any error: a missing figure must not cost the heartbeat."""
        try:
            return measurement()
        except Exception as error:  # noqa: BLE001 - see above
            log.warning(log_events.METRIC_COLLECTION_FAILED, reason=str(error))
            return 0
