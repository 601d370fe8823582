"""Noticing the death of a TaskManager at once: for each life a call is open that it never answers while it lives.

Only two answers are the end of a life: that nothing listens there any more, or that whoever listens says so itself. All
other trouble may be a machine whose tasks still run: that is left to its silence, after which its lease has ended too.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from flintlock.gateways.taskmanager import TaskManagerGateway
from flintlock.model.errors import Unavailable
from flintlock.model.slots import Attendance
from flintlock.resourcemanager.core import TaskManagerEntered
from flintlock.rpc.attendance import attended

#: Waits before the question is put again, once the open call has ended.
ASK_AGAIN_S: Final = (0.1, 0.2, 0.3, 0.4)
GRACE_S: Final = sum(ASK_AGAIN_S)


class Gone(Struct, frozen=True):
    """A life is over. `returns`: its process answers, and may begin another one."""

    reason: str
    returns: bool


async def attend(task_manager: TaskManagerGateway, life: TaskManagerEntered) -> Gone:
    """Return once that life is certainly over, and why. Cancelled when somebody else has found out.

    Raises FlintlockError for a TaskManager that cannot be asked such a question.
    """

    async def ask() -> Gone | None:
        try:
            await task_manager.attend(Attendance(instance=life.instance))
        except Unavailable as error:
            return Gone(f"nothing listens at {life.address}", returns=False) if error.unreachable else None
        return Gone("its life is over", returns=True)

    return await attended(ask, ASK_AGAIN_S)
