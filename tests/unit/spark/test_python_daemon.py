"""Spark's daemon of Python workers: it ends by itself when it has had no worker for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

#: Waits for a child that lives until its stdin is closed, then for the signal.
_PROGRAM = """
import signal, subprocess, sys
from flintlock.spark.engine.python.python_daemon import end_when_idle
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
end_when_idle(0.2)
print("busy", flush=True)
sys.stdin.readline()
child.stdin.close()
child.wait()
print("idle", flush=True)
while True: signal.pause()
"""


def test_a_daemon_ends_when_it_has_had_no_worker_for_a_while() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "busy\n"
        try:
            process.wait(1.0)  # five times its idle time, with a child
        except subprocess.TimeoutExpired:
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "idle\n"
        assert process.wait(20) == -signal.SIGTERM
