"""When the executors of a silent machine end: before its TaskManager's lease does, or the driver is not started.

An executor ends by itself after some heartbeats in a row that its driver has not answered. Each of them is given up
after one interval, and the next one is sent at once. Then it takes another ten seconds, in which its tasks run on: the
thread that ends the process waits for itself (`Heartbeater.stop` of Spark). Spark's own settings would take more than
ten minutes, and the work is started elsewhere when the lease is over.

`spark.network.timeout` does not matter for that: heartbeats have a timeout of their own, and a connection on which they
are sent is never idle. It has a default here because Spark requires it to be longer than the interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from flintlock.config.options import HEARTBEAT_TIMEOUT
from flintlock.model.quantities import duration_s

INTERVAL: Final = "spark.executor.heartbeatInterval"
UNANSWERED: Final = "spark.executor.heartbeat.maxFailures"

#: When the executors have to be gone, as a fraction of the lease: when the watchdog kills the driver, if it can.
_GONE_PART: Final = 0.95

#: How long an executor takes to end after its last unanswered heartbeat.
_EXIT_S: Final = 10.0

#: Of the lease, for Spark's settings; with a lease of 50 s executors of a silent driver ended after 16 s.
_HEARTBEAT: Final = 0.02
_NETWORK_TIMEOUT: Final = 0.4
_TIMEOUT_INTERVAL: Final = 0.1
_UNANSWERED_HEARTBEATS: Final = 5


def lease_defaults(lease_s: float) -> dict[str, str]:
    """Return Spark's settings with which executors end within the lease."""
    return {
        INTERVAL: _ms(lease_s * _HEARTBEAT),
        UNANSWERED: str(_UNANSWERED_HEARTBEATS),
        "spark.network.timeout": _ms(lease_s * _NETWORK_TIMEOUT),
        "spark.network.timeoutInterval": _ms(lease_s * _TIMEOUT_INTERVAL),
    }


def outlived_lease(conf: Mapping[str, str], lease_s: float) -> str | None:
    """Return why executors with these settings would outlive the lease, with what is allowed; None if they would not.

    `conf`: what was configured, over `lease_defaults`. What Spark itself cannot read is left to Spark.
    """
    settings = {**lease_defaults(lease_s), **conf}
    try:
        interval_s, unanswered = duration_s(settings[INTERVAL]), int(settings[UNANSWERED])
    except ValueError:
        return None
    gone_s, limit_s = (unanswered + 1) * interval_s + _EXIT_S, lease_s * _GONE_PART
    if gone_s < limit_s:
        return None
    configured = [f"{key}={conf[key]}" for key in (INTERVAL, UNANSWERED) if key in conf]
    wrong = " and ".join(configured) or f"{HEARTBEAT_TIMEOUT.key} ({lease_s:g} s) is too short"
    return (
        f"{wrong}: executors of a machine that falls silent would run for {gone_s:.1f} s more, and their work may be"
        f" started elsewhere after {HEARTBEAT_TIMEOUT.key} ({lease_s:g} s); at most {limit_s:.1f} s are allowed:"
        f" {' or '.join(_allowed(conf, interval_s, unanswered, limit_s))}"
    )


def _allowed(conf: Mapping[str, str], interval_s: float, unanswered: int, limit_s: float) -> list[str]:
    """Return, for each setting that was configured, the greatest value with which the other one can stay."""
    beats_s = limit_s - _EXIT_S
    longest_ms = math.ceil(beats_s * 1000 / (unanswered + 1)) - 1
    most = math.ceil(beats_s / interval_s) - 2 if interval_s > 0 else 0
    allowed: list[str] = []
    if INTERVAL in conf and longest_ms > 0:
        allowed.append(f"{INTERVAL}={longest_ms}ms at most")
    if UNANSWERED in conf and most > 0:
        allowed.append(f"{UNANSWERED}={most} at most")
    if not allowed:
        each = (_UNANSWERED_HEARTBEATS + 1) * _HEARTBEAT
        allowed.append(f"{HEARTBEAT_TIMEOUT.key} of more than {_EXIT_S / (_GONE_PART - each):.1f} s, with the defaults")
    return allowed


def _ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"
