"""Reads the blocks of code and the commands out of the pages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK: Final = re.compile(r"^( *)```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SEPARATORS: Final = frozenset("();<>|&")


class CodeBlock(NamedTuple):
    """A block of code of a page; `title` is the file that it shows, if it is one."""

    language: str
    title: str
    text: str
    line: int


def code_blocks(page: Path, *languages: str) -> list[CodeBlock]:
    """Return the blocks of a page in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    found = [
        CodeBlock(block[2], block[3] or "", re.sub(f"^{block[1]}", "", block[4], flags=re.MULTILINE), line)
        for block in _BLOCK.finditer(text)
        for line in [text.count("\n", 0, block.start()) + 2]
    ]
    return [block for block in found if block.language in languages]


def commands(script: str, program: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of a program in a shell script."""
    script = re.sub(r"<<'?(\w+)'?(.*\n)(?:.*\n)*?\1$", r"\2", script, flags=re.MULTILINE).replace("\\\n", " ")
    for line in script.splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars=True)
        reader.whitespace_split = True
        current: list[str] | None = None
        first = True
        for word in reader:
            if set(word) <= _SEPARATORS:
                if current is not None:
                    yield current
                current, first = None, True
            elif current is not None:
                current.append(word)
            elif first and word == program:
                current = []
            else:
                first = first and re.fullmatch(r"[A-Za-z_]+=.*", word) is not None
            if "$(" in word:
                yield from commands(word.partition("$(")[2].rpartition(")")[0], program)
        if current is not None:
            yield current
