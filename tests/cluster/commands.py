"""The command line, run as users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def flintlock(*arguments: str | Path, cwd: Path, timeout_s: float = 180) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "flintlock", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={
            **os.environ,
            "COLUMNS": "120",
            "XDG_STATE_HOME": str(cwd / "state"),
            "XDG_CONFIG_HOME": str(cwd / "none"),
        },
    )
