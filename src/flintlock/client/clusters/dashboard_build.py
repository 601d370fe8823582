"""The dashboard of a checkout, built while a cluster starts. An installed wheel has it already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import flintlock

CHECKOUT: Final = Path(flintlock.__file__).parents[2]
BUILD_PATIENCE_S: Final = 60.0  # after the cluster is ready; packages that are there are built in seconds


class DashboardBuild:
    """A build that runs. Use `building_dashboard`."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._process: Final = process
        self._output: Final = output

    def result(self, patience_s: float = BUILD_PATIENCE_S) -> str:
        """Wait for the end of the build. Return why there is no dashboard; an empty text if it is there."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return f"it was not built within {patience_s:g} s"
        if code == 0:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its build ended with code {code}"


@contextmanager
def building_dashboard(checkout: Path = CHECKOUT) -> Generator[DashboardBuild | None]:
    """Build the dashboard in the background if this is a checkout and its source has changed since the last build.

    Yields None where there is no source. A build that still runs at the end of the context is ended.
    """
    script = checkout / "dashboard" / "build.py"
    if not script.is_file():
        yield None
        return
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # it is ended together with Node, which it starts
        )
        with process:
            try:
                yield DashboardBuild(process, output)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
