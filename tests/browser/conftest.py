"""One browser for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.browser.chromium import Chromium, NotInstallable, running_chromium


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """A running Chromium; where there can be none, the test is skipped."""
    try:
        with running_chromium() as browser:
            yield browser
    except NotInstallable as reason:
        pytest.skip(str(reason))
