"""The short version of `make chaos`: a cluster on ZooKeeper, one fault of each kind, and work that goes on."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.hunt import hunt


def test_nothing_acknowledged_is_lost_or_done_twice_whatever_is_killed_or_frozen(tmp_path: Path) -> None:
    """Every job ends once, every row of an exactly-once sink is there once."""
    reported: list[str] = []

    outcome = hunt(tmp_path / "chaos", seed=1, faults=8, streams=1, batches=12, report=reported.append)

    assert outcome.problems == (), "\n".join(reported)
    assert outcome.acknowledged >= 2
