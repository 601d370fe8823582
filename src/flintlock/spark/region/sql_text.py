"""What can be seen in a SQL text without Spark: whether it is a query or a command, and the paths in it.

A step's query is analysed before anything runs, and again whenever its plan is used. For a query that costs little; a
command would be executed each time. So a step must be a query; data is changed by a sink or a program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from flintlock.model.operations.kind import STAGED_FORMATS, is_relative
from flintlock.model.operations.sql_tokens import COMMENT, QUOTED

_TOKEN: Final = re.compile(
    rf"(?P<skip>\s+|{COMMENT})|(?P<text>{QUOTED})"
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<open>[(\[])|(?P<close>[)\]])|(?P<other>.)""",
    re.DOTALL,
)
#: The first keywords of statements that change something. Text that begins otherwise is a query or invalid, which Spark
#: decides.
_COMMANDS: Final = frozenset({
    "ADD", "ALTER", "ANALYZE", "BEGIN", "CACHE", "CALL", "CLEAR", "COMMENT", "CREATE", "DECLARE", "DELETE", "DROP",
    "EXECUTE", "GRANT", "INSERT", "LOAD", "MERGE", "MSCK", "OPTIMIZE", "REFRESH", "REPAIR", "REPLACE", "RESET",
    "REVOKE", "SET", "TRUNCATE", "UNCACHE", "UPDATE", "USE", "VACUUM",
})  # fmt: skip
#: Pairs of keywords that make a statement that begins like a query (`WITH …`, `FROM …`) a command.
_CHANGES: Final = frozenset({("INSERT", "INTO"), ("INSERT", "OVERWRITE"), ("MERGE", "INTO"), ("DELETE", "FROM")})
#: The keywords of the statements that may follow the common table expressions of a WITH, or a FROM, and change rows.
_CHANGING: Final = frozenset({"INSERT", "UPDATE", "MERGE", "DELETE"})
#: The keywords of commands that a path follows.
_BEFORE_A_PATH: Final = frozenset({"LOCATION", "INPATH", "DIRECTORY"})
#: The formats that may stand for a catalog in the name of a table: parquet.`some/path`.
_FORMATS_AS_NAMES: Final = frozenset(name.upper() for name in STAGED_FORMATS | {"binaryfile", "delta"})
_READING: Final = frozenset({"SELECT", "FROM"})
_BEFORE_A_NAME: Final = frozenset({"SELECT", "AS", ",", "."})


#: The first keywords of statements that only read, and of those that only change their session.
_QUERIES: Final = frozenset({"DESC", "DESCRIBE", "EXPLAIN", "FROM", "SELECT", "SHOW", "TABLE", "VALUES", "WITH"})
_OF_SESSIONS: Final = frozenset({"RESET", "SET", "USE"})
_BEGINNING: Final = 8  # how many tokens tell what a statement that creates something creates


def command_of(query: str) -> str | None:
    """Return the keyword that makes a statement a command (`INSERT`, `CREATE`, …), or None if it is a query."""
    seen: list[str] = []  # the tokens so far; a parenthesised part counts as one
    for text in _outside_of_parentheses(query):
        if not seen and text in _COMMANDS:
            return text
        if len(seen) > 1 and (seen[-1], text) in _CHANGES and seen[-2] not in _BEFORE_A_NAME:
            return seen[-1]
        if text in _CHANGING and seen[-1:] == [")"] and seen[0] == "WITH" and not _READING.intersection(seen):
            return text
        seen.append(text)
    return None


def lasts_beyond_session(statement: str) -> bool:
    """Return whether running a statement may leave something behind once its session has ended.

    Queries do not: Spark executes them when their rows are requested. Neither do temporary views and functions, and
    settings. All that is not known counts as lasting: so does a WITH or FROM with a keyword of a change, wherever that
    stands outside of parentheses.
    """
    words = [match[0].upper() for match in islice(_tokens(statement), _BEGINNING)]
    if command_of(statement) is None:
        if words[:1] in (["WITH"], ["FROM"]) and _CHANGING.intersection(_outside_of_parentheses(statement)):
            return True
        return words[:1] != ["("] and not _QUERIES.intersection(words[:1])
    at = 3 if words[:3] == ["CREATE", "OR", "REPLACE"] else 1
    at += words[at : at + 1] == ["GLOBAL"]
    temporary = words[:1] == ["CREATE"] and words[at : at + 1] in (["TEMP"], ["TEMPORARY"])
    return not temporary and not _OF_SESSIONS.intersection(words[:1])


def with_absolute_paths(query: str, absolute: Callable[[str], str]) -> str:
    """Return the text with `absolute` applied to each relative path that it has as a table, location or option."""
    command = command_of(query) is not None
    seen = ["", "", ""]  # the last tokens, in upper case
    options_depth = 0  # of parentheses, from those of OPTIONS on
    parts: list[str] = []
    for match in _TOKEN.finditer(query):
        kind, text = match.lastgroup, match[0]
        if kind == "skip":
            parts.append(text)
            continue
        if kind == "open" and (options_depth or seen[-1] == "OPTIONS"):
            options_depth += 1
        elif kind == "close" and options_depth:
            options_depth -= 1
        if kind == "text" and (
            (text[0] == "`" and seen[-1] == "." and seen[-2] in _FORMATS_AS_NAMES and seen[-3] != ".")
            or (command and text[0] != "`" and (seen[-1] in _BEFORE_A_PATH or (options_depth and _is_path_key(seen))))
        ):
            text = _absolute_text(text, absolute)
        parts.append(text)
        seen = [*seen[1:], match[0].upper()]
    return "".join(parts)


def created_table(query: str) -> str | None:
    """Return the name of the table that a statement creates or replaces; None if it does not."""
    tokens = [match[0] for match in _tokens(query)]
    words = [token.upper() for token in tokens[:_BEGINNING]]
    at = 3 if words[:3] == ["CREATE", "OR", "REPLACE"] else 1
    if not words or words[0] not in ("CREATE", "REPLACE"):
        return None
    at += words[at : at + 1] == ["EXTERNAL"]
    if words[at : at + 1] != ["TABLE"]:
        return None
    at += 1
    at += 3 if words[at : at + 3] == ["IF", "NOT", "EXISTS"] else 0
    parts = tokens[at : at + 1]
    while tokens[at + 1 : at + 2] == ["."]:
        parts += tokens[at + 1 : at + 3]
        at += 2
    return "".join(parts)


def _tokens(query: str) -> Iterator[re.Match[str]]:
    return (match for match in _TOKEN.finditer(query) if match.lastgroup != "skip")


def _outside_of_parentheses(query: str) -> Iterator[str]:
    """Yield the tokens that no parentheses enclose, in upper case."""
    depth = 0
    for match in _tokens(query):
        depth += {"open": 1, "close": -1}.get(match.lastgroup or "", 0)
        if not depth:
            yield match[0].upper()


def _is_path_key(seen: list[str]) -> bool:
    """Return whether what was read last is the key `path` of an option."""
    key = seen[-2] if seen[-1] == "=" else seen[-1]
    return key.strip("'\"`") == "PATH"


def _absolute_text(quoted: str, absolute: Callable[[str], str]) -> str:
    """Return a quoted path as an absolute one; one that begins with a variable is left to Spark."""
    quote, path = quoted[0], quoted[1:-1]
    if not is_relative(path) or path.startswith("${"):
        return quoted
    directory = absolute(path).removesuffix(path)
    escaped = directory.replace("`", "``") if quote == "`" else re.sub(r"(['\"\\])", r"\\\1", directory)
    return f"{quote}{escaped}{path}{quote}"
