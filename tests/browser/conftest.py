"""One browser and one cluster for all tests of a process, and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard.build import NotBuildable, build
from tests.browser.chromium import Chromium, NotInstallable, running_chromium
from tests.browser.dashboard_pages import HOSTILE, Cluster
from tests.cluster.processes import Processes


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A running Chromium; where there can be none, the test is skipped."""
    try:
        with running_chromium() as browser:
            yield browser
    except NotInstallable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def dashboard() -> Path:
    """Where the dashboard is built; where it cannot be, the test is skipped."""
    try:
        return build()
    except NotBuildable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def cluster(dashboard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One that needs no login."""
    processes = Processes(tmp_path_factory.mktemp("cluster"))
    try:
        processes.start_jobmanager(settings=("security.authentication=none",))
        processes.await_leader()
        found = Cluster(processes, {})
        for name in ("revenue", HOSTILE):
            found.jobs[name] = found.submit(name)
        yield found
    finally:
        processes.stop()


@pytest.fixture(scope="session")
def guarded(dashboard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A JobManager that wants a credential."""
    processes = Processes(tmp_path_factory.mktemp("guarded"))
    try:
        processes.start_jobmanager()
        processes.await_leader()
        yield processes
    finally:
        processes.stop()
