"""The simulated cluster keeps its guarantees, for fixed seeds; `make soak` runs random ones."""

from __future__ import annotations

import os
import subprocess
import sys

SEEDS = 400
SHARES = 2  # one for each core of a small machine


def test_simulated_clusters_keep_all_guarantees() -> None:
    """Crashes between any two steps lose no acknowledged job, run none twice and leave nothing behind."""
    share = SEEDS // SHARES
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "flintlock.testing.soak", "--seeds", f"{first}:{first + share}"],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(0, SEEDS, share)
    ]
    outputs = [run.communicate()[0] for run in runs]

    assert [run.returncode for run in runs] == [0] * SHARES, "\n".join(outputs)[-6000:]


def test_a_seed_replays_to_the_letter() -> None:
    """The same seed has the same trace in another process."""
    traces = {
        subprocess.run(
            [sys.executable, "-m", "flintlock.testing.soak", "--seed", "7"],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.rpartition(" in ")[0]
        for _ in range(2)
    }

    assert len(traces) == 1
