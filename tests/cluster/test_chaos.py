"""The short version of `make chaos`: a cluster on ZooKeeper, faults of each kind, and work that goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.hunt import hunt
from tests.chaos.machines import isolated
from tests.cluster.processes import ROOT


def test_nothing_acknowledged_is_lost_or_done_twice_whatever_is_killed_or_frozen(tmp_path: Path) -> None:
    """Every job ends once, every row of an exactly-once sink is there once."""
    reported: list[str] = []

    outcome = hunt(tmp_path / "chaos", seed=1, faults=8, streams=1, batches=12, report=reported.append)

    assert outcome.problems == [], "\n".join(reported)
    assert outcome.acknowledged >= 2


def test_nothing_acknowledged_is_lost_or_done_twice_whatever_is_cut_filled_or_stalled(tmp_path: Path) -> None:
    """And after each cut and each disk fault, all members serve by themselves, as the same processes."""
    _, reason = isolated(["true"])
    if reason:
        pytest.skip(reason)
    # The leader's disk stalls and fills up, the leader and a TaskManager are cut off, a disk of ZooKeeper stalls.
    chosen = ("--seed", "176", "--faults", "5", "--streams", "1", "--batches", "12")
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", *chosen],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
