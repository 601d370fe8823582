"""The command line, run as users run it: single commands, and scripts of the shell."""

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


def shell(
    script: str, *, cwd: Path, state_dir: Path, given: str = "", timeout_s: float = 180, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, or to its first command that fails, with `given` as its standard input."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "XDG_CONFIG_HOME": str(cwd / "none"),
            "FLINTLOCK_STATE_DIR": str(state_dir),
            **variables,
        },
    )
