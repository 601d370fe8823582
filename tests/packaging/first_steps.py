"""Follows the first pages word by word: their shell blocks become one script, their titled blocks files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.docs.code_blocks import ROOT, code_blocks

PAGES: Final = ("README.md", "docs/install.md", "docs/first-job.md", "docs/results.md", "docs/curl.md")
PRINTS: Final = "prints"  # the title of a block that shows what the shell block before it prints; … stands for any text
DOCUMENTED: Final = "127.0.0.1:8081"
_INSTALLS: Final = re.compile(r"^(?:pip install|make) ", re.MULTILINE)  # what is done already: a wheel is installed
_LIMIT_S: Final = 600


class Expected(NamedTuple):
    """What a shell block prints, by its page."""

    place: str
    printed: Path
    pattern: str


class FirstSteps:
    """The pages as a script that follows each in a directory of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self.script: str = "set -euo pipefail\n"
        self.expected: Final[list[Expected]] = []
        count = 0
        for page in PAGES:
            home = directory / Path(page).stem
            self.script += f"mkdir {home}\ncd {home}\n"
            for block in code_blocks(ROOT / page, "sh", "text", "python", "yaml", "json", "csv"):
                place, printed = f"{page}:{block.line}", directory / f"printed-{count}"
                if block.title == PRINTS:
                    pattern = re.escape(block.text.strip()).replace("…", ".*")
                    self.expected.append(Expected(place, printed, pattern))
                elif block.title:
                    self.script += f"cat > '{block.title}' <<'END OF FILE'\n{block.text}END OF FILE\n"
                elif block.language == "sh" and not _INSTALLS.search(block.text):
                    count += 1
                    text = block.text.replace(DOCUMENTED, f"127.0.0.1:{port}")
                    self.script += f"echo '{place}' >&2\n{{\n{text}}} > {directory}/printed-{count}\n"

    def unexpected(self) -> list[str]:
        """Return the blocks that printed something else."""
        texts = [(item, item.printed.read_text(encoding="utf-8").strip()) for item in self.expected]
        return [f"{item.place}: {text}" for item, text in texts if re.fullmatch(item.pattern, text) is None]


def follow(directory: Path, bin_directory: Path, port: int) -> None:
    """Follow the pages with an installation, as a user with an empty home and no configuration; stop the cluster."""
    environ = {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "HOME": str(directory),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(directory / "cache")),
        "LANG": "C.UTF-8",
        "FLINTLOCK_REST_PORT": str(port),  # the documented one may be taken on a machine that runs tests
        "FLINTLOCK_JOBMANAGER_RPC_PORT": "0",
    }
    steps = FirstSteps(directory, port)
    command = ["bash", "-c", steps.script]
    try:
        done = subprocess.run(
            command, cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    finally:
        stop = [str(bin_directory / "flintlock"), "cluster", "stop"]
        subprocess.run(stop, cwd=directory, env=environ, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr  # its last page and line is that of the block that failed
    assert steps.unexpected() == []
    assert len(steps.expected) > 3
