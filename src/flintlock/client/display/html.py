"""Jobs and results as HTML, for notebooks. Everything that users wrote is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from flintlock.api.jobs import JobAttempts, ResultTable
from flintlock.client.display.console import cell_text
from flintlock.client.display.progress import RegionRow, publishing_line, region_rows
from flintlock.model.states import ExecutionState

MAX_ROWS: Final = 50
"""The rows of a result that a notebook shows."""

MAX_CELL: Final = 200
"""The characters of one value that a notebook shows."""


def result_html(table: ResultTable) -> str:
    """Return a result as a table, of a large one the first rows."""
    heads = [column.name for column in table.columns]
    rows = [[escape(_cut(cell_text(value))) for value in row] for row in table.rows[:MAX_ROWS]]
    shown = f"{len(rows)} of {len(table.rows):,} rows" if len(table.rows) > len(rows) else f"{len(rows)} rows"
    more = "; more exist" if table.truncated else ""
    return f"<b>{escape(table.name)}</b>{_table(heads, rows)}<small>{shown}{more}</small>"


def job_html(job: JobAttempts, note: str = "") -> str:
    """Return a job: its state, its regions, and what it waits for."""
    rows = [[escape(row.title), escape(row.state), _bar(row), escape(row.detail)] for row in region_rows(job)]
    title = f"<b>{escape(job.name)}</b> <code>{escape(job.jobid)}</code> {escape(job.shown_state)}"
    waits = f"<br><small>waits for slots: {escape(note)}</small>" if note else ""
    published = f"<br><small>{escape(publishing_line(job))}</small>" if job.publishing is not None else ""
    return title + waits + published + (_table(["steps", "state", "", ""], rows) if rows else "")


def _bar(row: RegionRow) -> str:
    """Return how much of a region's known work is done, while it runs."""
    if row.fraction is None or row.state != ExecutionState.RUNNING:
        return ""
    return f'<progress max="1" value="{row.fraction:.3f}"></progress>'


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…"
