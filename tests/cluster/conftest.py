"""One standing cluster for all tests that only use one: an engine takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.processes import Processes, running_processes


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager and a TaskManager with two slots; tests must leave them as they found them."""
    with running_processes(tmp_path_factory.mktemp("standing")) as processes:
        yield processes
