"""Tells that the rows of another region are gone: its files, not this region, are at fault.

A blocking exchange is files that somebody may have removed, or that were on a disk that is lost. Spark says so when it
resolves the reading (the directory is gone, or holds nothing) or when a task opens a file that was listed before. Only
paths below an input's own directory count: a user's source that is missing is the user's mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from flintlock.model.ids import StepName
from flintlock.spark.region.spark_errors import spark_words

#: Spark's error classes for files that are not there.
_GONE: Final = ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST", "_LEGACY_ERROR_TEMP_2055")
#: Said of a directory without any file that has a schema.
_EMPTY: Final = "UNABLE_TO_INFER_SCHEMA"
_WORDS: Final = ("java.io.FileNotFoundException", "does not exist", "No such file or directory")
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")


def lost_inputs(error: BaseException, step: StepName | None, inputs: Mapping[StepName, str]) -> tuple[StepName, ...]:
    """Return the inputs whose files this error says are gone; `step` is what was being built or run."""
    error_class, text = spark_words(error)
    if not inputs or not text:
        return ()
    if error_class.startswith((*_GONE, _EMPTY)) and step is not None and step in inputs:
        return (step,)
    if not error_class.startswith(_GONE) and not any(words in text for words in _WORDS):
        return ()
    return tuple(name for name, path in inputs.items() if _names(text, path))


def _names(text: str, path: str) -> bool:
    """Tell whether a text names a directory or something below it, however the scheme is spelled."""
    plain = _SCHEME.sub("", path).rstrip("/")
    return any(re.search(re.escape(spelled) + r"(?![\w-]|\.\w)", text) for spelled in {plain, quote(plain)})
