"""Compares the pinned packages with the known vulnerabilities: `make check` runs it.

It fails for a vulnerability that was found, never because the service that knows them cannot be reached.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

PINNED: Final = Path(__file__).parents[1] / "requirements" / "runtime.txt"
LEFT_OUT: Final = "pip-audit was left out: the service with the known vulnerabilities cannot be reached"
_LIMIT_S: Final = 120


class Vulnerability(Struct):
    """A known one."""

    id: str
    fix_versions: list[str] = []


class Dependency(Struct):
    """A pinned package, and what is known of it."""

    name: str
    version: str = ""
    vulns: list[Vulnerability] = []
    skip_reason: str = ""


class Report(Struct):
    """What pip-audit answers."""

    dependencies: list[Dependency]


def verdict(report: bytes) -> tuple[int, list[str]]:
    """Return the exit code and the lines to print for a report; an empty one means that there was none."""
    try:
        found = msgspec.json.decode(report, type=Report).dependencies
    except msgspec.MsgspecError:
        found = []
    lines = [
        f"{item.name} {item.version}: {each.id}, fixed in {', '.join(each.fix_versions) or 'no version yet'}"
        for item in found
        for each in item.vulns
    ]
    if lines:
        return 1, lines
    return 0, [LEFT_OUT] if all(item.skip_reason for item in found) else []


def main() -> int:
    """Run pip-audit."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(PINNED), "--no-deps", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, "--format", "json", "--timeout", "5", "--progress-spinner", "off"],
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
        code, lines = verdict(done.stdout)
    except subprocess.TimeoutExpired:
        code, lines = 0, [LEFT_OUT]
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
