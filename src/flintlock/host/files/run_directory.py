"""The run directory of a process: locked while the process runs, with an id that outlives it.

Two processes over one directory would take each other's children for leftovers of an earlier process and kill them. So
it is locked before anything in it is read or changed. The kernel releases the lock when its holder dies, however it
dies; children do not inherit it.

The id is random and stays in the directory: hosts may have equal names (copies of one image, `localhost`), but they do
not share a run directory.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flintlock.model.errors import Conflict, Refused

_LOCK: Final = "lock"
_ID: Final = "id"
_ID_LENGTH: Final = 8
_PAUSE_S: Final = 0.1


@contextmanager
def locked_run_directory(directory: Path) -> Generator[None]:
    """Hold the directory, made if it does not exist, while the context lasts.

    Raises Refused, with the holder's pid, if another process has it; nothing is changed then. Raises OSError.
    """
    with _locked(directory) as holder:
        if holder is not None:
            raise Refused(
                f"{directory} is in use by process {holder}: give each process of a state directory "
                "its own --index, or its own --state-dir"
            )
        yield


@contextmanager
def start_lock(state_dir: Path, patience_s: float) -> Generator[None]:
    """Be the only one that starts processes in the background of a state directory, while the context lasts.

    Raises Conflict, with the holder's pid, if another process has it for longer than `patience_s`. Raises OSError.
    """
    directory = state_dir / "run" / "start"
    deadline = time.monotonic() + patience_s
    while True:
        with _locked(directory) as holder:
            if holder is None:
                yield
                return
        if time.monotonic() >= deadline:
            raise Conflict(f"process {holder} is starting processes in {state_dir}: try again when it has ended")
        time.sleep(_PAUSE_S)  # noqa: TID251 a lock that is released sends no event


@contextmanager
def _locked(directory: Path) -> Generator[str | None]:
    """Lock the directory and yield None; if another process has it, yield the pid of that."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield None
    finally:
        os.close(descriptor)


def permanent_id(directory: Path) -> str:
    """Return the directory's id, made at random by the first call. Only its holder may call this. Raises OSError."""
    path = directory / _ID
    try:
        stored = path.read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        stored = ""
    if len(stored) == _ID_LENGTH and stored.isalnum():
        return stored
    made = uuid.uuid4().hex[:_ID_LENGTH]
    unfinished = path.with_name(f".{_ID}")
    unfinished.write_text(made, "ascii")
    unfinished.replace(path)
    return made
