"""Noticing the death of a TaskManager at once: for each incarnation one call is open that it answers when it has ended.

Only two answers prove that an incarnation has ended: nothing listens at its address any more, or the process that
listens there reports it. Any other failure may be a machine whose tasks still run: the heartbeat timeout decides then,
after which the lease has ended too.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.errors import Unavailable
from flintlock.model.slots import LivenessProbe
from flintlock.resourcemanager.core import TaskManagerEntered
from flintlock.rpc.liveness import wait_for_verdict

#: Pauses before the call is repeated, once the open one has ended.
RETRY_DELAYS_S: Final = (0.1, 0.2, 0.3, 0.4)
GRACE_S: Final = sum(RETRY_DELAYS_S)


class Gone(Struct, frozen=True):
    """An incarnation has ended. `returns`: its process answers, and may register again."""

    reason: str
    returns: bool


async def watch_liveness(task_manager: TaskManagerGateway, incarnation: TaskManagerEntered) -> Gone:
    """Return once that incarnation has certainly ended, and why. Cancelled when its end was noticed otherwise.

    Raises FlintlockError for a TaskManager that refuses such a call.
    """

    async def probe() -> Gone | None:
        try:
            await task_manager.watch_liveness(LivenessProbe(instance=incarnation.instance))
        except Unavailable as error:
            return Gone(f"nothing listens at {incarnation.address}", returns=False) if error.unreachable else None
        return Gone("it reports that it has ended", returns=True)

    return await wait_for_verdict(probe, RETRY_DELAYS_S)
