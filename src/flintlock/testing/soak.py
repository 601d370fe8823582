"""Run the simulation: `--seeds 0:1000`, `--seconds 60` for fresh seeds, `--seed 7` to replay one with its story.

The hash seed is fixed by starting the interpreter again, because sets of strings are walked in its order.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import time
import warnings
from argparse import ArgumentParser
from collections.abc import Iterator

import structlog

from flintlock.testing.simulation.invariants import PromiseBroken, check_seed


def main() -> int:
    """Run seeds until one fails or there are no more; return 1 if one failed."""
    parser = ArgumentParser(prog="python -m flintlock.testing.soak")
    parser.add_argument("--seeds", metavar="FROM:TO", help="these seeds")
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--seconds", type=float, help="fresh seeds for so long")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(  # noqa: S606 (the same interpreter, the same arguments)
            sys.executable,
            [sys.executable, "-m", "flintlock.testing.soak", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    # A process that dies leaves unfinished business behind; only in here does anybody hear of it.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)
    begun, done = time.monotonic(), 0
    for seed in _seeds(arguments.seeds, arguments.seed, arguments.seconds):
        try:
            story = check_seed(seed)
        except PromiseBroken as broken:
            _say("\n".join(broken.story))
            _say(f"FAILED {broken}\nreplay: python -m flintlock.testing.soak --seed {seed}")
            return 1
        if arguments.seed is not None:
            _say("\n".join(story))
        done += 1
    elapsed = time.monotonic() - begun
    _say(f"{done} simulated clusters kept their promises in {elapsed:.1f} s")
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


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
