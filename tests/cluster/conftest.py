"""One standing cluster, and one engine with runners, for all tests that only use one: an engine takes long to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.processes import Processes, running_processes
from tests.cluster.runner_harness import Bench, Loop, bench, spark_engine


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager and a TaskManager with two slots; tests must leave them as they found them."""
    with running_processes(tmp_path_factory.mktemp("standing")) as processes:
        yield processes


@pytest.fixture(scope="session")
def b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """An engine with a pool of runners."""
    loop = Loop()
    home = tmp_path_factory.mktemp("bench")
    with spark_engine(loop, home) as engine, bench(loop, engine, home) as made:
        yield made
    loop.close()
