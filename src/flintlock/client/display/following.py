"""Follow a job to its end: poll its progress and show what it writes.

The pause between two polls is a long poll for the job's end, so the end is noticed without delay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event
from typing import Final

from msgspec import structs

from flintlock.api.jobs import JobAttempts, LogPart
from flintlock.client.connection.handle import JobHandle
from flintlock.client.display.console import Display
from flintlock.model.errors import NotFound, Unavailable

QUEUE_INTERVAL_S: Final = 2.0
"""How often a display requests a waiting job's place in the queue."""

#: How much of the end of an attempt's output is searched for its last lines, in bytes.
_TAILS: Final = (16 << 10, 256 << 10, 1 << 20)

LAST_OUTPUT_S: Final = 2.0
"""How long the output of a job that has ended may take to be complete: its processes end after the job."""

_INCOMPLETE: Final = "[flintlock: not all of the output could be read; what there is: flintlock logs {job}]\n"


class OutputReader:
    """Reads what the attempts of a job have written since the last call."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle: Final = handle
        self._offsets: Final[dict[tuple[int, int], int]] = {}  # bytes read of each attempt
        self._complete: Final[set[tuple[int, int]]] = set()

    def new(self, job: JobAttempts) -> Iterator[LogPart]:
        """Yield what is new, attempt by attempt."""
        for key in self._unread(job):
            yield from self._read(key)

    def tail(self, job: JobAttempts, lines: int) -> list[LogPart]:
        """Return the last lines that the attempts have written, at most so many together; `new` continues behind them.

        Of one attempt no more than the last megabyte is searched.
        """
        found: list[LogPart] = []
        for key in reversed(self._unread(job)):
            part = self._end_of(key, lines) if lines > 0 else None
            if part is None:
                self._complete.update({key} if lines <= 0 else ())
                continue
            lines -= part.text.count("\n") + (not part.text.endswith("\n"))
            found.append(part)
        return found[::-1]

    def is_complete(self, job: JobAttempts) -> bool:
        """Return whether all that the attempts of a job have written is read."""
        return not self._unread(job)

    def _end_of(self, key: tuple[int, int], lines: int) -> LogPart | None:
        """Return the last lines of an attempt's output; None if there are none."""
        for size in _TAILS:
            try:
                parts = self._handle.logs(*key, offset=-size, patience_s=0.0)
            except (NotFound, Unavailable):
                return None
            part = next((item for item in parts if (item.region, item.attempt) == key), None)
            if part is None:
                return None
            all_lines = part.text.splitlines(keepends=True)
            complete = all_lines if part.offset == 0 else all_lines[1:]  # the first one has lost its beginning
            if part.offset == 0 or len(complete) >= lines or size == _TAILS[-1]:
                self._offsets[key] = part.next_offset
                if part.complete and part.next_offset >= part.size:
                    self._complete.add(key)
                text = "".join(complete[-lines:])
                return structs.replace(part, text=text) if text else None
        return None

    def _unread(self, job: JobAttempts) -> list[tuple[int, int]]:
        keys = (
            (region.id, attempt.attempt)
            for region in job.regions
            for attempt in region.attempts
            if attempt.task_manager is not None and attempt.state.may_have_output  # the others ran no code
        )
        return [key for key in keys if key not in self._complete]

    def _read(self, key: tuple[int, int]) -> Iterator[LogPart]:
        while key not in self._complete:
            offset = self._offsets.get(key, 0)
            try:
                parts = self._handle.logs(*key, offset=offset, patience_s=0.0)
            except (NotFound, Unavailable):  # its TaskManager was lost, or nothing is written yet
                return
            part = next((item for item in parts if (item.region, item.attempt) == key), None)
            if part is None:
                return
            self._offsets[key] = following = part.next_offset
            if part.complete and following >= part.size:
                self._complete.add(key)
            if part.text:
                yield part
            if following >= part.size or following == offset:
                return


class _QueueNote:
    """A waiting job's place in the queue, requested every few seconds, and only if the job has waited that long."""

    def __init__(self, handle: JobHandle) -> None:
        self._handle: Final = handle
        self._due_s: float | None = None  # when it is requested; None: the job does not wait
        self._note = ""

    def note(self, job: JobAttempts) -> str:
        """Return what is known of it now."""
        now_s = time.monotonic()
        if not job.waits_for:
            self._due_s, self._note = None, ""
        elif self._due_s is None:
            self._due_s = now_s + QUEUE_INTERVAL_S
        elif now_s >= self._due_s:
            self._due_s = now_s + QUEUE_INTERVAL_S
            with suppress(Unavailable):
                self._note = self._handle.waiting_note()
        return self._note


def follow(
    handle: JobHandle,
    display: Display,
    reader: OutputReader,
    *,
    check: Callable[[], None] | None = None,
    tick_s: float = 0.25,
) -> JobAttempts:
    """Show the job until it has ended, and return its last state. `check` is called at each poll, and may raise.

    If the end of its output cannot be read in time, a line says so, and how to see it.
    """
    last_output_s: float | None = None  # until when the end of its output is awaited
    begun_line = False  # whether what was shown last has no line break yet
    queue = _QueueNote(handle)
    while True:
        job = handle.attempts()
        for part in reader.new(job):
            for text, error in part.streams():
                display.output(text, error=error)
                begun_line = not text.endswith("\n")
        display.update(job, queue.note(job))
        if job.status.globally_terminal:
            if last_output_s is None:
                last_output_s = time.monotonic() + LAST_OUTPUT_S
            if reader.is_complete(job):
                return job
            if time.monotonic() > last_output_s:
                line_break = "\n" if begun_line else ""
                display.output(line_break + _INCOMPLETE.format(job=handle.id), error=True)
                return job
            Event().wait(tick_s / 5)
            continue
        if check is not None:
            check()
        handle.ended_within(tick_s)
