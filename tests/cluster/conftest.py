"""One standing cluster for tests that only use one, and one engine with runners for each file: both start slowly."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.cluster.processes import Processes, running_processes
from tests.cluster.runner_harness import Loop, RunnerHarness, running_harness, spark_engine

from flintlock.config.configuration import Configuration
from flintlock.config.files import cache_directory
from flintlock.entrypoints.analysis import record_archive
from flintlock.model.errors import Unavailable
from flintlock.spark.engine.class_archive import archive_file
from flintlock.spark.engine.java import find_java


@pytest.fixture(scope="session", autouse=True)
def class_archive() -> None:
    """Have engines start from a class archive, as after `flintlock cluster prepare`; it is stored with the environment.

    Two processes may want it at once: one makes it, the other waits.
    """
    os.environ["XDG_CACHE_HOME"] = f"{sys.prefix}/test-cache"
    archives = cache_directory()
    archives.mkdir(parents=True, exist_ok=True)
    with (archives / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive_file(archives, find_java(os.environ)).is_file():
            with suppress(Unavailable):  # a Java that cannot write archives: engines start more slowly, that is all
                asyncio.run(record_archive(Configuration({})))


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager and a TaskManager with two slots; tests must not change their state."""
    packages = f"spark.jars.ivySettings={Path(__file__).with_name('ivysettings.xml')}"
    with running_processes(tmp_path_factory.mktemp("standing"), settings=(packages,)) as processes:
        yield processes


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunnerHarness]:
    """An engine with a pool of runners. Tasks that tests kill may run on in it, so it does not serve too many."""
    loop = Loop()
    home = tmp_path_factory.mktemp("runners")
    with spark_engine(loop, home) as engine, running_harness(loop, engine, home) as made:
        yield made
    loop.close()
