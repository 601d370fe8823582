"""The copies that Spark keeps of the files of a session (`addArtifacts`), on the disk of the driver.

Each session has a folder, which has the server's id of the session as its name. Spark leaves it when the session is
closed, so an engine that runs for weeks would collect the files of every job.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def has_session_files(root: Path) -> bool:
    """Return whether any session has files there."""
    with suppress(OSError):  # it is gone with its engine
        return any(entry.is_dir() for entry in root.iterdir())
    return False


def remove_session_files(root: Path, sessions: Iterable[str]) -> None:
    """Remove the files of these sessions, by the server's ids of them. What cannot be removed stays."""
    for session in sessions:
        if session not in ("", ".", "..") and "/" not in session:
            shutil.rmtree(root / session, ignore_errors=True)
