"""The event loops of JobManagers that a measure kills or ends: read before it does that."""

from __future__ import annotations

from tests.chaos.deployment import Deployment

from bench.loop_delays import longest_delay_ms
from bench.servers import loop_delays_ms


def record_loop_delays(deployment: Deployment) -> None:
    """Record the longest delay of each JobManager's loop since its start.

    Not of those that were frozen: their loops stood still as long as that.
    """
    for member in deployment.jobmanagers:
        if member.alive and not member.was_frozen:
            metrics = deployment.client.get(f"{member.url}/metrics", timeout=60).raise_for_status().text
            loop_delays_ms.append(longest_delay_ms(metrics))
