"""Packages that only some tests need, installed on demand from a pinned file of `requirements/`.

They are installed into the environment, once for each version of the file, so that a fresh machine needs nothing but
`make test`. Where they cannot be fetched, the test is skipped, and says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import uv

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements"
LIMIT_S: Final = 240


def installed(name: str) -> Path:
    """Return the directory with the packages of `requirements/NAME.txt`. One of several processes installs them."""
    requirements = REQUIREMENTS / f"{name}.txt"
    cache = Path(sys.prefix) / "test-cache"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{name}-{hashlib.sha256(requirements.read_bytes()).hexdigest()[:16]}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = target / "complete"
        if not complete.exists():
            shutil.rmtree(target, ignore_errors=True)
            _install(requirements, target)
            complete.touch()
    return target


def _install(requirements: Path, target: Path) -> None:
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
    try:
        done = subprocess.run(
            [*command, "--target", str(target), "-r", str(requirements)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the packages of {requirements.name} were not installed within {LIMIT_S} s")
    if done.returncode != 0:
        assert "Hash mismatch" not in done.stderr, done.stderr
        pytest.skip(f"the packages of {requirements.name} cannot be installed: {done.stderr[-500:]}")
