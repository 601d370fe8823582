"""Programs of others: examples of PySpark's own distribution, unchanged, with a plain `flintlock run`.

Thirty of them each time; with `ALL_EXAMPLES=1` all that end, which takes up to an hour (`-k mllib` is a part of them).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.cluster.commands import flintlock
from tests.cluster.processes import Processes
from tests.cluster.pyspark_examples import (
    ARGUMENTS,
    FAILING,
    NOT_RUN,
    QUICK,
    SCRIPTS,
    Example,
    examples,
    write_inputs,
)

ALL_EXAMPLES = bool(os.environ.get("ALL_EXAMPLES"))
LIMIT_S = 600.0  # of one script


def unexpected(standing: Processes, tmp_path: Path, chosen: Iterable[Example]) -> list[str]:
    """Run examples, as many at once as there are slots; return what ended otherwise than it should."""

    def run(example: Example) -> str | None:
        directory = tmp_path / example.script.replace("/", "-")
        directory.mkdir()
        write_inputs(directory)
        command = ("run", "-m", standing.url, "-q", "-p", "1", SCRIPTS / example.script, *example.arguments)
        began_s = time.monotonic()
        try:
            ran = flintlock(*command, cwd=directory, timeout_s=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"{example.script}: no end within {LIMIT_S:.0f} s"
        sys.stdout.write(f"{time.monotonic() - began_s:5.1f} s  {example.script}  exit code {ran.returncode}\n")
        if (ran.returncode == 0) is not bool(example.fails):
            return None
        return f"{example.script}: exit code {ran.returncode}\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}"

    with ThreadPoolExecutor(2) as pool:
        return [found for found in pool.map(run, chosen) if found is not None]


def test_the_table_has_the_scripts_of_the_installed_package() -> None:
    run = {example.script for example in examples()}
    assert run >= QUICK
    assert not run & NOT_RUN.keys()
    assert run >= ARGUMENTS.keys() | FAILING.keys()
    assert all((SCRIPTS / script).is_file() for script in NOT_RUN)
    assert not QUICK & FAILING.keys()


@pytest.mark.skipif(ALL_EXAMPLES, reason="all of them are run")
def test_pysparks_own_examples_run_unchanged(standing: Processes, tmp_path: Path) -> None:
    failures = unexpected(standing, tmp_path, (example for example in examples() if example.script in QUICK))
    assert not failures, "\n\n".join(failures)


@pytest.mark.skipif(not ALL_EXAMPLES, reason="takes up to an hour; ALL_EXAMPLES=1 runs it")
@pytest.mark.parametrize("folder", [".", "ml", "mllib", "sql", "sql/streaming", "streaming"])
def test_all_examples_end_as_they_do_with_spark_submit(standing: Processes, tmp_path: Path, folder: str) -> None:
    chosen = [example for example in examples() if str(Path(example.script).parent) == folder]
    assert chosen
    failures = unexpected(standing, tmp_path, chosen)
    assert not failures, f"{len(failures)} of {len(chosen)}\n" + "\n\n".join(failures)
