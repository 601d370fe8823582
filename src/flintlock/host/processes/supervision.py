"""Which processes of a cluster are started again, and when: the decisions of the supervisor.

A process that ends by intent stays ended: it was stopped (exit code 0), its configuration is wrong (2), or the
application of its cluster has failed (6). Every other end, a kill included, is a failure: the process is started again
after a delay that doubles with each failure. One that has failed too often within the interval is given up, until
another process starts it.

Deciding needs no history of its own beyond that: what runs and how the others have ended is observed each time, so a
supervisor that was paused, or that replaces one that has died, continues from what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, unique
from typing import Final, TypeAlias

from msgspec import Struct

from flintlock.model.backoff import Backoff

#: Exit codes of a process that is not to be started again (docs/operations.md has all of them).
BY_INTENT: Final = frozenset({0, 2, 6})


class SupervisionPolicy(Struct, frozen=True, kw_only=True):
    """How failures are answered: with growing delays, and with giving up after too many within the interval."""

    backoff: Backoff
    max_failures: int
    interval_s: float


class ObservedProcess(Struct, frozen=True, kw_only=True):
    """A process as it was observed. `exit_code` is None if it runs, was killed, or never ran."""

    running: bool
    exit_code: int | None = None
    reason: str = ""  # why it has ended, as a clause


class StartProcess(Struct, frozen=True):
    """Start a process now."""

    name: str


class ProcessFailed(Struct, frozen=True, kw_only=True):
    """A process has failed, and is started again after the delay."""

    name: str
    reason: str
    failures: int  # within the interval
    delay_s: float


class ProcessGivenUp(Struct, frozen=True, kw_only=True):
    """A process has failed too often, and is not started again."""

    name: str
    reason: str
    failures: int


class ProcessLeftEnded(Struct, frozen=True, kw_only=True):
    """A process has ended by intent, and is not started again."""

    name: str
    reason: str
    exit_code: int


SupervisionEffect: TypeAlias = StartProcess | ProcessFailed | ProcessGivenUp | ProcessLeftEnded


@unique
class _Phase(Enum):
    ALIVE = "alive"  # it runs, or was started and has not been seen since
    WAITING = "waiting"  # it has failed, and is started again at `retry_s`
    GIVEN_UP = "given up"
    ENDED = "ended"  # by intent


class _Supervised(Struct):
    phase: _Phase = _Phase.ALIVE
    failures: tuple[float, ...] = ()  # when it failed, within the interval
    retry_s: float = 0.0
    reason: str = ""  # of its latest end


class Supervision:
    """The processes of one cluster, as the supervisor knows them."""

    def __init__(self, policy: SupervisionPolicy) -> None:
        self._policy: Final = policy
        self._processes: Final[dict[str, _Supervised]] = {}  # those that are expected

    def observe(self, now_s: float, seen: Mapping[str, ObservedProcess]) -> tuple[SupervisionEffect, ...]:
        """Return what follows from observing all expected processes; effects are in the order of their names."""
        for name in self._processes.keys() - seen.keys():
            del self._processes[name]
        return tuple(effect for name, observed in seen.items() for effect in self._observe(now_s, name, observed))

    def all_ended(self) -> bool:
        """Return whether every process has ended by intent: the cluster was shut down."""
        return bool(self._processes) and all(known.phase is _Phase.ENDED for known in self._processes.values())

    def given_up(self) -> dict[str, str]:
        """Return the processes that were given up, with the reason of each one's last end."""
        return {name: known.reason for name, known in self._processes.items() if known.phase is _Phase.GIVEN_UP}

    def _observe(self, now_s: float, name: str, observed: ObservedProcess) -> Iterable[SupervisionEffect]:
        known = self._processes.setdefault(name, _Supervised())
        known.failures = tuple(at_s for at_s in known.failures if now_s - at_s < self._policy.interval_s)
        if observed.running:
            if known.phase is _Phase.GIVEN_UP:
                known.failures = ()  # it was started by hand: the cause is taken to be removed
            known.phase = _Phase.ALIVE
        elif known.phase is _Phase.ALIVE:
            yield self._ended(now_s, name, known, observed)
        elif known.phase is _Phase.WAITING and now_s >= known.retry_s:
            known.phase = _Phase.ALIVE  # if it is not, the next observation finds that out
            yield StartProcess(name)

    def _ended(self, now_s: float, name: str, known: _Supervised, observed: ObservedProcess) -> SupervisionEffect:
        known.reason = observed.reason
        if observed.exit_code is not None and observed.exit_code in BY_INTENT:
            known.phase = _Phase.ENDED
            return ProcessLeftEnded(name=name, reason=observed.reason, exit_code=observed.exit_code)
        known.failures += (now_s,)
        failures = len(known.failures)
        if failures > self._policy.max_failures:
            known.phase = _Phase.GIVEN_UP
            return ProcessGivenUp(name=name, reason=observed.reason, failures=failures)
        delay_s = self._policy.backoff.delay_s(failures)
        known.phase, known.retry_s = _Phase.WAITING, now_s + delay_s
        return ProcessFailed(name=name, reason=observed.reason, failures=failures, delay_s=delay_s)
