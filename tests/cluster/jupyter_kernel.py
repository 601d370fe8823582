"""A real Jupyter kernel for tests, installed on demand from pinned packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.cluster.installed_packages import installed

DRIVER: Final = Path(__file__).parent / "notebook_driver.py"


def run_cells(cells: list[str], cwd: Path, *, limit_s: float = 120) -> list[list[dict[str, Any]]]:
    """Run cells in a new kernel, one after another, and return the messages that each has published."""
    packages = installed("jupyter")
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
