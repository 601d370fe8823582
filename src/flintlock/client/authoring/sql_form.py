"""SQL as a job: one query whose rows are the job's result; and text with several statements, taken apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import structs

from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, finish
from flintlock.client.authoring.source_locations import display_path
from flintlock.model.checking.jobspec import JobSpec, StepSpec
from flintlock.model.errors import Refused
from flintlock.model.jobgraph import Scalar
from flintlock.model.operations import ResultSpec
from flintlock.model.operations.sql_tokens import COMMENT, QUOTED, UNCLOSED

RESULT: Final = "result"
"""The name of the step that has the rows of a query."""

DEFAULT_ROWS: Final = 1_000
"""The rows of a query that are returned unless more are requested."""

#: A semicolon that ends a statement, or what a semicolon may be part of.
_OPAQUE: Final = re.compile(f"{QUOTED}|{COMMENT}|{UNCLOSED}|;", re.DOTALL)


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


class SqlFileJob:
    """A file of queries as a job: each one is a step, and its rows are a result."""

    def __init__(self, file: Path) -> None:
        self._file: Final = file
        self.pickles: Final = False

    @property
    def name(self) -> str:
        """The file's name."""
        return self._file.stem

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged and checked. Raises Refused if it has no query, Invalid with every problem found."""
        try:
            statements, rest = split_statements(self._file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"{display_path(self._file)} cannot be read: {error}") from error
        queries = [*statements, *([] if is_blank(rest) else [rest])]
        if not queries:
            raise Refused(f"{display_path(self._file)} has no query")
        steps: dict[str, StepSpec] = {}
        for number, query in enumerate(queries, start=1):
            suffix = f"_{number}" if len(queries) > 1 else ""
            steps[f"query{suffix}"] = StepSpec(sql=query)
            steps[f"{RESULT}{suffix}"] = StepSpec(result=ResultSpec(limit=DEFAULT_ROWS), inputs=(f"query{suffix}",))
        params = {name: parameter(text) for name, text in overrides.params.items()}
        spec = JobSpec(name=self.name, params=params, steps=steps)
        return finish(spec, (), structs.replace(overrides, params={}), lambda _: display_path(self._file))


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
