"""What every election needs for its terms: an offer of leadership, a scope that can be revoked, and waiting in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from flintlock.model.errors import Fenced, InvariantBroken
from flintlock.model.ids import FencingToken

T = TypeVar("T")


async def unless_cancelled(together: Awaitable[T]) -> T:
    """Wait for several requests (`asyncio.gather`). A cancellation wins over an error that comes with it.

    `gather` itself raises the error of a request that has just failed, though the others were cancelled: a task that
    tries again would never end, and neither would the term that has cancelled it.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await together
    except Exception:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError from None
        raise


class Offer:
    """Leadership that was gained for one term.

    A term that is entered gives it up when it is left; one that never is, when the election withdraws the offer.
    """

    def __init__(self, token: FencingToken, give_up: Callable[[], None]) -> None:
        self._token: Final = token
        self._give_up: Final = give_up
        self._taken = False  # the term was entered
        self._over = False  # leadership was given up

    def withdraw(self) -> None:
        """Give leadership up, unless the term was entered."""
        if not self._taken and not self._over:
            self._over = True
            self._give_up()

    def __enter__(self) -> FencingToken:
        if self._taken or self._over:
            raise Fenced(f"the term of epoch {self._token.epoch} is over")
        self._taken = True
        return self._token

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self._give_up()


class RevocableScope:
    """Cancels its body once, when it is revoked, and swallows that cancellation and no other.

    Works as `asyncio.timeout` does, except that the end is no error: the election goes on to the next term. Rejected:
    `anyio.CancelScope`, which cancels every further `await` of the body as well, and the body of a term has to await
    while it cleans up.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None  # set while the body runs
        self._cancelling = 0  # how often the task had been cancelled before the body began
        self._revoked = False  # the pending cancellation is ours

    def revoke(self) -> None:
        """Cancel the body. Harmless when it has ended, or was revoked before. Call it on the body's loop."""
        asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        # Later than `revoke`, so that a body that revokes itself and returns is not cancelled after the scope.
        if self._task is not None and not self._revoked:
            self._revoked = True
            self._task.cancel("leadership was lost")

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise InvariantBroken("a term is entered outside of any task")
        self._task, self._cancelling = task, task.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        task, self._task = self._task, None
        if task is None or not self._revoked:
            return False
        outside = task.uncancel() > self._cancelling
        return not outside and kind is not None and issubclass(kind, asyncio.CancelledError)
