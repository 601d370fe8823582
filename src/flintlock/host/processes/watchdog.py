"""The watchdog: a process outside the TaskManager that kills engine and runners when their lease ends.

`python -m flintlock.host.processes.watchdog RUN_DIR TAG PARENT`: stdin brings deadlines (doubles, of `boot_time_s`) by
which all work has to have ended, infinity for none; the newest counts, and is acknowledged by repeating it on stdout. A
TaskManager that is frozen sends none, and cannot stop its JVM, which works on: this is for that.

It kills when the deadline passes, and goes on. It kills and exits when stdin closes: then the TaskManager has ended. No
signal but SIGKILL ends it sooner, and one that was stopped is woken by the kernel when its TaskManager dies, so it
never outlives it by more than the killing takes. Standard library only: it is small, and starts quickly.

Rejected: a thread of the TaskManager (frozen with it); killing by the parent-death signal alone (a frozen parent is not
dead); a timer of the kernel in the JVM's own process (user code could disarm it).
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import struct
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from flintlock.host.boot_clock import boot_time_s
from flintlock.host.processes.children import reap_leftovers
from flintlock.host.processes.parent_death import wake_when_parent_ends

DEADLINE: Final = struct.Struct("<d")

#: The longest sleep while a deadline is set: sleeping counts on a clock that stops while the machine sleeps.
_POLL_S: Final = 0.5

_COMMANDS: Final = 0
_ACKNOWLEDGEMENTS: Final = 1


class DeadlineReader:
    """Decodes deadlines from a stream, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> float | None:
        """Return the newest deadline that this piece completes; None if it completes none."""
        data = self._rest + data
        whole = len(data) - len(data) % DEADLINE.size
        self._rest = data[whole:]
        return float(DEADLINE.unpack(data[whole - DEADLINE.size : whole])[0]) if whole else None


def watch(run_dir: Path, tag: str, parent: int) -> None:
    """Watch over a TaskManager until it has ended."""

    def kill_all(reason: str) -> None:
        killed = reap_leftovers(run_dir, tag=tag, exclude=(parent,))
        if killed:
            _log(reason, [f"{record.name} {record.pid}" for record in killed])

    deadlines, deadline_s = DeadlineReader(), math.inf
    while True:
        sleep_s = None if deadline_s == math.inf else min(max(deadline_s - boot_time_s(), 0.0), _POLL_S)
        if select.select([_COMMANDS], [], [], sleep_s)[0]:
            data = os.read(_COMMANDS, 1 << 16)
            if not data:
                break
            received_s = deadlines.feed(data)
            if received_s is not None:
                deadline_s = received_s
                try:
                    os.write(_ACKNOWLEDGEMENTS, DEADLINE.pack(received_s))
                except OSError:
                    break
        elif boot_time_s() >= deadline_s:
            kill_all("the lease of the TaskManager's work has ended")
            deadline_s = math.inf
    kill_all("the TaskManager is gone")


def _log(reason: str, killed: list[str]) -> None:
    record = {
        "event": "watchdog-killed",
        "reason": reason,
        "killed": killed,
        "level": "warning",
        "timestamp": datetime.now(UTC).isoformat(),
    }
    try:
        os.write(2, (json.dumps(record) + "\n").encode())
    except OSError:
        return


def main() -> None:
    """Run a watchdog."""
    run_dir, tag, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    wake_when_parent_ends()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager means the TaskManager, and then all of it ends
    watch(run_dir, tag, parent)


if __name__ == "__main__":
    main()
