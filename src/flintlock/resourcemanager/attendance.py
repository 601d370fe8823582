"""Noticing a death at once: for each life of a TaskManager one call is open that it never answers while it lives.

When the process dies, the kernel closes its connections, and the call breaks. That alone proves nothing (a switch may
have done it), so the question is put again a few times, within `GRACE_S`. Only two answers are the end of a life: that
nothing listens there any more, or that whoever listens says so itself. All other trouble (no answer, a network that
is cut) may be a machine that is busy, frozen or far away, whose tasks still run: that is left to its silence, after
which its lease has ended too. The question stays open meanwhile.

Rejected: short calls every second (each would have to fail twice before it means anything, and a thousand
TaskManagers would be asked a thousand times a second).
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct

from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.errors import Unavailable
from flintlock.model.slots import Attendance
from flintlock.resourcemanager.core import TaskManagerEntered

#: Waits before the question is put again, once the open call has ended.
ASK_AGAIN_S: Final = (0.1, 0.2, 0.3, 0.4)
GRACE_S: Final = sum(ASK_AGAIN_S)
_PAUSE_S: Final = 1.0  # between two rounds that proved nothing


class Gone(Struct, frozen=True):
    """A life is over. `returns`: its process answers, and may begin another one."""

    reason: str
    returns: bool


async def attend(task_manager: TaskManagerGateway, life: TaskManagerEntered) -> Gone:
    """Return once that life is certainly over, and why. Cancelled when somebody else has found out.

    Raises FlintlockError for a TaskManager that cannot be asked such a question.
    """
    loop = asyncio.get_running_loop()
    again = 0
    while True:
        begun_s = loop.time()
        found = await _ask(task_manager, life)
        if loop.time() - begun_s > GRACE_S:
            again = 0  # it was there meanwhile, or is only silent
        if again < len(ASK_AGAIN_S):
            await asyncio.sleep(ASK_AGAIN_S[again])
            again += 1
        elif found is not None:
            return found
        else:
            await asyncio.sleep(_PAUSE_S)
            again = 0


async def _ask(task_manager: TaskManagerGateway, life: TaskManagerEntered) -> Gone | None:
    """Return what the answer proves, when one comes: for as long as it lives, none does."""
    try:
        await task_manager.attend(Attendance(instance=life.instance))
    except Unavailable as error:
        return Gone(f"nothing listens at {life.address}", returns=False) if error.unreachable else None
    return Gone("its life is over", returns=True)
