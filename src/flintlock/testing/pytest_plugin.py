"""A fixture for users' own tests. In `conftest.py`: `pytest_plugins = ["flintlock.testing.pytest_plugin"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flintlock.testing.local import LocalCluster, local_cluster


@pytest.fixture(scope="session")
def flintlock_local() -> Iterator[LocalCluster]:
    """One embedded cluster with a warm engine for all tests of a session: `flintlock_local.run(job, inputs=…)`."""
    with local_cluster() as cluster:
        yield cluster
