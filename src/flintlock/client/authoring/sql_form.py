"""SQL as a job: one query whose rows are the job's result; and text with several statements, taken apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, finish
from flintlock.model.checking.jobspec import JobSpec, StepSpec
from flintlock.model.jobgraph import Scalar
from flintlock.model.operations import ResultSpec

RESULT: Final = "result"
"""The name of the step that has the rows of a query."""

DEFAULT_ROWS: Final = 1_000
"""The rows of a query that are returned unless more are requested."""

#: What a semicolon may be part of, or a comment; a text that is not closed reaches to the end.
_PATTERNS: Final = (
    r"'(?:[^'\\]|\\.|'')*(?:'|\Z)",
    r'"(?:[^"\\]|\\.|"")*(?:"|\Z)',
    r"`(?:[^`]|``)*(?:`|\Z)",
    r"--[^\n]*(?:\n|\Z)",
    r"/\*.*?(?:\*/|\Z)",
    ";",
)
_OPAQUE: Final = re.compile("|".join(_PATTERNS), re.DOTALL)


class SqlJob:
    """A query as a job with one result."""

    def __init__(self, query: str, *, params: Mapping[str, Scalar] | None = None, limit: int = DEFAULT_ROWS) -> None:
        self._query: Final = query
        self._params: Final = dict(params or {})
        self._limit: Final = limit

    @property
    def name(self) -> str:
        """What jobs are called that have no name of their own."""
        return "sql"

    @property
    def pickles(self) -> bool:
        """Nothing is pickled."""
        return False

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged and checked. Raises Invalid with every problem found."""
        steps = {
            "query": StepSpec(sql=self._query),
            RESULT: StepSpec(result=ResultSpec(limit=self._limit), inputs=("query",)),
        }
        return finish(JobSpec(name=self.name, params=self._params, steps=steps), (), overrides, lambda _: "")


def split_statements(text: str) -> tuple[list[str], str]:
    """Return the statements that a semicolon ends, and what is left behind the last one.

    Semicolons in quotes and comments end nothing; statements that consist of comments only are left out.
    """
    statements: list[str] = []
    begin = 0
    for found in _OPAQUE.finditer(text):
        if found[0] == ";":
            statements.append(text[begin : found.start()].strip())
            begin = found.end()
    return [statement for statement in statements if not is_blank(statement)], text[begin:].strip()


def is_blank(text: str) -> bool:
    """Return whether a text has nothing but comments and blanks."""
    without = _OPAQUE.sub(lambda found: " " if found[0].startswith(("--", "/*")) else found[0], text)
    return not without.strip()


def parameter(text: str) -> Scalar:
    """Return the value of a parameter of an ad-hoc query: a number, true, false or null where the text is one."""
    match text.lower():
        case "true" | "false":
            return text.lower() == "true"
        case "null":
            return None
        case _:
            pass
    if re.fullmatch(r"[+-]?(0|[1-9]\d*)", text):
        return int(text)
    if re.fullmatch(r"[+-]?\d+\.\d*([eE][+-]?\d+)?", text):
        return float(text)
    return text
