"""System commands of the harness: `ip`, `mount` and the like."""

from __future__ import annotations

import subprocess


def run(*command: str) -> None:
    """Run a command. Raises OSError with what it printed if it cannot be run or fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
