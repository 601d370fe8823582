"""One browser for all tests of a process, and the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard.build import NotBuildable, build
from tests.browser.chromium import Chromium, NotInstallable, running_chromium


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
