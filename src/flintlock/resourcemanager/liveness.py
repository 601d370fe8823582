"""Noticing the death of a TaskManager soon: for each incarnation one call is open that it answers when it has ended.

Only two things prove that an incarnation has ended: the process that listens at its address reports it; or nothing
listens there any more *and* nothing is heard of it for longer than the pause between two heartbeats. A refused
connection alone proves nothing: a firewall or a dead port forward refuses connections to a TaskManager that works and
sends heartbeats. Any other failure may be a machine whose tasks still run: the heartbeat timeout decides then, after
which the lease has ended too.

A TaskManager that refuses connections but sends heartbeats is unreachable: its tasks continue, and it gets no others
until it can be reached again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.errors import Unavailable
from flintlock.model.ids import InstanceId
from flintlock.model.slots import LivenessProbe
from flintlock.resourcemanager.core import TaskManagerEntered
from flintlock.rpc.liveness import wait_for_verdict

#: Pauses before the call is repeated, once the open one has ended.
RETRY_DELAYS_S: Final = (0.1, 0.2, 0.3, 0.4)
GRACE_S: Final = sum(RETRY_DELAYS_S)

#: The pause between further calls to a TaskManager that refuses connections while it is not known to have ended.
_PAUSE_S: Final = 0.4

#: How much longer than the interval of heartbeats a TaskManager has to be silent.
SILENCE_MARGIN_S: Final = 0.5

#: An incarnation that no TaskManager has: a call about it is answered at once.
_NO_INSTANCE: Final = InstanceId("")


class Gone(Struct, frozen=True):
    """An incarnation has ended. `returns`: its process answers, and may register again."""

    reason: str
    returns: bool


async def watch_liveness(
    task_manager: TaskManagerGateway,
    incarnation: TaskManagerEntered,
    *,
    is_silent: Callable[[], bool],
    set_reachable: Callable[[bool], None],
) -> Gone:
    """Return once that incarnation has ended, and why. Cancelled when its end was noticed otherwise.

    `is_silent` says whether its next heartbeat is overdue. `set_reachable` is called with False when it refuses
    connections although it is not silent, and with True when it can be reached again. Raises FlintlockError for a
    TaskManager that refuses such a call.
    """
    reachable, was_silent = True, False

    async def probe() -> Gone | None:
        nonlocal reachable, was_silent
        silent_before, was_silent = was_silent, False
        try:
            if not reachable:
                await task_manager.watch_liveness(LivenessProbe(instance=_NO_INSTANCE))
                reachable = True
                set_reachable(True)
            await task_manager.watch_liveness(LivenessProbe(instance=incarnation.instance))
        except Unavailable as error:
            if not error.unreachable:
                return None
            if reachable:
                reachable = False
                set_reachable(False)
            was_silent = is_silent()
            if was_silent and silent_before:  # twice: this process may have been frozen, its messages read only now
                return Gone(f"nothing listens at {incarnation.address}", returns=False)
            return None
        return Gone("it reports that it has ended", returns=True)

    return await wait_for_verdict(probe, RETRY_DELAYS_S, _PAUSE_S)
