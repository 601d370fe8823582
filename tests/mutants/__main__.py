"""Plant each bug in a copy of the source and run the simulation on it: `make mutants`, or with names to run only those.

A mutant that survives means that the simulation could not see that promise broken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SEEDS = "0:400"


def main(names: list[str]) -> int:
    """Run the mutants; return how many survived or could not be planted."""
    patches = [path for path in sorted(HERE.glob("*.patch")) if not names or path.stem in names]
    missing = set(names) - {path.stem for path in patches}
    if missing:
        sys.stderr.write(f"there are no mutants {sorted(missing)}\n")
        return 2
    survivors = [path.stem for path in patches if not caught(path)]
    sys.stdout.write(f"{len(patches) - len(survivors)} of {len(patches)} mutants were caught\n")
    return 1 if survivors else 0


def caught(patch: Path) -> bool:
    """Plant one bug and tell whether the simulation fails because of it."""
    with tempfile.TemporaryDirectory(prefix="flintlock-mutant-") as scratch:
        source = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        planted = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-p1", str(patch)],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
        )
        if planted.returncode != 0:
            sys.stdout.write(f"{patch.stem}: the patch no longer fits: {planted.stderr.strip()}\n")
            return False
        begun = time.monotonic()
        run = subprocess.run(
            [sys.executable, "-m", "flintlock.testing.soak", "--seeds", SEEDS],
            cwd=scratch,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        verdict = [line for line in run.stdout.splitlines() if line.startswith("FAILED")]
        what = verdict[0][:160] if verdict else (run.stderr.strip().splitlines() or ["SURVIVED"])[-1]
        sys.stdout.write(f"{patch.stem}: {what} ({time.monotonic() - begun:.0f} s)\n")
        sys.stdout.flush()
        return bool(verdict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
