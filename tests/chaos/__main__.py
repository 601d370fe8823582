"""`make chaos`: 50 faults under running jobs; the exit code is 1 if a promise was broken."""

from __future__ import annotations

import argparse
import secrets
import statistics
import sys
import tempfile
from pathlib import Path

from tests.chaos.hunt import hunt


def main() -> int:
    """Hunt once; the seed is printed first, and repeats the same faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--streams", type=int, default=2)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    chosen = parser.parse_args()
    _print(f"seed {chosen.seed}: {chosen.faults} faults, {chosen.streams} streams, up to {chosen.batches} batch jobs")
    scratch = Path(tempfile.mkdtemp(prefix="flintlock-chaos-"))
    outcome = hunt(
        scratch / f"chaos-{chosen.seed}",
        seed=chosen.seed,
        faults=chosen.faults,
        streams=chosen.streams,
        batches=chosen.batches,
        report=_print,
    )
    _print(f"{outcome.acknowledged} jobs were acknowledged")
    if outcome.takeovers_s:
        middle, longest = statistics.median(outcome.takeovers_s), max(outcome.takeovers_s)
        times = len(outcome.takeovers_s)
        _print(f"leader killed {times} times: next leader's listing after {middle:.2f} s, at most {longest:.2f} s")
    for problem in outcome.problems:
        _print(f"BROKEN: {problem}")
    _print(f"the processes' logs are in {scratch}" if outcome.problems else "every promise was kept")
    return 1 if outcome.problems else 0


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
