"""Missing files of other regions are distinguished from missing files of a user's source."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import AnalysisException, SparkException

from flintlock.model.ids import StepName
from flintlock.spark.region.errors.missing_inputs import missing_inputs

CLEAN, OTHER = StepName("clean"), StepName("other")
INPUTS = {CLEAN: "/work/job/clean/1", OTHER: "file:///work/job/other/12"}


def not_found(path: str) -> AnalysisException:
    return AnalysisException(f"[PATH_NOT_FOUND] Path does not exist: {path}.", errorClass="PATH_NOT_FOUND")


def unread(path: str) -> SparkException:
    return SparkException(
        f"[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file {path}. File does not exist.",
        errorClass="FAILED_READ_FILE.FILE_NOT_EXIST",
    )


def damaged(path: str) -> SparkException:
    return SparkException(
        f"[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Error while reading file {path}. Could not read footer.",
        errorClass="FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER",
    )


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (not_found("file:/work/job/clean/1"), (CLEAN,)),
        (unread("file:///work/job/clean/1/part-00000-1.snappy.parquet"), (CLEAN,)),
        (unread("file:///work/job/other/12/part-0.parquet"), (OTHER,)),
        (damaged("file:///work/job/clean/1/part-0.parquet"), (CLEAN,)),
        (SparkException("org.apache.hadoop.fs.ChecksumException: file:/work/job/clean/1/part-0 at 0"), (CLEAN,)),
        (damaged("file:///home/me/orders/part-0.parquet"), ()),
        (not_found("file:/work/job/clean/12"), ()),  # another attempt's
        (not_found("file:/work/job/other/1"), ()),
        (not_found("file:/home/me/orders"), ()),
        (SparkException("Job aborted: java.io.FileNotFoundException: /work/job/clean/1/part-0"), (CLEAN,)),
        (SparkException("Job aborted while it read /work/job/clean/1/part-0"), ()),
        (FileNotFoundError("/work/job/clean/1 does not exist"), ()),  # user code's own
    ],
)
def test_only_paths_of_inputs_count(error: Exception, missing: tuple[StepName, ...]) -> None:
    assert missing_inputs(error, None, INPUTS) == missing


def test_a_directory_without_files_is_the_input_that_was_read() -> None:
    empty = AnalysisException("[UNABLE_TO_INFER_SCHEMA] for Parquet", errorClass="UNABLE_TO_INFER_SCHEMA")
    assert missing_inputs(empty, CLEAN, INPUTS) == (CLEAN,)
    assert missing_inputs(empty, StepName("orders"), INPUTS) == ()


def test_paths_with_spaces_are_found_as_spark_spells_them() -> None:
    inputs = {CLEAN: "/my work/clean/1"}
    assert missing_inputs(unread("file:///my%20work/clean/1/part-0"), None, inputs) == (CLEAN,)
    assert missing_inputs(not_found("file:/my work/clean/1"), None, inputs) == (CLEAN,)
