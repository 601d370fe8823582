"""Which JobManager of this user listens at a port of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
from msgspec import Struct

from flintlock.host.cluster_spec import read_settings_file
from flintlock.model.errors import Invalid


class ListeningJobManager(Struct, frozen=True, kw_only=True):
    """A JobManager's process, as its command line describes it."""

    state_dir: Path
    settings: dict[str, str]  # those that it was started with, apart from its configuration file


def listening_jobmanager(port: int) -> ListeningJobManager | None:
    """Return the JobManager of this user that listens at the port; None if there is none, or the system hides it.

    A process of the same user is trusted: it can read whatever this one can.
    """
    for process in psutil.process_iter():
        try:
            if process.uids().effective != os.geteuid():
                continue
            found = _described(process.cmdline())
            if found is not None and any(
                item.status == psutil.CONN_LISTEN and item.laddr.port == port for item in process.net_connections("tcp")
            ):
                return found
        except psutil.Error:
            continue
    return None


def _described(command: list[str]) -> ListeningJobManager | None:
    if "--state-dir" not in command or not any("jobmanager" in part for part in command[:4]):
        return None
    state_dir = next(_values(command, "--state-dir"), "")
    settings: dict[str, str] = {}
    for file in _values(command, "--settings-file"):
        with suppress(Invalid):  # it has been removed: the process ends
            settings |= read_settings_file(Path(file))
    settings |= dict(item.split("=", 1) for item in _values(command, "-D") if "=" in item)
    return ListeningJobManager(state_dir=Path(state_dir), settings=settings)


def _values(command: list[str], flag: str) -> Iterator[str]:
    return (value for name, value in pairwise(command) if name == flag)
