"""Tests that `make test` leaves out, because each takes about a minute of both cores."""

from __future__ import annotations

import os
from typing import Final

import pytest

LONG: Final = pytest.mark.skipif(not os.environ.get("LONG_TESTS"), reason="takes about a minute; LONG_TESTS=1 runs it")
