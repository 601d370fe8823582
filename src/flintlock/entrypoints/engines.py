"""What provides a TaskManager's Spark engine, by name: the place where another provider is added.

`local` is the only one: the Spark driver is a process of the TaskManager's host, whatever `spark.master` makes that
driver use for executors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

from flintlock.config.configuration import Configuration
from flintlock.gateways.engine import EngineLauncher
from flintlock.host.runner_user import RunnerUser
from flintlock.spark.launcher import LocalEngineLauncher


class EngineLauncherFactory(Protocol):
    """Makes the launcher of a TaskManager's engines."""

    def __call__(
        self,
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
        """Return a launcher; it starts nothing yet."""
        ...


LOCAL: Final = "local"
_PROVIDERS: Final[dict[str, EngineLauncherFactory]] = {LOCAL: LocalEngineLauncher}


def engine_launcher(provider: str = LOCAL) -> EngineLauncherFactory:
    """Return what makes the engine launchers of a provider."""
    return _PROVIDERS[provider]
