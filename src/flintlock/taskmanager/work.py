"""The work on one engine and the lease that covers it: what is reported of it, and until when it may go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from flintlock.gateways.engine import ProcessTable
from flintlock.model import log_events
from flintlock.model.ids import AttemptId, InstanceId, TaskManagerId
from flintlock.model.slots import Heartbeat, HeldSlots
from flintlock.model.tasks import TaskNews, TaskReport
from flintlock.taskmanager.engine_session import EngineSession
from flintlock.taskmanager.outbox import Outbox
from flintlock.taskmanager.registration import Registration

log = structlog.get_logger()


class LeasedWork:
    """Stands between an engine's life and its registration. Satisfies `registration.RegisteredWork`."""

    def __init__(
        self,
        *,
        task_manager: TaskManagerId,
        outbox: Outbox,
        begin: Callable[[InstanceId], None],
        watch: Callable[[float], None],
        clock_s: Callable[[], float],
        free_memory: Callable[[], int],
        processes: ProcessTable | None,
        engine_restarts: int,
    ) -> None:
        self._begin: Final = begin
        self.outbox: Final = outbox
        self._task_manager: Final = task_manager
        self._tell_watchdog: Final = watch
        self._clock_s: Final = clock_s
        self._free_memory: Final = free_memory
        self._processes: Final = processes
        self._engine_restarts: Final = engine_restarts

    def cover(self, life: EngineSession, registration: Registration) -> None:
        """Say what it stands between; once, before anything else."""
        self.life = life
        self.registration = registration

    def report(self, attempt: AttemptId, news: TaskNews) -> None:
        """Tell the JobMaster, unless the lease has ended: it may have tried elsewhere by now."""
        if self.registration.has_lapsed():
            return
        report = TaskReport(
            attempt=attempt, task_manager=self._task_manager, instance=self.registration.instance, news=news
        )
        self.outbox.send(report)

    def watch(self) -> None:
        """Tell the watchdog until when the work has to have ended; what does not run needs no lease."""
        lease = self.registration.lease
        self._tell_watchdog(lease.kills_s if lease is not None and self.life.running() else math.inf)

    def begin(self, instance: InstanceId) -> None:
        """Let another life begin."""
        self.watch()
        self._begin(instance)

    def renewed(self) -> None:
        """Pass a renewal on to the watchdog, also while nothing runs: its answer shows that it is there."""
        self.watch()

    def discard(self, attempts: tuple[AttemptId, ...]) -> None:
        """Begin to end what nobody wants."""
        for attempt in attempts:
            self.life.discard(attempt)

    async def end_everything(self, patience_s: float) -> None:
        """End all attempts and forget what was not told of them."""
        self.outbox.clear()
        await self.life.end_all(patience_s)
        self.outbox.clear()

    def held(self) -> tuple[HeldSlots, ...]:
        """Return what is brought along to another leader: what runs, and what ended and was not told."""
        slots: dict[AttemptId, tuple[int, ...]] = {**dict.fromkeys(self.outbox.waiting(), ()), **self.life.held()}
        return tuple(HeldSlots(attempt=attempt, slots=taken) for attempt, taken in slots.items())

    def heartbeat(self, instance: InstanceId) -> Heartbeat:
        """Return what is to be reported: an attempt is here until its end was told, or silence would look like loss."""
        return Heartbeat(
            id=self._task_manager,
            instance=instance,
            running=tuple(item.attempt for item in self.held()),
            held=self.held(),
            free_memory=int(self._measured(self._free_memory)),
            metrics=self._metrics(),
        )

    def _metrics(self) -> dict[str, float]:
        lease = self.registration.lease
        return {
            "slots_used": self.life.slots_used(),
            "running_tasks": len(self.life.running()),
            "runner_memory_bytes": self._measured(lambda: self._memory(self.life.runner_pids())),
            "engine_memory_bytes": self._measured(lambda: self._memory(self.life.engine_pids())),
            "engine_restarts": self._engine_restarts,
            "lease_left_s": lease.left_s(self._clock_s()) if lease is not None else 0.0,
        }

    def _memory(self, pids: Iterable[int]) -> int:
        return sum(map(self._processes.resident_bytes, pids)) if self._processes is not None else 0

    def _measured(self, measurement: Callable[[], float]) -> float:
        """Return what was measured, or 0: no figure is worth a heartbeat."""
        try:
            return measurement()
        except Exception as error:  # noqa: BLE001 - whatever it is
            log.warning(log_events.METRIC_COLLECTION_FAILED, reason=str(error))
            return 0
