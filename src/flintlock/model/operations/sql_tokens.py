"""Quoted texts and comments of SQL, as patterns (for re.DOTALL): nothing in them is a keyword or ends a statement.

One that is not closed reaches to the end of the SQL text.
"""

from __future__ import annotations

from typing import Final

QUOTED: Final = r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`"""
COMMENT: Final = r"--[^\n]*|/\*.*?\*/"
UNCLOSED: Final = r"""['"`].*\Z|/\*.*\Z"""
