"""Restart strategies: whether a failed task is restarted, and after which delay.

Flink's four, with Flink's keys and defaults, as data: a strategy does not change, its memory is a `RestartHistory`.
Randomness comes in as a number, so the same history gives the same result.
Some failures never reach a strategy: what cannot succeed the second time is not restarted.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from msgspec import Struct, structs

from flintlock.config import options
from flintlock.config.configuration import Configuration
from flintlock.model.backoff import Backoff
from flintlock.model.jobgraph import JobType
from flintlock.model.jobs import RestartHistory
from flintlock.model.tasks import Failure, FailureKind

#: Kinds of failures that would repeat. Of other kinds those would that are marked as permanent.
_NEVER_RETRIED: Final = frozenset(
    {
        FailureKind.ANALYSIS,
        FailureKind.MISSING_ARTIFACT,
        FailureKind.CONFIGURATION,
        FailureKind.NO_RESOURCES,
    }
)

#: Failures that the job did not cause: a few restarts after them are allowed in addition to the strategy.
INFRASTRUCTURE: Final = frozenset(
    {FailureKind.ENGINE_LOST, FailureKind.TASK_MANAGER_LOST, FailureKind.MISSING_INPUT, FailureKind.NO_SPACE},
)


def is_retryable(failure: Failure) -> bool:
    """Return whether a restart can help. What user code raises may be caused by something outside that passes."""
    return not failure.permanent and failure.kind not in _NEVER_RETRIED


#: The delays before restarts after a full disk.
_NO_SPACE_BACKOFF: Final = Backoff(initial_s=30.0, maximum_s=600.0)


def infrastructure_delay_s(kind: FailureKind, restarts: int) -> float:
    """Return the delay before a restart in addition to the strategy, after so many of them, for whatever reason.

    What was lost is replaced at once. Room on a disk has to be made first.
    """
    return _NO_SPACE_BACKOFF.delay_s(restarts + 1) if kind is FailureKind.NO_SPACE else 0.0


class NoRestart(Struct, frozen=True):
    """The first failure fails the job."""


class FixedDelay(Struct, frozen=True, kw_only=True):
    """Restart up to `attempts` times, always after the same delay."""

    attempts: int
    delay_s: float


class FailureRate(Struct, frozen=True, kw_only=True):
    """Restart as long as no interval has more than `failures` failures."""

    failures: int
    interval_s: float
    delay_s: float


class ExponentialDelay(Struct, frozen=True, kw_only=True):
    """Wait longer after each failure; after `reset_s` without one, start again from `initial_s`."""

    initial_s: float
    longest_s: float
    multiplier: float
    jitter: float  # part of the delay that is randomly added or subtracted
    reset_s: float
    attempts: int


RestartStrategy: TypeAlias = NoRestart | FixedDelay | FailureRate | ExponentialDelay


def restart_strategy(configuration: Configuration, job_type: JobType = JobType.BATCH) -> RestartStrategy:
    """Return the strategy that a job's configuration (over the cluster's) selects, or the default of its type."""
    get = configuration.get
    match get(options.RESTART_TYPE) or ("exponential-delay" if job_type is JobType.STREAMING else "none"):
        case "fixed-delay":
            return FixedDelay(attempts=get(options.FIXED_ATTEMPTS), delay_s=get(options.FIXED_DELAY))
        case "failure-rate":
            return FailureRate(
                failures=get(options.RATE_FAILURES),
                interval_s=get(options.RATE_INTERVAL),
                delay_s=get(options.RATE_DELAY),
            )
        case "exponential-delay":
            return ExponentialDelay(
                initial_s=get(options.EXP_INITIAL),
                longest_s=get(options.EXP_MAX),
                multiplier=get(options.EXP_MULTIPLIER),
                jitter=get(options.EXP_JITTER),
                reset_s=get(options.EXP_RESET),
                attempts=get(options.EXP_ATTEMPTS),
            )
        case _:
            return NoRestart()


def restart_delay(
    strategy: RestartStrategy, history: RestartHistory, *, now_ms: int, random: float
) -> tuple[RestartHistory, float | None]:
    """Return the new history, and the delay before the restart in seconds, or None to give up."""
    match strategy:
        case NoRestart():
            return history, None
        case FixedDelay():
            if history.restarts >= strategy.attempts:
                return history, None
            return structs.replace(history, restarts=history.restarts + 1), strategy.delay_s
        case FailureRate():
            return _by_rate(strategy, history, now_ms)
        case ExponentialDelay():
            return _exponential(strategy, history, now_ms, random)


def _by_rate(strategy: FailureRate, history: RestartHistory, now_ms: int) -> tuple[RestartHistory, float | None]:
    since_ms = now_ms - strategy.interval_s * 1000
    recent = (*(at_ms for at_ms in history.failures_ms if at_ms >= since_ms), now_ms)
    history = structs.replace(history, failures_ms=recent)
    return history, strategy.delay_s if len(recent) <= strategy.failures else None


def _exponential(
    strategy: ExponentialDelay, history: RestartHistory, now_ms: int, random: float
) -> tuple[RestartHistory, float | None]:
    calm_s = (now_ms - history.last_ms) / 1000
    if history.restarts == 0 or calm_s >= strategy.reset_s + history.backoff_s:
        restarts, backoff_s = 1, strategy.initial_s
    else:
        restarts, backoff_s = history.restarts + 1, history.backoff_s * strategy.multiplier
    backoff_s = min(backoff_s, strategy.longest_s)
    history = structs.replace(history, restarts=restarts, backoff_s=backoff_s, last_ms=now_ms)
    if restarts > strategy.attempts:
        return history, None
    spread_s = backoff_s * strategy.jitter * (2 * random - 1)
    return history, min(max(backoff_s + spread_s, 0.0), strategy.longest_s)
