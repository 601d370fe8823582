"""The log files of a process and of its machine.

A process's own log is found by where its output goes, not by its name: under a service manager that may be nowhere
here, while the directory has a file of that name from an earlier process.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flintlock.host.logs.log_rotation import log_of
from flintlock.model.diagnostics import LogFileInfo


@dataclass(frozen=True, kw_only=True)
class ProcessLogs:
    """Where the log files of this machine's processes are, and which of them is this process's own."""

    directory: Path | None = None
    log: Path | None = None  # where stderr goes, if that is a file in `directory`
    stdout: Path | None = None  # where stdout goes, likewise
    engine: Path | None = None  # where a TaskManager's Spark engine writes its log

    @staticmethod
    def of(directory: Path, *, engine: Path | None = None, stderr: int = 2, stdout: int = 1) -> ProcessLogs:
        """Find out where the process's output goes."""
        return ProcessLogs(
            directory=directory, log=log_of(directory, stderr), stdout=log_of(directory, stdout), engine=engine
        )

    def files(self) -> tuple[LogFileInfo, ...]:
        """Return the log files by name: plain files in the directory, nothing beneath it and nothing hidden."""
        return tuple(
            LogFileInfo(name=name, size=seen.st_size, modified_ms=seen.st_mtime_ns // 1_000_000)
            for name, seen in _stats(self.directory).items()
        )

    def find(self, name: str) -> Path | None:
        """Return the path of a log file; None for any name that is not listed."""
        if self.directory is None or name not in _stats(self.directory):
            return None
        return self.directory / name


def read_last_lines(path: Path, limit: int) -> bytes:
    """Return the end of a file: at most `limit` bytes, and whole lines where that cuts it. Raises OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        data = file.read(limit)
    if size <= limit:
        return data
    _, newline, lines = data.partition(b"\n")
    return lines if newline else data


def _stats(directory: Path | None) -> dict[str, os.stat_result]:
    if directory is None or not directory.is_dir():
        return {}
    with os.scandir(directory) as entries:
        return {
            entry.name: entry.stat(follow_symlinks=False)
            for entry in sorted(entries, key=lambda entry: entry.name)
            if entry.is_file(follow_symlinks=False) and not entry.name.startswith(".")
        }
