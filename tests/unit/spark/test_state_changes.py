"""A state that does not fit the query any more ends the job: before, the query was restarted for ever."""

from __future__ import annotations

import pytest
from pyspark.errors.exceptions.connect import PythonException, StreamingQueryException

from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import failure_of

QUERY = (
    "[STREAM_FAILED] Query [id = f85ce274-3adc-4047-a053-4eaa7d05bb0c, runId = 7b819707-e52d-4fef-bd10-d8352f180547]"
    " terminated with exception: {} SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: counts\nCurrent State: ACTIVE"
)
#: As Spark 4.3 reports them over Connect.
VALUE = (
    "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.\n"
    "Please check number and type of fields.\n"
    "Existing value_schema=StructType(StructField(count,LongType,true)) and new"
    " value_schema=StructType(StructField(count,LongType,true),StructField(max,LongType,true)).\nIf you want to force"
    " running the query without schema validation, please set spark.sql.streaming.stateStore.stateSchemaCheck to false."
    "\nHowever, please note that running the query with incompatible schema could cause non-deterministic behavior."
    " SQLSTATE: XXKST"
)
OPERATORS = (
    "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match with the"
    " operator in state metadata. This likely to happen when user adds/removes/changes stateful operator of existing"
    " streaming query.\nStateful operators in the metadata: [(OperatorId: 0 -> OperatorName: stateStoreSave)]; Stateful"
    " operators in current batch: []. SQLSTATE: 42K03"
)
#: Spark names other steps as one cause of it, and corrupt files as another.
DAMAGED = (
    "[STATE_STORE_{}_ROW_FORMAT_VALIDATION_FAILURE] The streaming query failed to validate written state for"
    " stateStore=StateStoreId[ operatorId=0, partitionId=0, storeName=default ].\n"
    "The following reasons may cause this:\n"
    "1. An old Spark version wrote the checkpoint that is incompatible with the current one\n"
    "2. Corrupt checkpoint files\n"
    "3. The query changed in an incompatible way between restarts SQLSTATE: XX000"
)
MISSING = (
    "[STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] Cannot restart streaming query with stateful operators"
    " because the state directory is empty or missing.\nStateful operators in current batch: []. SQLSTATE: 42K03"
)


def raised(cause: str) -> StreamingQueryException:
    return StreamingQueryException(QUERY.format(cause), errorClass="STREAM_FAILED", sql_state="XXKST")


@pytest.mark.parametrize("cause", [VALUE, OPERATORS])
def test_a_query_whose_state_is_of_other_steps_fails_for_good_with_what_to_do(cause: str) -> None:
    failure = failure_of(raised(cause))

    assert failure.kind is FailureKind.ANALYSIS
    assert failure.error_class == cause.partition("]")[0][1:]
    assert failure.message.startswith(cause.partition("\nIf you")[0].removesuffix(" SQLSTATE: 42K03"))
    assert "or give the sink another uid" in failure.message
    assert "stateSchemaCheck" not in failure.message, "it is no advice: the results would be wrong"
    assert "=== Streaming Query ===" not in failure.message


@pytest.mark.parametrize(
    "cause",
    [
        "[STATE_STORE_INVALID_STAMP] Invalid stamp 3, current stamp: 4. SQLSTATE: XXKST",
        DAMAGED.format("KEY"),
        DAMAGED.format("VALUE"),
        MISSING,
    ],
)
def test_another_failed_batch_is_restarted_by_the_strategy(cause: str) -> None:
    """Also where state is damaged or missing, which storage that is not there yet looks like."""
    failure = failure_of(raised(cause))
    assert (failure.kind, failure.error_class) == (FailureKind.SPARK_TASK, "STREAM_FAILED")
    assert "another uid" not in failure.message


def test_what_user_code_says_of_a_state_is_user_code() -> None:
    text = f'Traceback (most recent call last):\n  File "/job/sinks.py", line 3, in upsert\nValueError: {VALUE}'
    assert failure_of(PythonException(QUERY.format(text))).kind is FailureKind.USER_CODE
