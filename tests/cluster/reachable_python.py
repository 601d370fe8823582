"""Runs processes where another user can read this Python: that of a developer is often in a closed home directory.

The processes get a mount namespace of their own. In it, each closed directory above something that Python needs is
covered by an empty one that all users can pass through, with what is needed in its place. Nothing changes outside.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark

import flintlock
from flintlock.spark.engine.java import find_java


@cache
def command_prefix() -> tuple[str, ...] | None:
    """Return what comes before a command that other users have to run, too; None if that is impossible here."""
    script = [*_mounts(), 'exec "$@"']
    prefix = ("unshare", "-m", "sh", "-ec", "\n".join(script), "sh")
    try:
        works = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return None
    return prefix if works else None


def _needed() -> tuple[Path, ...]:
    places = (
        sys.prefix,
        sys.base_prefix,
        Path(sys.executable).resolve().parent.parent,
        Path(flintlock.__file__).parent.parent,
        Path(pyspark.__file__).parent.parent,
        find_java(os.environ).home,
    )
    return tuple(dict.fromkeys(Path(place).resolve() for place in places))


def _mounts() -> list[str]:
    """Return the lines of a shell script: first keep what is needed, then cover, then put it back."""
    closed: dict[Path, list[Path]] = {}
    for place in _needed():
        above = next((each for each in reversed(place.parents) if not each.stat().st_mode & 0o001), None)
        if above is not None:
            closed.setdefault(above, []).append(place)
    kept = "/mnt"
    lines = [f"mount -t tmpfs none {kept}"] if closed else []
    places = [(above, place) for above, below in closed.items() for place in below]
    for number, (_, place) in enumerate(places):
        lines += [f"mkdir {kept}/{number}", f"mount --bind {shlex.quote(str(place))} {kept}/{number}"]
    lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(above))}" for above in closed]
    for number, (_, place) in enumerate(places):
        there = shlex.quote(str(place))
        lines += [f"mkdir -p {there}", f"mount --move {kept}/{number} {there}"]
    return lines
