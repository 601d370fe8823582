"""Plant each bug in a copy of the source and run the tests that have to find it: `make mutants`.

With names as arguments, only those mutants are run. The simulation has to find a mutant, unless its patch names tests
(`Caught by: tests/…`) because no simulated cluster can notice it. A patch may name the seed that has found it last
(`Found at seed: 27`): it is tried first, and all seeds if it no longer finds the mutant. A mutant that survives breaks
a guarantee that no test checks.

`--simulate` measures the simulation by itself: mutants of the control plane, in random order, against the simulation
alone, whatever tests their patches name. It prints which of them fall, and their share. `--patches` names a directory
with other patches, which need not stay.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = "0:600"
CAUGHT_BY = re.compile(r"^Caught by: (.+)$", re.MULTILINE)
FOUND_AT = re.compile(r"^Found at seed: (\d+)$", re.MULTILINE)
CONTROL_PLANE = re.compile(
    r"^\+\+\+ b/src/flintlock/(dispatcher|jobmaster|resourcemanager|taskmanager|ha)/", re.MULTILINE
)


def main() -> int:
    """Run the mutants; return the exit code: 0 if all were caught, 1 if not, 2 for an unknown name."""
    parser = ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("names", nargs="*", help="the mutants to run; all without names")
    parser.add_argument("--patches", type=Path, default=HERE, help="the directory of the patches")
    parser.add_argument("--simulate", action="store_true", help="only the control plane, and only by the simulation")
    parser.add_argument("--seeds", metavar="FROM:TO", default=SEEDS, help="what the simulation runs")
    parser.add_argument("--first", type=int, help="with --simulate: how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="with --simulate: of the order of the mutants")
    parser.add_argument("--limit", metavar="SECONDS", type=float, help="for each run of tests or of the simulation")
    arguments = parser.parse_args()
    patches = sorted(arguments.patches.glob("*.patch"))
    missing = set(arguments.names) - {path.stem for path in patches}
    if missing:
        sys.stderr.write(f"unknown mutants: {', '.join(sorted(missing))}\n")
        return 2
    if arguments.names:
        patches = [path for path in patches if path.stem in arguments.names]
    if arguments.simulate:
        patches = drawn(patches, arguments.seed, arguments.first)
    checks = _simulations if arguments.simulate else _checks
    survivors = [
        path.stem for path in patches if not caught(path, checks(path.read_text(), arguments.seeds), arguments.limit)
    ]
    killed = len(patches) - len(survivors)
    share = f", {killed / len(patches):.0%}" if arguments.simulate and patches else ""
    sys.stdout.write(f"{killed} of {len(patches)} mutants were caught{share}\n")
    return 1 if survivors else 0


def drawn(patches: list[Path], seed: int, first: int | None) -> list[Path]:
    """Return the first patches of the control plane, in an order that is drawn with this seed."""
    concerned = [path for path in patches if CONTROL_PLANE.search(path.read_text())]
    Random(seed).shuffle(concerned)
    return concerned[:first]


def caught(patch: Path, checks: list[list[str]], limit_s: float | None = None) -> bool:
    """Plant one bug; return whether one of the checks finds it."""
    with tempfile.TemporaryDirectory(prefix="flintlock-mutant-") as scratch:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(scratch) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", scratch)
        planted = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-p1", str(patch.resolve())],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if planted.returncode != 0:
            sys.stdout.write(f"{patch.stem}: the patch does not apply: {planted.stderr.strip()}\n")
            return False
        started = time.monotonic()
        found, what = False, ""
        for check in checks:
            found, what = _fails(check, Path(scratch), limit_s)
            if found:
                break
        sys.stdout.write(f"{patch.stem}: {what} ({time.monotonic() - started:.0f} s)\n")
        sys.stdout.flush()
        return found


def _fails(check: list[str], directory: Path, limit_s: float | None) -> tuple[bool, str]:
    """Run a check there; return whether it fails, and what it prints about that."""
    try:
        run = subprocess.run(
            [sys.executable, "-m", *check],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(directory / "src"), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return False, f"SURVIVED for {limit_s:g} s"
    verdict = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    return bool(verdict), verdict[0][:160] if verdict else (run.stderr.strip().splitlines() or ["SURVIVED"])[-1]


def _checks(patch: str, seeds: str) -> list[list[str]]:
    """Return the modules of which one has to fail, with arguments. The simulation and pytest both print FAILED then."""
    tests = CAUGHT_BY.search(patch)
    if tests is not None:
        return [["pytest", "-q", "-x", "-p", "no:cacheprovider", *tests[1].split()]]
    return _simulations(patch, seeds)


def _simulations(patch: str, seeds: str) -> list[list[str]]:
    """Return the runs of the simulation: the seed that has found the mutant last, then all."""
    every = ["flintlock.testing.soak", "--seeds", seeds]
    last = FOUND_AT.search(patch)
    return [every] if last is None else [["flintlock.testing.soak", "--seeds", f"{last[1]}:{int(last[1]) + 1}"], every]


if __name__ == "__main__":
    sys.exit(main())
