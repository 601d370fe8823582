"""Showing a job in a notebook: one display that is updated in place while the job runs.

IPython is no dependency: it is used where its kernel runs this process.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final, TextIO

from flintlock.api.jobs import JobAttempts
from flintlock.client.display.progress import job_line


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell: object = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay:
    """A table in the output of a cell, drawn again whenever the job has changed."""

    def __init__(self, output: TextIO) -> None:
        self._output: Final = output
        self._handle: Any = None  # IPython's, from the first update on
        self._shown = ""  # what the notebook shows now

    def update(self, job: JobAttempts, note: str = "") -> None:
        """Draw the table in place, if it differs."""
        from flintlock.client.display.html import job_html

        html = job_html(job, note)
        if html == self._shown:
            return
        self._shown = html
        table = _Table(html, job_line(job))
        if self._handle is None:
            self._handle = importlib.import_module("IPython.display").display(table, display_id=True)
        else:
            self._handle.update(table)

    def output(self, text: str, *, error: bool = False) -> None:
        """Write it into the output of the cell, where IPython shows both streams."""
        stream = sys.stderr if error else self._output
        stream.write(text)
        stream.flush()

    def pause(self) -> None:
        """Do nothing: nothing is drawn between updates."""

    def close(self) -> None:
        """Do nothing: the last table stays visible."""


class _Table:
    """What IPython shows: as HTML, or where that cannot be shown, as a line of text."""

    def __init__(self, html: str, text: str) -> None:
        self._html: Final = html
        self._text: Final = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html
