"""Run the simulation: `--seeds 0:1000`, `--seconds 60` for random seeds, `--seed 7` to replay one with its trace.

The interpreter is started again with a fixed hash seed, because the order of sets of strings depends on it.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator

from flintlock.testing.simulation.invariants import GuaranteeViolated, check_seed
from flintlock.testing.simulation.silence import silence_simulation


def main() -> int:
    """Run seeds until one fails or there are no more; return 1 if one failed."""
    parser = ArgumentParser(prog="python -m flintlock.testing.soak")
    parser.add_argument("--seeds", metavar="FROM:TO", help="these seeds")
    parser.add_argument("--seed", type=int, help="one seed, with its trace")
    parser.add_argument("--seconds", type=float, help="random seeds for this long")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(  # noqa: S606 (the same interpreter, the same arguments)
            sys.executable,
            [sys.executable, "-m", "flintlock.testing.soak", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    silence_simulation()
    begun, done = time.monotonic(), 0
    for seed in _seeds(arguments.seeds, arguments.seed, arguments.seconds):
        try:
            trace = check_seed(seed)
        except GuaranteeViolated as error:
            _print("\n".join(error.trace))
            _print(f"FAILED {error}\nreplay: python -m flintlock.testing.soak --seed {seed}")
            return 1
        if arguments.seed is not None:
            _print("\n".join(trace))
        done += 1
    elapsed = time.monotonic() - begun
    _print(f"{done} simulated clusters kept all guarantees in {elapsed:.1f} s")
    return 0


def _seeds(span: str | None, one: int | None, seconds: float | None) -> Iterator[int]:
    if one is not None:
        yield one
    elif span is not None:
        first, _, last = span.partition(":")
        yield from range(int(first), int(last))
    else:
        end = time.monotonic() + (seconds or 60.0)
        while time.monotonic() < end:
            yield secrets.randbits(32)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
