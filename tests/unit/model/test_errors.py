"""Errors that users see or raise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import cloudpickle
import pytest

import flintlock as fl
from flintlock.model.errors import NO_RETRY_NOTE


def _pickled(error: Exception) -> Exception:
    copied: Exception = pickle.loads(pickle.dumps(error))
    return copied


def _same(error: Exception) -> Exception:
    return error


@pytest.mark.parametrize("copied", [copy.copy, _pickled, _same])
def test_no_retry_has_its_note_once_however_it_was_copied(copied: Callable[[Exception], Exception]) -> None:
    error = copied(fl.NoRetry("no", 7))
    assert (type(error), error.args, error.__notes__) == (fl.NoRetry, ("no", 7), [NO_RETRY_NOTE])


def test_no_retry_travels_by_its_public_name() -> None:
    """A Python worker of Spark imports it from the package, and nothing else of Flintlock with it."""
    assert (fl.NoRetry.__module__, fl.NoRetry.__qualname__) == ("flintlock", "NoRetry")
    assert b"flintlock.model" not in cloudpickle.dumps(fl.NoRetry)
    assert pickle.loads(cloudpickle.dumps(fl.NoRetry)) is fl.NoRetry
