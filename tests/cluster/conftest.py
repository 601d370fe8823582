"""One standing cluster for tests that only use one, and one engine with runners for each file: both start slowly."""

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


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """An engine with a pool of runners. Tasks that tests kill may run on in it, so it does not serve too many."""
    loop = Loop()
    home = tmp_path_factory.mktemp("bench")
    with spark_engine(loop, home) as engine, bench(loop, engine, home) as made:
        yield made
    loop.close()
