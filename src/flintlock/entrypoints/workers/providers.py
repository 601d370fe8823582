"""What provides the workers of active mode, by name: the place where another provider is added.

`local` is the only one: TaskManager processes beside the JobManager.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

from flintlock.config.options import MAX_TASK_MANAGERS
from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.workers.local_workers import local_workers
from flintlock.gateways.workers import WorkerDriver
from flintlock.model.ids import FencingToken

#: Opens the workers of one term; leaving the scope ends them.
WorkerDriverOpener: TypeAlias = Callable[[FencingToken], AbstractAsyncContextManager[WorkerDriver]]


def _local(settings: ProcessSettings) -> WorkerDriverOpener:
    return lambda token: local_workers(settings, token.epoch)


LOCAL: Final = "local"
_PROVIDERS: Final[dict[str, Callable[[ProcessSettings], WorkerDriverOpener]]] = {LOCAL: _local}


def worker_driver(settings: ProcessSettings, provider: str = LOCAL) -> WorkerDriverOpener | None:
    """Return what opens the workers of a provider; None unless the configuration asks for active mode."""
    return _PROVIDERS[provider](settings) if settings.configuration.get(MAX_TASK_MANAGERS) else None
