"""Cause ids: which request or event set something off, in every process that it reaches.

A cause id begins where something begins: a REST request brings its own (`X-Request-Id`) or is given one; a timeout, a
lost TaskManager and a recovery make theirs with `internal_cause`, from data that is at hand, so that simulations stay
repeatable. From there it is the context's: tasks inherit it as asyncio copies contexts, RPC carries it beside the
message, and `add_cause` writes it as `cause` into every log line. So one `grep` finds all that one request caused.

What works for several causes in turn (an outbox, a declaration that a newer one replaces) queues the cause with each
item and restores it by `caused_by`. Cores know nothing of causes: they decide the same with and without one.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, NewType

CauseId = NewType("CauseId", str)
"""1 to 64 letters, digits and `._:-`, the first a letter or digit: safe in a header, a log line and a shell."""

MAX_CAUSE_LENGTH: Final = 64
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._:-]+", re.ASCII)
_cause: Final[ContextVar[CauseId | None]] = ContextVar("flintlock_cause", default=None)


def well_formed(text: str | bytes | None) -> CauseId | None:
    """Return the text as a cause id; None if it is none, so that nothing unbounded or unprintable reaches a log."""
    return CauseId(text) if isinstance(text, str) and _WELL_FORMED.fullmatch(text) else None


def internal_cause(trigger: str, *details: object) -> CauseId:
    """Return the cause id of something that no request set off, such as `recovery-7`."""
    text = "-".join((trigger, *(_UNSAFE.sub("_", str(detail)) for detail in details)))
    return CauseId(text[:MAX_CAUSE_LENGTH])


def current_cause() -> CauseId | None:
    """Return the cause of what runs now; None if it has none."""
    return _cause.get()


def caused_by(cause: CauseId | None) -> AbstractContextManager[None]:
    """Run what is inside, and the tasks that it starts, under this cause."""
    return _Caused(cause)


class _Caused:
    """A class, and no generator: every request and every RPC has one, and this takes a third of the time."""

    __slots__ = ("_before", "_cause")

    def __init__(self, cause: CauseId | None) -> None:
        self._cause: Final = cause

    def __enter__(self) -> None:
        self._before = _cause.set(self._cause)

    def __exit__(self, *_: object) -> None:
        _cause.reset(self._before)


def add_cause(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the current cause to a log line: a structlog processor."""
    cause = _cause.get()
    if cause is not None:
        event.setdefault("cause", cause)
    return event
