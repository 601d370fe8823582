"""Child processes that do not outlive their parent, and the removal of those that did all the same.

Three safety nets, one under the other: the kernel kills a child when the thread that forked it ends (PR_SET_PDEATHSIG,
Linux only), a pipe to the child closes, and a child that still lives when the parent's successor starts is found by its
record in the run directory and killed. A record holds the pid together with the start time of that process, so that a
pid which was given to another process in the meantime is never touched.

`spawn` binds foreign programs (the JVM) to their parent and needs code between fork and exec. Python warns of that in a
process with threads, so only those with one thread call it: the engine's process before it starts its threads, and a
runner. Processes of our own bind themselves instead, as the first thing they do (`parent_death.die_with_parent`): their
parent may have any number of threads, and one that died in between is detected by its pid. Rejected: `setpriv
--pdeathsig` (not on every machine), a Python that binds itself and then execs (its start costs more than the rest).

Standard library only: the watchdog, which has to be small and quick to start, imports this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from flintlock.host.processes.parent_death import die_with_parent
from flintlock.host.processes.process import start_time_of
from flintlock.host.processes.process_tree import KILL_S, kill_trees

_SUFFIX: Final = ".child"


@dataclass(frozen=True, kw_only=True)
class ChildRecord:
    """One process, identified unambiguously."""

    name: str
    pid: int
    start_time: str


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: Path,
    output: int,
) -> subprocess.Popen[bytes]:
    """Start a program that the kernel kills when the calling thread ends; its stdin is a pipe, its output goes to a fd.

    The calling process must have one thread only, and the caller must be the thread that lives longest.
    """
    parent = os.getpid()

    def bind() -> None:
        die_with_parent(parent)

    return subprocess.Popen(
        command,
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        preexec_fn=bind,  # noqa: PLW1509 - the module says why this is safe here
    )


def record_child(run_dir: Path, name: str, pid: int) -> Path | None:
    """Record that this process was started; return the record's path, or None if the process has ended already."""
    start_time = start_time_of(pid)
    if start_time is None:
        return None
    run_dir.mkdir(parents=True, exist_ok=True)
    path = run_dir / f"{name}-{pid}{_SUFFIX}"
    unfinished = path.with_suffix(".new")
    record = ChildRecord(name=name, pid=pid, start_time=start_time)
    unfinished.write_text(json.dumps(asdict(record)), encoding="utf-8")
    unfinished.replace(path)
    return path


def forget_child(path: Path | None) -> None:
    """Remove the record of a process that has ended. Idempotent."""
    if path is not None:
        path.unlink(missing_ok=True)


def reap_leftovers(run_dir: Path, *, tag: str = "", exclude: Iterable[int] = ()) -> tuple[ChildRecord, ...]:
    """Kill every recorded process that still lives, with its tree; return the recorded ones among those killed.

    For the process that replaces the one that recorded them, and for its watchdog: no other process may use the run
    directory. Waits for their end and removes the records; one that cannot be read is removed. `process_tree` says
    what belongs to a tree, and what `tag` and `exclude` are. Idempotent.
    """
    paths = sorted(run_dir.glob(f"*{_SUFFIX}"))
    records = [record for path in paths if (record := _read(path)) is not None]
    if sys.platform == "linux":
        killed = kill_trees({record.pid: record.start_time for record in records}, tag=tag, exclude=exclude)
        ended = tuple(record for record in records if record.pid in killed)
    else:
        ended = tuple(record for record in records if _kill_by_pid(record))
    for path in paths:
        path.unlink(missing_ok=True)
    return ended


def _read(path: Path) -> ChildRecord | None:
    try:
        return ChildRecord(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _kill_by_pid(record: ChildRecord) -> bool:
    """Kill where the system has no handles for processes."""
    if start_time_of(record.pid) != record.start_time:
        return False
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(record.pid)
        process.kill()
        process.wait(KILL_S)
    return True
