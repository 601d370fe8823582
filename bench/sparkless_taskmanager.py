"""A TaskManager process without Spark: engine and runners are those of the simulation, all else is real.

Its tasks take next to no time, and some of them fail: what is measured with it is the JobManager.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from flintlock.config.configuration import Configuration
from flintlock.entrypoints.process import start
from flintlock.entrypoints.taskmanager import serve
from flintlock.gateways.engine import EngineLauncher
from flintlock.host.runner_user import RunnerUser
from flintlock.testing.fakes.fake_spark import FakeSpark

WORK_S: Final = 0.05
FAILURES: Final = 0.4  # of the attempts


def sparkless(
    *,
    slots: int,
    configuration: Configuration,
    run_dir: Path,
    files_dir: Path,
    user: RunnerUser | None,
    log_file: Path,
    work_dir: str,
    checkpoints_dir: str,
    archive_dir: Path,
    secrets_dir: Path,
) -> EngineLauncher:
    """Return a launcher of engines that fail often. It uses none of the directories."""
    del slots, configuration, run_dir, files_dir, user, log_file, work_dir, checkpoints_dir, archive_dir, secrets_dir
    return FakeSpark(Random(1), work_s=WORK_S, failures=FAILURES).launcher()


if __name__ == "__main__":
    sys.exit(start("taskmanager", partial(serve, launcher=sparkless)))
