"""The backend `embedded`: a store in the state directory, for JobManagers of one host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import ClassVar, Final

from flintlock.config.configuration import Configuration, Option
from flintlock.config.options import HA_SILENCE, JM_RPC_ADDRESS, JM_RPC_PORT
from flintlock.ha.leader_finding import LeaderFinder
from flintlock.ha.leader_info import LeaderCheck
from flintlock.ha.protocols import HaServices
from flintlock.host.processes.pid_files import job_managers, read_leader_file
from flintlock.model.errors import Unavailable

#: In the state directory: what the cluster stores.
STORE_FILE: Final = "store.db"

_POLL_S: Final = 0.2


class EmbeddedBackend:
    """Implements HaBackend."""

    leader_timeout: ClassVar[Option[float]] = HA_SILENCE
    spans_hosts: ClassVar[bool] = False

    def services(
        self,
        configuration: Configuration,
        state_dir: Path,
        *,
        new_session: Callable[[], str],
        clock_ms: Callable[[], int],
        boot_time_s: Callable[[], float],  # noqa: ARG002 (the kernel's lock decides, not a clock)
        leader_answers: LeaderCheck,
        is_blocked: Callable[[int], bool],
    ) -> AbstractAsyncContextManager[HaServices]:
        """Open the store of the state directory."""
        from flintlock.ha.embedded.services import embedded_ha  # clients need no SQLite

        return embedded_ha(
            state_dir,
            new_session=new_session,
            now_ms=clock_ms,
            silence_s=configuration.get(self.leader_timeout),
            leader_answers=leader_answers,
            is_blocked=is_blocked,
        )

    @asynccontextmanager
    async def leader_finder(self, configuration: Configuration, state_dir: Path) -> AsyncGenerator[LeaderFinder]:
        """Provide a finder that polls the files of the state directory."""
        yield LeaderFinder(find_in_state_directory(configuration, state_dir), lambda: asyncio.sleep(_POLL_S))

    def leader_url(self, configuration: Configuration, *, wait_s: float, former: str = "") -> str | None:  # noqa: ARG002
        """Return None: clients read the state directory."""
        return None

    def describe_register(self, configuration: Configuration) -> str:  # noqa: ARG002
        """Name the state directory."""
        return "the state directory"

    def cluster_identity(self, configuration: Configuration) -> str:  # noqa: ARG002
        """Return nothing: the cluster is its state directory."""
        return ""

    def shared_directory(self, configuration: Configuration) -> str:  # noqa: ARG002
        """Return nothing: all processes share the state directory."""
        return ""


def find_in_state_directory(configuration: Configuration, state_dir: Path) -> Callable[[], str]:
    """Return a function that finds the leader of an embedded cluster: at the configured port, or by the files.

    A configured port is the first JobManager's. Another JobManager of the same host may lead, at a port of its own:
    its file counts while its process runs.
    """

    def find() -> str:
        address, port = configuration.get(JM_RPC_ADDRESS), configuration.get(JM_RPC_PORT)
        if port:
            leader = next((file for file in job_managers(state_dir) if file.epoch), None)
            same_host = leader is not None and leader.rpc.rpartition(":")[0] == address
            return leader.rpc if leader is not None and same_host else f"{address}:{port}"
        leader = read_leader_file(state_dir)
        if leader is None:
            raise Unavailable(f"no JobManager is known in {state_dir}")
        return leader.rpc

    return find
