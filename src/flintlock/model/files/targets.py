"""Paths that sinks write to, compared with each other."""

from __future__ import annotations

from posixpath import normpath
from typing import Final

_LOCAL: Final = "file:"


def comparable(path: str) -> str:
    """Return a path in a form in which the usual spellings of one path are equal."""
    plain = path.removeprefix(_LOCAL)
    return normpath(f"/{plain.lstrip('/')}" if path.startswith((_LOCAL, "/")) else plain)
