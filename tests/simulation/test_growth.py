"""Nothing grows with the number of jobs that ever ran; `python -m flintlock.testing.growth` runs more of them."""

from __future__ import annotations

import os
import subprocess
import sys

from flintlock.testing.growth import Footprint, growth, is_within_bounds
from flintlock.testing.simulation.invariants import MAX_STEP_S


def test_nothing_grows_while_jobs_run_restart_and_expire_under_changing_leaders() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "flintlock.testing.growth", "--jobs", "200"],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert " restarts; grown by " in run.stdout
    assert "longest step of the loop: " in run.stdout


_WITHOUT_COLLECTOR = """
import gc
from collections import Counter
from flintlock.testing.growth import GrowthRun
from flintlock.testing.simulation.silence import silence_simulation

silence_simulation()
gc.disable()
gc.collect = lambda: 0
GrowthRun(jobs=100).run()
left = Counter(type(each).__name__ for each in gc.get_objects())
assert left["JobMaster"] + left["DispatchedJob"] < 10, (left["JobMaster"], left["DispatchedJob"])  # of dead leaders
"""


def test_an_ended_job_is_freed_without_the_garbage_collector() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_COLLECTOR],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


def test_a_step_of_the_loop_that_takes_long_is_noticed() -> None:
    assert is_within_bounds({"objects": 1.05}, MAX_STEP_S)
    assert not is_within_bounds({"objects": 1.05}, MAX_STEP_S * 1.01)
    assert not is_within_bounds({"objects": 1.2}, MAX_STEP_S)


def test_a_figure_that_grows_is_noticed() -> None:
    counts = [
        Footprint(jobs=10 * n, records=0, record_bytes=0, files=0, tasks=50, objects=1000 + 50 * n, rss=1 << 25)
        for n in range(1, 11)
    ]

    grown = growth(counts)

    assert grown["objects"] > 1.1
    assert grown["tasks"] == grown["rss"] == 1.0
    assert grown["records"] == 0.0
