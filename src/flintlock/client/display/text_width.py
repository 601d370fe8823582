"""How many columns of a terminal a text takes: East Asian wide characters take two, combining ones none."""

from __future__ import annotations

import unicodedata


def text_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return the text with blanks up to a width, behind it or (`right`) before it."""
    blanks = " " * max(0, width - text_width(text))
    return blanks + text if right else text + blanks


def _columns(char: str) -> int:
    if unicodedata.category(char) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
