"""Where a JobManager runs: what the place starts workers with, and what it must know of the JobManager.

There are two: a machine of one's own, and a container of YARN (`yarn_platform`). A third one, such as Kubernetes,
implements `Platform` and a `WorkerDriver`, and nothing else of a JobManager changes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Final, Protocol

from flintlock.entrypoints.process import ProcessSettings
from flintlock.entrypoints.workers.providers import WorkerDriverOpener, worker_driver
from flintlock.ha.leader_info import ApplicationAttempt
from flintlock.model.application import ApplicationStatus


class Platform(Protocol):
    """The place of one JobManager process."""

    ends_for_good: bool  # a cluster that was shut down is never started again here: its HA data is removed
    attempt: ApplicationAttempt | None  # which start of the JobManager this is, where the platform counts them

    def workers(self, rpc_address: str) -> WorkerDriverOpener | None:
        """Return what opens the workers of a term, for a JobManager that listens there; None: no active mode."""
        ...

    def serving(self, rest_url: str) -> AbstractAsyncContextManager[None]:
        """Make the JobManager known while it serves REST there, and supervise what it depends on.

        It serves meanwhile: neither leadership nor running work waits for what the platform takes its time for.
        Raises (in a group) what is fatal to the process.
        """
        ...

    async def keep_end(self, file: Path) -> None:
        """Keep the record of how the cluster's own job has ended where a JobManager that is started again finds it.

        Durable when it returns. Raises OSError.
        """
        ...

    async def find_end(self, file: Path) -> None:
        """Put the record that an earlier start has kept into this file; leave no file if none has. Raises OSError."""
        ...

    async def finish(self, status: ApplicationStatus) -> None:
        """The cluster has shut down with this status: nothing starts this JobManager again. Called while it serves."""
        ...


class MachinePlatform:
    """A Platform: a machine, with workers as processes beside the JobManager. Nothing has to be registered."""

    ends_for_good: bool = False  # it is started again in its state directory
    attempt: ApplicationAttempt | None = None

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings: Final = settings

    def workers(self, rpc_address: str) -> WorkerDriverOpener | None:  # noqa: ARG002 (they find it as all do)
        """See `Platform`."""
        return worker_driver(self._settings)

    def serving(self, rest_url: str) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """See `Platform`."""
        return nullcontext()

    async def keep_end(self, file: Path) -> None:
        """The state directory is the same for each start: it is there already."""

    async def find_end(self, file: Path) -> None:
        """Likewise."""

    async def finish(self, status: ApplicationStatus) -> None:
        """See `Platform`."""
