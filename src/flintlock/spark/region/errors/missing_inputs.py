"""Detects errors that mean that the materialised rows of another region are missing or damaged.

The files of a blocking exchange can be deleted, or be on a disk that is lost. Spark reports that when it resolves the
read (the directory is missing or empty) or when a task opens a file that was listed before. Only paths below an
input's own directory count: a missing file of a user's source is the user's mistake.

This only reads errors, of which one is enough. That no row is missing without an error is checked by the TaskManager,
which compares the files with their manifest (`runner.task_files`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from flintlock.model.ids import StepName
from flintlock.spark.region.errors.spark_errors import spark_error_text

#: Spark's error classes for files that are not there, or are not Parquet.
_GONE: Final = (
    "PATH_NOT_FOUND",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER",
    "_LEGACY_ERROR_TEMP_2055",
)
#: Spark's error class for a directory without any file that has a schema.
_EMPTY: Final = "UNABLE_TO_INFER_SCHEMA"
_MESSAGES: Final = (
    "java.io.FileNotFoundException",
    "does not exist",
    "No such file or directory",
    "org.apache.hadoop.fs.ChecksumException",  # of local files, whose checksums Hadoop stores beside them
    "is not a Parquet file",
)
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(?://[^/]*)?")


def missing_inputs(error: BaseException, step: StepName | None, inputs: Mapping[StepName, str]) -> tuple[StepName, ...]:
    """Return the inputs whose files are missing according to this error; `step` was being built or executed."""
    error_class, text = spark_error_text(error)
    if not inputs or not text:
        return ()
    if error_class.startswith((*_GONE, _EMPTY)) and step is not None and step in inputs:
        return (step,)
    if not error_class.startswith(_GONE) and not any(message in text for message in _MESSAGES):
        return ()
    return tuple(name for name, path in inputs.items() if _names(text, path))


def _names(text: str, path: str) -> bool:
    """Return whether a text names a directory or something below it, however the scheme is spelled."""
    plain = _SCHEME.sub("", path).rstrip("/")
    return any(re.search(re.escape(spelled) + r"(?![\w-]|\.\w)", text) for spelled in {plain, quote(plain)})
