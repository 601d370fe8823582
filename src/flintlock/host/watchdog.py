"""The watchdog: a process outside the TaskManager that ends engine and runners when their lease ends.

`python -m flintlock.host.watchdog RUN_DIR MARK PARENT`: stdin brings moments (doubles, of `boot_time_s`) at which all
work has to have ended, infinity for none; the newest counts, and is repeated on stdout once it is heard. A TaskManager
that is frozen sends none, and cannot stop its JVM, which works on: this is for that.

It kills when the moment comes, and goes on. It kills and ends when stdin closes: then the TaskManager is gone. No
signal but SIGKILL ends it sooner, and one that was stopped is woken by the kernel when its TaskManager dies, so it
never outlives it by more than the killing takes. Standard library only: it is small, and up in a moment.

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

from flintlock.host.children import reap_leftovers
from flintlock.host.processes import boot_time_s, wake_when_parent_ends

MOMENT: Final = struct.Struct("<d")

#: The longest that is slept while armed: sleeping counts on a clock that stands still while the machine does.
_NAP_S: Final = 0.5

_COMMANDS: Final = 0
_ANSWERS: Final = 1


class Moments:
    """The moments that come in, in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> float | None:
        """Take in a piece; return the newest moment that is whole by now, if one became so."""
        data = self._rest + data
        whole = len(data) - len(data) % MOMENT.size
        self._rest = data[whole:]
        return float(MOMENT.unpack(data[whole - MOMENT.size : whole])[0]) if whole else None


def watch(run_dir: Path, mark: str, parent: int) -> None:
    """Watch over a TaskManager until it is gone."""

    def end(reason: str) -> None:
        killed = reap_leftovers(run_dir, mark=mark, spare=(parent,))
        if killed:
            _tell(reason, [f"{record.name} {record.pid}" for record in killed])

    moments, kill_at_s = Moments(), math.inf
    while True:
        nap_s = None if kill_at_s == math.inf else min(max(kill_at_s - boot_time_s(), 0.0), _NAP_S)
        if select.select([_COMMANDS], [], [], nap_s)[0]:
            data = os.read(_COMMANDS, 1 << 16)
            if not data:
                break
            told_s = moments.feed(data)
            if told_s is not None:
                kill_at_s = told_s
                try:
                    os.write(_ANSWERS, MOMENT.pack(told_s))
                except OSError:
                    break
        elif boot_time_s() >= kill_at_s:
            end("the lease of the TaskManager's work has ended")
            kill_at_s = math.inf
    end("the TaskManager is gone")


def _tell(reason: str, killed: list[str]) -> None:
    told = {
        "event": "watchdog-killed",
        "reason": reason,
        "killed": killed,
        "level": "warning",
        "timestamp": datetime.now(UTC).isoformat(),
    }
    try:
        os.write(2, (json.dumps(told) + "\n").encode())
    except OSError:
        return


def main() -> None:
    """Be a watchdog."""
    run_dir, mark, parent = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    wake_when_parent_ends()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a service manager means the TaskManager, and then all of it ends
    watch(run_dir, mark, parent)


if __name__ == "__main__":
    main()
