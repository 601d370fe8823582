"""Locations in the user's own files: `file:line`, taken from the frames of the call."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Final

MAX_PLACE: Final = 255
"""The characters of a place that is sent with a job: a document may be long, its names may not."""

_OWN_FOLDER: Final = str(Path(__file__).parent)


def caller() -> FrameType:
    """Return the first frame outside of the client: the user's own."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] the only way
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType) -> str:
    """Return the file and line of a frame."""
    return f"{display_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def place_of_function(function: object) -> str | None:
    """Return the file and line where a function is defined; None if it has no Python code."""
    code = getattr(function, "__code__", None)
    return None if code is None else f"{display_path(code.co_filename)}:{code.co_firstlineno}"


def name_and_place(function: object) -> str:
    """Return a function's name and where it is defined, as far as it has them."""
    name, place = getattr(function, "__qualname__", ""), place_of_function(function)
    return f"{name} at {place}" if name and place else name or place or ""


def file_of(frame: FrameType) -> Path | None:
    """Return the file of a frame's code; None in notebooks and shells, which have none."""
    path = Path(frame.f_code.co_filename)
    return path.resolve() if path.is_file() else None


def display_path(file: str | Path) -> str:
    """Return a path relative to the current directory if it is below that, else as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(file)
