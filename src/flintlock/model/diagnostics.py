"""What a process reports about itself when it is asked: the stacks of its threads."""

from __future__ import annotations

from msgspec import Struct


class ThreadStack(Struct, frozen=True, kw_only=True):
    """What one thread, or one task of an event loop, does now."""

    name: str
    text: str  # a line with its name and id, then its frames, the innermost last
