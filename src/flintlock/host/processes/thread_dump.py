"""The stacks of this process's threads and tasks, as text of bounded size."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import Final

from flintlock.model.diagnostics import ThreadStack

#: At most this many threads, and this many tasks, are in a dump.
MAX_STACKS: Final = 512
#: At most this many frames of each, the innermost ones.
_DEEPEST: Final = 64
#: At most this many characters of each: a line of source may have any length.
_LONGEST: Final = 1 << 14


def thread_stacks() -> tuple[ThreadStack, ...]:
    """Return the stack of every Python thread, the main thread's first. May be called from any thread."""
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] Python has no other way
    return tuple(
        ThreadStack(
            name=threads.get(ident, f"thread {ident}"),
            text=_bounded(
                f'"{threads.get(ident, ident)}" id={ident}\n', traceback.format_stack(frames[ident], limit=-_DEEPEST)
            ),
        )
        for ident in sorted(frames, key=lambda ident: ident != main)[:MAX_STACKS]
    )


def task_stacks() -> tuple[ThreadStack, ...]:
    """Return the stack of every task of the running event loop, by name."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    return tuple(ThreadStack(name=f"task {task.get_name()}", text=_stack(task)) for task in tasks[:MAX_STACKS])


def _stack(task: asyncio.Task[object]) -> str:
    lines: list[str] = []
    for frame in task.get_stack(limit=_DEEPEST):
        lines += traceback.format_list(traceback.extract_stack(frame, limit=1))
    return _bounded(f'"{task.get_name()}" asyncio task\n', lines)


def _bounded(head: str, lines: list[str]) -> str:
    text = "".join(lines)
    return head + (text if len(text) <= _LONGEST else f"[{len(text) - _LONGEST} characters cut]\n{text[-_LONGEST:]}")
