"""Plant each bug in a copy of the source and run the tests that have to find it: `make mutants`.

With names as arguments, only those mutants are run. The simulation has to find a mutant, unless its patch names tests
(`Caught by: tests/…`) because no simulated cluster can notice it. A patch may name the seed that has found it last
(`Found at seed: 27`): it is tried first, and all seeds if it no longer finds the mutant. A mutant that survives breaks
a guarantee that no test checks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = "0:600"
CAUGHT_BY = re.compile(r"^Caught by: (.+)$", re.MULTILINE)
FOUND_AT = re.compile(r"^Found at seed: (\d+)$", re.MULTILINE)


def main(names: list[str]) -> int:
    """Run the mutants; return the exit code: 0 if all were caught, 1 if not, 2 for an unknown name."""
    patches = [path for path in sorted(HERE.glob("*.patch")) if not names or path.stem in names]
    missing = set(names) - {path.stem for path in patches}
    if missing:
        sys.stderr.write(f"unknown mutants: {', '.join(sorted(missing))}\n")
        return 2
    survivors = [path.stem for path in patches if not caught(path)]
    sys.stdout.write(f"{len(patches) - len(survivors)} of {len(patches)} mutants were caught\n")
    return 1 if survivors else 0


def caught(patch: Path) -> bool:
    """Plant one bug; return whether the simulation or the named tests find it."""
    with tempfile.TemporaryDirectory(prefix="flintlock-mutant-") as scratch:
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, Path(scratch) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", scratch)
        planted = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-p1", str(patch)],
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
        for check in _checks(patch.read_text()):
            found, what = _fails(check, Path(scratch))
            if found:
                break
        sys.stdout.write(f"{patch.stem}: {what} ({time.monotonic() - started:.0f} s)\n")
        sys.stdout.flush()
        return found


def _fails(check: list[str], directory: Path) -> tuple[bool, str]:
    """Run a check there; return whether it fails, and what it prints about that."""
    run = subprocess.run(
        [sys.executable, "-m", *check],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory / "src"), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
    return bool(verdict), verdict[0][:160] if verdict else (run.stderr.strip().splitlines() or ["SURVIVED"])[-1]


def _checks(patch: str) -> list[list[str]]:
    """Return the modules of which one has to fail, with arguments. The simulation and pytest both print FAILED then."""
    tests = CAUGHT_BY.search(patch)
    if tests is not None:
        return [["pytest", "-q", "-x", "-p", "no:cacheprovider", *tests[1].split()]]
    every = ["flintlock.testing.soak", "--seeds", SEEDS]
    last = FOUND_AT.search(patch)
    return [every] if last is None else [["flintlock.testing.soak", "--seeds", f"{last[1]}:{int(last[1]) + 1}"], every]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
