"""An attached client: somebody for whom the job runs, and without whom it need not go on.

The client says every so often until when it is there. When that time passes without another word, `gone` is called.
Nothing of it is stored: a new leader gives the client the whole timeout anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final


class AttachedClient:
    """One timer, set anew by each sign of life."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone: Final = gone
        self._timer: asyncio.TimerHandle | None = None  # while it is expected

    @property
    def expected(self) -> bool:
        """Whether the job depends on the client at the moment."""
        return self._timer is not None

    def expect(self, within_s: float) -> None:
        """Count on the next sign of life within this time."""
        self.forget()
        self._timer = asyncio.get_running_loop().call_later(max(within_s, 0.0), self._gone)

    def forget(self) -> None:
        """Expect nothing any more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
