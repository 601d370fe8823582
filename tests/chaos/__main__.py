"""`make chaos`: 50 faults under running jobs; the exit code is 1 if a promise was broken.

Each member has a machine of its own, of kernel namespaces. What is not permitted here (cuts, disks) is left out.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.chaos.hunt import hunt
from tests.chaos.machines import find_permissions, is_isolated, isolated


def main() -> int:
    """Hunt once; the seed is printed first, and repeats the same faults."""
    reason = ""
    if not is_isolated():
        command, reason = isolated([sys.executable, "-m", "tests.chaos", *sys.argv[1:]])
        if command:
            os.execvp(command[0], command)
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--pipelines", type=int, default=1, help="streaming jobs with a file sink and a function")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after them no further fault begins")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    chosen = parser.parse_args()
    work = f"{chosen.streams} streaming scripts, {chosen.pipelines} streaming jobs, up to {chosen.batches} batch jobs"
    _print(f"seed {chosen.seed}: {chosen.faults} faults, {work}")
    scratch = Path(tempfile.mkdtemp(prefix="flintlock-chaos-"))
    permissions = find_permissions(scratch, reason)
    for what, why in permissions.missing.items():
        _print(f"left out: {what} ({why})")
    outcome = hunt(
        scratch / f"chaos-{chosen.seed}",
        seed=chosen.seed,
        faults=chosen.faults,
        streams=chosen.streams,
        batches=chosen.batches,
        report=_print,
        permissions=permissions,
        seconds=chosen.seconds,
        pipelines=chosen.pipelines,
    )
    _print(f"{outcome.acknowledged} jobs were acknowledged")
    if outcome.takeovers_s:
        middle, longest = statistics.median(outcome.takeovers_s), max(outcome.takeovers_s)
        times = len(outcome.takeovers_s)
        _print(f"leader replaced {times} times: listing after {middle:.2f} s, at most {longest:.2f} s")
    if outcome.recoveries_s:
        middle, longest = statistics.median(outcome.recoveries_s), max(outcome.recoveries_s)
        _print(f"all members served {middle:.2f} s after a cut or a disk fault, at most {longest:.2f} s")
    delay = outcome.longest_delay
    if delay is not None:
        _print(f"the event loops of JobManagers that were not frozen stood still for at most {delay.seconds:.2f} s")
    for problem in outcome.problems:
        _print(f"BROKEN: {problem}")
    _print(f"the processes' logs are in {scratch}" if outcome.problems else "every promise was kept")
    return 1 if outcome.problems else 0


def _stop(number: int, _: FrameType | None) -> None:
    """End all contexts, as an error does."""
    sys.exit(f"stopped by signal {number}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
