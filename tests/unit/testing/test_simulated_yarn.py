"""The simulated YARN leaves nothing behind that neither YARN nor a leader can end."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from flintlock.testing.simulation import yarn
from flintlock.testing.simulation.network import Link, SimulatedNetwork
from flintlock.testing.virtual_time import virtual_time


async def _never_run(_: str) -> None:
    raise AssertionError("all processes stall before")


async def _left_over_after_a_loss(seed: int) -> list[str]:
    random = Random(seed)
    network = SimulatedNetwork(random, Link())
    async with asyncio.TaskGroup() as tasks:
        simulated = yarn.SimulatedYarn(random, network, _never_run, lambda _: None)
        simulated.begin(tasks)
        attempt = simulated.begin_attempt()
        simulated.heartbeat(attempt, 1, [], frozenset())
        await asyncio.sleep(60.0)
        (container,) = simulated.heartbeat(attempt, 1, [], frozenset()).allocated
        simulated.launch(container)
        await asyncio.sleep(0.1)
        simulated.lose_a_container()
        await asyncio.sleep(10.0)
        return simulated.left_over()


@virtual_time
async def test_a_process_that_never_registers_ends_when_yarn_has_written_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No leader knows it then, and it has none whose loss would end it."""
    monkeypatch.setattr(yarn, "_STALLED_STARTS", 1.0)
    monkeypatch.setattr(yarn, "_LAUNCH_FAILURES", 0.0)
    monkeypatch.setattr(yarn, "_SURPLUS", 0.0)
    for seed in range(20):
        assert await _left_over_after_a_loss(seed) == []
