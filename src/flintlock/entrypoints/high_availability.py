"""Which HA services a JobManager works with."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from flintlock.config.configuration import Configuration
from flintlock.config.options import (
    HA_CONNECTION_TIMEOUT,
    HA_QUORUM,
    HA_RECOVERY,
    HA_ROOT,
    HA_SESSION_TIMEOUT,
    HA_SILENCE,
    HA_STORAGE_DIR,
    HEARTBEAT_TIMEOUT,
    WORK_DIR,
)
from flintlock.entrypoints.process import Settings
from flintlock.ha.embedded.services import embedded_ha
from flintlock.ha.protocols import HaServices
from flintlock.ha.zookeeper.settings import check_zookeeper, cluster_id, uses_zookeeper
from flintlock.host.boot_clock import boot_time_s
from flintlock.model.errors import Invalid
from flintlock.taskmanager.lease import YIELD_PART


@asynccontextmanager
async def ha_services(settings: Settings, clock_ms: Callable[[], int]) -> AsyncGenerator[HaServices]:
    """Open the services that `high-availability.type` names. Raises Invalid if they lack a setting."""
    configuration = settings.configuration
    check_leases(configuration)
    if not uses_zookeeper(configuration):
        async with embedded_ha(
            settings.state_dir,
            new_session=_new_session,
            now_ms=clock_ms,
            silence_s=configuration.get(HA_SILENCE),
        ) as embedded:
            yield embedded
        return
    check_zookeeper(configuration, HA_STORAGE_DIR)
    from flintlock.ha.zookeeper.services import zookeeper_ha  # needs the extra `zookeeper`, and takes a while

    async with zookeeper_ha(
        configuration.get(HA_QUORUM),
        root=configuration.get(HA_ROOT),
        cluster_id=cluster_id(configuration),
        storage_dir=configuration.get(HA_STORAGE_DIR),
        session_timeout_s=configuration.get(HA_SESSION_TIMEOUT),
        connection_timeout_s=configuration.get(HA_CONNECTION_TIMEOUT),
        new_session=_new_session,
        clock_s=boot_time_s,
    ) as zookeeper:
        yield zookeeper


def check_leases(configuration: Configuration) -> None:
    """Check that running work outlives a change of leader. Raises Invalid, naming keys and values.

    TaskManagers end what they run at YIELD_PART of a lease that nobody renews. A leader that fell silent is replaced
    after its timeout, and its successor hears TaskManagers once it has recovered the jobs.
    """
    timeout = HA_SESSION_TIMEOUT if uses_zookeeper(configuration) else HA_SILENCE
    lease_s, silence_s, recovery_s = (configuration.get(each) for each in (HEARTBEAT_TIMEOUT, timeout, HA_RECOVERY))
    if lease_s * YIELD_PART > silence_s + recovery_s:
        return
    raise Invalid(
        f"{HEARTBEAT_TIMEOUT.key} ({lease_s:g} s) is too short: every change of leader would stop the work. "
        f"{YIELD_PART:g} of it ({lease_s * YIELD_PART:g} s) must be more than {timeout.key} ({silence_s:g} s) and "
        f"{HA_RECOVERY.key} ({recovery_s:g} s) together"
    )


def work_dir(settings: Settings) -> str:
    """Return where blocking results are: one place for all JobManagers, or a change of leader would lose them."""
    configuration = settings.configuration
    shared = configuration.get(HA_STORAGE_DIR) if uses_zookeeper(configuration) else ""
    return configuration.get(WORK_DIR) or (f"{shared.rstrip('/')}/work" if shared else str(settings.state_dir / "work"))


def _new_session() -> str:
    return uuid.uuid4().hex
