"""What tests of several packages need."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest
import structlog


@pytest.fixture
def restored_process(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Undo what `flintlock.entrypoints.process.start` sets for its whole process, which is that of the tests."""
    configure = structlog.configure

    def configure_without_cache(**options: Any) -> None:
        """Let no logger of a module keep these settings: later tests capture what it logs."""
        options["cache_logger_on_first_use"] = False
        configure(**options)

    monkeypatch.setattr(structlog, "configure", configure_without_cache)
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    structlog.reset_defaults()
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()
