"""Decides without Spark whether a SQL text is a query, or a command that changes something.

A step's query is analysed before anything runs, and again whenever its plan is used. For a query that costs little; a
command would be executed each time. So a step must be a query; data is changed by a sink or a program.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)"""
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
_BEFORE_A_NAME: Final = frozenset({"SELECT", "AS", ",", "."})


def command_of(query: str) -> str | None:
    """Return the keyword that makes a statement a command (`INSERT`, `CREATE`, …), or None if it is a query."""
    depth = 0
    seen: list[str] = []  # the tokens so far; a parenthesised part counts as one
    for match in _TOKEN.finditer(query):
        kind, text = match.lastgroup, match[0].upper()
        if kind == "skip":
            continue
        depth += {"open": 1, "close": -1}.get(kind or "", 0)
        if depth:
            continue
        if not seen and text in _COMMANDS:
            return text
        if len(seen) > 1 and (seen[-1], text) in _CHANGES and seen[-2] not in _BEFORE_A_NAME:
            return seen[-1]
        seen.append(text)
    return None
