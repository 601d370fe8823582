"""Child processes that cannot outlive their parent, and what is done about those that did all the same.

Three nets, one under the other: the kernel kills a child when the thread that forked it ends (PR_SET_PDEATHSIG, Linux
only), a pipe to the child closes, and what still lives when the parent's successor starts is found by its record in
the run directory and killed. A record holds the pid together with the moment at which that process began, so that a
pid which was given to somebody else in the meantime is never touched.

`spawn` ties foreign programs (the JVM) and needs code between fork and exec. Python warns of that in a process with
threads, so only those with one thread call it: the engine's process before it starts its threads, and a runner.
Processes of our own tie themselves instead, as the first thing they do (`die_with_parent`): whoever starts them may
have any number of threads, and a parent that died in between is seen by its pid. Rejected: `setpriv
--pdeathsig` (not on every machine), a Python that ties itself and then execs (its start costs more than the rest).

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

from flintlock.host import processes
from flintlock.host.process_tree import KILL_S, boot_id, kill_trees, read_process

_SUFFIX: Final = ".child"


@dataclass(frozen=True, kw_only=True)
class ChildRecord:
    """One process, named so that no other can be taken for it."""

    name: str
    pid: int
    start_time: str


def die_with_parent(parent: int | None = None) -> None:
    """Tie this process to the one that started it; one that ended before that is noticed if its pid is given."""
    processes.die_with_parent(os.getppid() if parent is None else parent)


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

    def tie() -> None:
        processes.die_with_parent(parent)

    return subprocess.Popen(
        command,
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        preexec_fn=tie,  # noqa: PLW1509 - the module says why this is safe here
    )


def start_time_of(pid: int) -> str | None:
    """Return what tells this process from any other that had or will have its pid; None if it has ended.

    On Linux this does not depend on the clock: boot id and ticks since boot.
    """
    if sys.platform != "linux":
        import psutil

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
        except psutil.Error:
            return None
    try:
        found = read_process(pid, boot_id())
    except OSError:
        return None
    return None if found is None else found.start_time


def record_child(run_dir: Path, name: str, pid: int) -> Path | None:
    """Write down that this process was started; return the record's place, or None if it has ended already."""
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


def reap_leftovers(run_dir: Path, *, mark: str = "", spare: Iterable[int] = ()) -> tuple[ChildRecord, ...]:
    """Kill every recorded process that still lives, with its family; return the recorded ones among those killed.

    For whoever starts in the place of a former self, and for its watchdog: the run directory must be nobody else's.
    Waits for their end and clears the records; one that cannot be read is removed. `families` says who is of a family,
    and what `mark` and `spare` are. Idempotent.
    """
    paths = sorted(run_dir.glob(f"*{_SUFFIX}"))
    records = [record for path in paths if (record := _read(path)) is not None]
    if sys.platform == "linux":
        killed = kill_trees({record.pid: record.start_time for record in records}, mark=mark, spare=spare)
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
