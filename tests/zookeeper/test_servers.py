"""The harness itself: no server outlives the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
from tests.cluster.processes import until

RUNS_ONE = """
import sys
from pathlib import Path
from tests.zookeeper.servers import running_ensemble
with running_ensemble(Path(sys.argv[1])):
    print("serving", flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_with_the_process_that_started_it_even_if_that_is_killed(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    starter = subprocess.Popen(
        [sys.executable, "-c", RUNS_ONE, str(tmp_path / "home")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root},
    )
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"serving\n"
        (server,) = psutil.Process(starter.pid).children()
    finally:
        starter.kill()
        starter.communicate()

    until("the server's end", lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 10)
