"""A real Jupyter kernel for tests, installed on demand from pinned packages.

The packages are installed into the environment, once for each version of the requirements file, so that a fresh machine
needs nothing but `make test`. Where they cannot be fetched, the test is skipped, and says why.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import uv

REQUIREMENTS: Final = Path(__file__).parents[2] / "requirements" / "jupyter.txt"
DRIVER: Final = Path(__file__).parent / "notebook_driver.py"
INSTALL_LIMIT_S: Final = 240


def run_cells(cells: list[str], cwd: Path, *, limit_s: float = 120) -> list[list[dict[str, Any]]]:
    """Run cells in a new kernel, one after another, and return the messages that each has published."""
    packages = _installed()
    environment = {
        **os.environ,
        "PYTHONPATH": str(packages),
        "JUPYTER_PATH": str(packages / "share" / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(cwd / "runtime"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": str(cwd / "ipython"),
        "XDG_STATE_HOME": str(cwd / "state"),
        "XDG_CONFIG_HOME": str(cwd / "none"),
    }
    done = subprocess.run(
        [sys.executable, str(DRIVER)],
        input=msgspec.json.encode(cells),
        capture_output=True,
        cwd=cwd,
        env=environment,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return msgspec.json.decode(done.stdout)


def _installed() -> Path:
    """Return the directory with the packages; install them if they are not there. One of several processes installs."""
    cache = Path(sys.prefix) / "test-cache"
    cache.mkdir(parents=True, exist_ok=True)
    version = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    target = cache / f"jupyter-{version}"
    with (cache / "jupyter.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete = target / "complete"
        if not complete.exists():
            shutil.rmtree(target, ignore_errors=True)
            _install(target)
            complete.touch()
    return target


def _install(target: Path) -> None:
    command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable]
    try:
        done = subprocess.run(
            [*command, "--target", str(target), "-r", str(REQUIREMENTS)],
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the Jupyter kernel was not installed within {INSTALL_LIMIT_S} s")
    if done.returncode != 0:
        assert "Hash mismatch" not in done.stderr, done.stderr
        pytest.skip(f"the Jupyter kernel cannot be installed: {done.stderr[-500:]}")
