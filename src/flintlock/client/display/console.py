"""Showing a job while it runs: a live table on a terminal, sparse lines off one.

Progress goes to stderr, and so does what a graph's functions print (Spark's warnings are among it), so that stdout
has what was requested: results, and a program's own output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO, cast

from flintlock.api.jobs import JobAttempts, ResultTable
from flintlock.client.authoring.package import is_program
from flintlock.client.display.progress import changes, elapsed_text, job_line, publishing_line, region_rows
from flintlock.client.display.text_width import padded, text_width

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from flintlock.model.jobgraph import JobGraph

_COLOURS: Final = {
    "FINISHED": "green", "RUNNING": "cyan", "FAILED": "red", "CANCELED": "yellow", "CANCELING": "yellow",
    "CANCELLING": "yellow", "FAILING": "red", "RESTARTING": "yellow", "WAITING": "yellow",
}  # fmt: skip
_BAR_WIDTH: Final = 16
_TITLE_WIDTH: Final = 40
_UNCUT_WIDTH: Final = 100_000
_DRAWN_ROWS: Final = 1_000
SILENCE_S: Final = 30.0
"""After how long without a change a display off a terminal prints where the job is."""


class Display(Protocol):
    """Shows one job from its submission to its end."""

    def update(self, job: JobAttempts, note: str = "") -> None:
        """Show where the job is now; `note` is the place in the queue of a job that waits for slots."""
        ...

    def output(self, text: str, *, error: bool = False) -> None:
        """Show what user code has written; `error`: to standard error."""
        ...

    def pause(self) -> None:
        """Stop drawing, so that a question can be asked. The next update resumes."""
        ...

    def close(self) -> None:
        """Show nothing more. Idempotent."""
        ...


class SilentDisplay:
    """Shows only what user code writes, and that only if it has a stream. Standard error is the process's own."""

    def __init__(self, output: TextIO | None = None) -> None:
        self._output: Final = output

    def update(self, job: JobAttempts, note: str = "") -> None:
        """Show nothing."""

    def output(self, text: str, *, error: bool = False) -> None:
        """Write it to the stream."""
        if self._output is not None:
            stream = sys.stderr if error else self._output
            stream.write(text)
            stream.flush()

    def pause(self) -> None:
        """Do nothing: it does not draw."""

    def close(self) -> None:
        """Do nothing."""


class _CompleteLines:
    """Buffers an unfinished line, so that progress and output do not interrupt each other's lines."""

    def __init__(self) -> None:
        self._rest = ""  # an unfinished line; empty once it was taken

    def add(self, text: str) -> str:
        """Add a piece; return the lines that are complete now."""
        complete, newline, self._rest = (self._rest + text).rpartition("\n")
        return complete + newline

    def rest(self) -> str:
        """Return what was never finished, as a line."""
        rest, self._rest = self._rest, ""
        return f"{rest}\n" if rest else ""


class PlainDisplay:
    """A line for each change of state, one for each new place in the queue, and one now and then if nothing changes."""

    def __init__(
        self, stream: TextIO, output: TextIO, clock_s: Callable[[], float] = time.monotonic, *, transient: bool = False
    ) -> None:
        """`transient`: changes of state are left out, so that nothing is printed of a job that ends soon."""
        self._transient: Final = transient
        self._stream: Final = stream
        self._output: Final = output
        self._lines: Final = _CompleteLines()  # of what is written where progress is
        self._last: JobAttempts | None = None  # what was shown last
        self._note = ""  # the last one that was printed
        self._clock_s: Final = clock_s
        self._started_s: Final = clock_s()
        self._printed_s = self._started_s  # when the last line was printed

    def update(self, job: JobAttempts, note: str = "") -> None:
        """Print what has changed; if nothing has for half a minute, where the job is and since when."""
        lines, now_s = [] if self._transient else changes(self._last, job), self._clock_s()
        if note and note != self._note:
            lines.append(f"{job.name}: {job.shown_state}, {note}")
        elif not lines and not job.status.globally_terminal and now_s - self._printed_s >= SILENCE_S:
            elapsed = elapsed_text(now_s - self._started_s)
            lines.append(", ".join(filter(None, (job_line(job), note, f"after {elapsed}"))))
        if lines:
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()
            self._printed_s = now_s
        self._last, self._note = job, note

    def output(self, text: str, *, error: bool = False) -> None:
        """Write it; by lines if progress goes to the same stream, as it does for standard error."""
        shared = error or self._output is self._stream
        stream = self._stream if shared else self._output
        stream.write(self._lines.add(text) if shared else text)
        stream.flush()

    def pause(self) -> None:
        """Do nothing: it does not draw."""

    def close(self) -> None:
        """Write a last line that has no line break."""
        self._stream.write(self._lines.rest())


class LiveDisplay:
    """A table that follows the job, drawn again at each update."""

    def __init__(self, console: Console, output: TextIO, *, transient: bool = False) -> None:
        """`transient`: the last table does not stay visible."""
        from rich.live import Live

        self._console: Final = console
        self._output: Final = output
        self._lines: Final = _CompleteLines()
        self._started: Final = time.monotonic()
        self._live: Final = Live(
            console=console, auto_refresh=False, transient=transient, redirect_stdout=False, redirect_stderr=False
        )

    def update(self, job: JobAttempts, note: str = "") -> None:
        """Draw the table."""
        if not self._live.is_started:
            self._live.start()
        self._live.update(job_table(job, time.monotonic() - self._started, note), refresh=True)

    def output(self, text: str, *, error: bool = False) -> None:
        """Write it above the table, or where stdout goes elsewhere, there."""
        if error or self._output.isatty():
            self._console.out(self._lines.add(text), end="", highlight=False)
        else:
            self._output.write(text)
            self._output.flush()

    def pause(self) -> None:
        """Stop drawing."""
        self._live.stop()

    def close(self) -> None:
        """Stop drawing; the last table stays visible."""
        self._console.out(self._lines.rest(), end="", highlight=False)
        self._live.stop()


def display_for(console: Console, output: TextIO) -> Display:
    """Return the display for the console: one of its own in a notebook, a live one on a terminal."""
    from flintlock.client.display.notebook import NotebookDisplay, in_notebook

    if in_notebook():
        return NotebookDisplay(output)
    return LiveDisplay(console, output) if console.is_terminal else PlainDisplay(cast("TextIO", console.file), output)


def error_console() -> Console:
    """Return a console on stderr."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=False)


def output_stream(graph: JobGraph) -> TextIO:
    """Return where what user code writes belongs: stdout for a program, whose output it is, else stderr."""
    return sys.stdout if is_program(graph) else sys.stderr


def output_console() -> Console:
    """Return a console on stdout that cuts nothing off where no terminal sets a width."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _UNCUT_WIDTH)


def job_table(job: JobAttempts, elapsed_s: float, note: str = "") -> RenderableType:
    """Return the job as the live display draws it."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2), expand=True)
    rows = region_rows(job)
    widest = max((text_width(row.title) for row in rows), default=0) + 2
    # Where the terminal is narrow the details are cut first: names and states matter most.
    grid.add_column(no_wrap=True, overflow="ellipsis", width=min(widest, _TITLE_WIDTH))
    grid.add_column(no_wrap=True, width=max((len(row.state) for row in rows), default=0))
    grid.add_column(width=_BAR_WIDTH)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        bar: RenderableType = (
            ProgressBar(total=1.0, completed=row.fraction, width=_BAR_WIDTH) if row.fraction is not None else Text("")
        )
        grid.add_row(Text(f"  {row.title}"), Text(row.state, _COLOURS.get(row.state, "dim")), bar, Text(row.detail))
    head = Text.assemble(
        (job.name, "bold"), " ", (job.shown_state, _COLOURS.get(job.shown_state, "")), f"  {elapsed_s:.1f} s"
    )
    if note:
        head.append(f"  {note}")
    parts: list[RenderableType] = [head, grid]
    if job.publishing is not None:
        parts.append(Text(f"  {publishing_line(job)}"))
    return Group(*parts)


def result_table(table: ResultTable, *, title: bool = True) -> RenderableType:
    """Return a result as a table, numbers to the right, with its name above and a note if it has more rows."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(table.name, "bold")] if title else []
    if len(table.rows) > _DRAWN_ROWS:  # drawing them would take seconds
        parts.append(Text(table_text(table)))
    else:
        shown = Table(box=box.SIMPLE_HEAD)
        for column in table.columns:
            shown.add_column(Text(column.name), justify="right" if _is_number(column.type) else "left")
        for row in table.rows:
            shown.add_row(*(Text(cell_text(value)) for value in row))
        parts.append(shown)
    if table.truncated:
        parts.append(Text(f"(the first {len(table.rows):,} rows; more exist)"))
    return Group(*parts)


def table_text(table: ResultTable) -> str:
    """Return a result as text in aligned columns, with nothing cut off."""
    cells = [[column.name for column in table.columns], *([cell_text(value) for value in row] for row in table.rows)]
    right = [_is_number(column.type) for column in table.columns]
    widths = [max(map(text_width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            padded(cell, width, right=number) for cell, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"


def cell_text(value: Any) -> str:
    """Write one value of a result as Spark's `show` does: NULL, true, nested values as JSON."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        import json

        return json.dumps(value, ensure_ascii=False)
    return str(value)


def summary_line(job: JobAttempts, elapsed_s: float) -> str:
    """Return in one line how the job ended."""
    return f"{job_line(job)} ({elapsed_s:.1f} s)"


def _is_number(kind: str) -> bool:
    return kind.partition("(")[0] in _NUMBERS


_NUMBERS: Final[Sequence[str]] = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
