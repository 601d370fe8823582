"""What can be told of a SQL text without Spark: whether it is a query, or a command that changes something.

A step's query is analysed before anything runs, and again whenever its plan is used. For a query that costs a little;
a command would be carried out each time. So a step is a query; what changes data is a sink or a program.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`)"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<open>[(\[])|(?P<close>[)\]])|(?P<other>.)""",
    re.DOTALL,
)
#: What a statement that changes something begins with. A word that is not here may be a query, or a slip of the pen:
#: Spark says which.
_COMMANDS: Final = frozenset({
    "ADD", "ALTER", "ANALYZE", "BEGIN", "CACHE", "CALL", "CLEAR", "COMMENT", "CREATE", "DECLARE", "DELETE", "DROP",
    "EXECUTE", "GRANT", "INSERT", "LOAD", "MERGE", "MSCK", "OPTIMIZE", "REFRESH", "REPAIR", "REPLACE", "RESET",
    "REVOKE", "SET", "TRUNCATE", "UNCACHE", "UPDATE", "USE", "VACUUM",
})  # fmt: skip
#: Pairs of words by which a statement that begins like a query (`WITH …`, `FROM …`) shows itself a command.
_CHANGES: Final = frozenset({("INSERT", "INTO"), ("INSERT", "OVERWRITE"), ("MERGE", "INTO"), ("DELETE", "FROM")})
_BEFORE_A_NAME: Final = frozenset({"SELECT", "AS", ",", "."})


def command_of(query: str) -> str | None:
    """Return the word that makes a statement a command (`INSERT`, `CREATE`, …), or None if it is a query."""
    depth = 0
    seen: list[str] = []  # the tokens so far; what stands in parentheses counts as one
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
