"""Exceptions become failures: the user's frames, Spark's error details, the step that failed."""

from __future__ import annotations

import errno
import sys
import traceback
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from pyspark.errors.exceptions.base import PySparkValueError
from pyspark.errors.exceptions.connect import (
    AnalysisException,
    ArithmeticException,
    DataFrameQueryContext,
    ParseException,
    PythonException,
    SparkConnectGrpcException,
    SparkException,
    SQLQueryContext,
)
from pyspark.sql.connect import proto as pb2

import flintlock as fl
from flintlock.model.errors import FlintlockError, JobFailed, NotFound, Unavailable
from flintlock.model.ids import StepName
from flintlock.model.tasks import FailureKind, Frame
from flintlock.spark.region.errors.failures import (
    Interrupted,
    StepSources,
    TaskError,
    code_at,
    failure_of,
    is_user_source,
    kind_of,
    python_traceback,
    sources_of,
)

WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/jobs/revenue.py", line 17, in bad
    return helper(x)
           ^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 100, in main
    process()
  File "/jobs/lib.py", line 15, in helper
    return 1//(x-x)
           ~^^~~~~~
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 38000"""


def sql_context(summary: str, fragment: str, start: int) -> SQLQueryContext:
    proto = pb2.FetchErrorDetailsResponse.QueryContext
    return SQLQueryContext(
        proto(
            context_type=proto.SQL,
            summary=summary,
            fragment=fragment,
            start_index=start,
            stop_index=start + len(fragment) - 1,
        )
    )


def call_site(site: str) -> DataFrameQueryContext:
    proto = pb2.FetchErrorDetailsResponse.QueryContext
    summary = f'== DataFrame ==\n"col" was called from\n{site}\n'
    return DataFrameQueryContext(proto(context_type=proto.DATAFRAME, summary=summary, fragment="col", call_site=site))


def analysis_error(message: str, *contexts: Any, **more: Any) -> AnalysisException:
    return AnalysisException(
        message,
        errorClass="UNRESOLVED_COLUMN.WITH_SUGGESTION",
        messageParameters={},
        sql_state="42703",
        server_stacktrace="org.apache.spark.sql.AnalysisException\n\tat a.b",
        contexts=list(contexts),
        **more,
    )


def test_a_workers_traceback_is_parsed_from_the_message() -> None:
    parsed = python_traceback(WORKER)
    assert parsed is not None
    assert (parsed.exception, parsed.message) == ("ZeroDivisionError", "integer division or modulo by zero")
    assert parsed.frames == (
        Frame("/jobs/revenue.py", 17, "bad", "return helper(x)"),
        Frame("/jobs/lib.py", 15, "helper", "return 1//(x-x)"),
    )


def test_of_chained_tracebacks_the_last_counts() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a.py", line 1, in f\n    x\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/b.py", line 2, in g\n    y\nmy.errors.Bad: two\nlines\n'
    )
    parsed = python_traceback(text)
    assert parsed is not None
    assert (parsed.exception, parsed.message) == ("my.errors.Bad", "two\nlines")
    assert [frame.file for frame in parsed.frames] == ["/b.py"]


@pytest.mark.parametrize("times", ["1 more time", "983 more times"])
def test_repeated_lines_of_a_traceback_are_no_part_of_the_message(times: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/job/count.py", line 3, in <module>\n'
        "    down(1000)\n"
        '  File "/job/count.py", line 2, in down\n'
        "    return down(n - 1)\n"
        "           ^^^^^^^^^^^\n"
        f"  [Previous line repeated {times}]\n"
        '  File "/job/count.py", line 1, in down\n'
        "    raise ValueError(n)\n"
        "ValueError: the message\n[Previous line repeated 2 more times]\n"
    )

    parsed = python_traceback(text)

    assert parsed is not None
    assert parsed.exception == "ValueError"
    assert parsed.message == "the message\n[Previous line repeated 2 more times]"  # the user's own words
    assert [(frame.line, frame.source) for frame in parsed.frames] == [
        (3, "down(1000)"),
        (2, "return down(n - 1)"),
        (1, "raise ValueError(n)"),
    ]


def test_a_text_without_traceback_has_none() -> None:
    assert python_traceback("Job aborted") is None


def test_an_error_of_a_python_worker_is_user_code() -> None:
    failure = failure_of(PythonException(message=WORKER), StepName("out"))
    assert failure.kind is FailureKind.USER_CODE
    assert failure.exception == "ZeroDivisionError"
    assert failure.message == "integer division or modulo by zero"
    assert [frame.file for frame in failure.frames] == ["/jobs/revenue.py", "/jobs/lib.py"]
    assert failure.step == "out"


def test_an_analysis_error_keeps_its_message_without_plan_and_stack() -> None:
    message = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. "
        "SQLSTATE: 42703; line 1 pos 7;\n'Project ['nope]\n+- SubqueryAlias a\n"
    )
    context = sql_context("== SQL (line 1, position 8) ==\nselect nope from a\n       ^^^^\n", "nope", 7)
    failure = failure_of(analysis_error(message, context, display_server_stacktrace=True))
    assert failure.kind is FailureKind.ANALYSIS
    assert failure.message == (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703"
    )
    assert failure.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert failure.query_context == "== SQL (line 1, position 8) ==\nselect nope from a\n       ^^^^"
    assert failure.jvm_stack_trace == "org.apache.spark.sql.AnalysisException\n\tat a.b"


def test_a_context_inside_the_message_is_reported_once() -> None:
    summary = "== SQL (line 1, position 8) ==\nselect 1/0\n       ^^^\n"
    error = ArithmeticException(
        f"[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n{summary}",
        errorClass="DIVIDE_BY_ZERO",
        messageParameters={},
        sql_state="22012",
        contexts=[sql_context(summary, "1/0", 7)],
    )
    failure = failure_of(error)
    assert failure.kind is FailureKind.USER_CODE
    assert failure.message == "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"
    assert failure.query_context == summary.strip("\n")


def test_a_syntax_error_shows_the_query() -> None:
    message = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)\n"
        "\n== SQL ==\nselec 1\n^^^\n"
    )
    failure = failure_of(ParseException(message, sql_state="42601"))
    assert failure.kind is FailureKind.ANALYSIS
    assert failure.message == "[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601"
    assert failure.query_context == "selec 1\n^^^"


def test_a_stage_failure_includes_the_jvm_stack() -> None:
    error = SparkException("Job aborted due to stage failure: Python worker exited unexpectedly\n\tat a.b\n\tat c.d")
    failure = failure_of(error)
    assert failure.kind is FailureKind.SPARK_TASK
    assert failure.message == "Job aborted due to stage failure: Python worker exited unexpectedly"
    assert failure.jvm_stack_trace == "\tat a.b\n\tat c.d"


def test_memory_and_lost_connections_have_kinds_of_their_own() -> None:
    class Code:
        name = "UNAVAILABLE"

    lost = SparkConnectGrpcException("failed to connect", grpc_status_code=Code())  # type: ignore[arg-type]
    closed = SparkConnectGrpcException("no", errorClass="INVALID_HANDLE.SESSION_CLOSED", messageParameters={})
    assert kind_of(lost) is FailureKind.ENGINE_LOST
    assert kind_of(closed) is FailureKind.ENGINE_LOST
    assert kind_of(SparkConnectGrpcException("Java heap space")) is FailureKind.OUT_OF_MEMORY
    assert kind_of(MemoryError()) is FailureKind.OUT_OF_MEMORY


def test_what_pyspark_refuses_by_itself_is_user_code() -> None:
    assert kind_of(PySparkValueError("no")) is FailureKind.USER_CODE


def test_a_task_error_has_no_exception_type() -> None:
    failure = failure_of(TaskError(FailureKind.CONFIGURATION, "set engine: dedicated", StepName("x")), StepName("y"))
    assert (failure.kind, failure.exception, failure.step) == (FailureKind.CONFIGURATION, "", "x")


def test_an_error_without_a_line_of_user_code_is_internal() -> None:
    assert kind_of(RuntimeError("x")) is FailureKind.INTERNAL
    assert kind_of(Interrupted("x")) is FailureKind.USER_CODE


def test_user_frames_have_file_line_and_text() -> None:
    def broken() -> None:
        raise LookupError("gone")  # this very line

    with pytest.raises(LookupError) as caught:
        broken()
    failure = failure_of(caught.value, StepName("priced"))
    assert failure.kind is FailureKind.USER_CODE
    assert (failure.exception, failure.message) == ("LookupError", "gone")
    last = failure.frames[-1]
    assert last.file == __file__
    assert (last.function, last.source) == ("broken", 'raise LookupError("gone")  # this very line')
    assert "LookupError: gone" in failure.stack_trace


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/job.py", True),
        ("/venv/lib/python3.11/site-packages/companylib/x.py", True),
        ("/venv/lib/python3.11/site-packages/pyspark/sql/session.py", False),
        ("/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", False),
        ("/venv/lib/python3.11/site-packages/pandas/core/frame.py", False),
        ("pyarrow/array.pxi", False),
        ("<frozen runpy>", False),
        (sys.modules["flintlock.spark.region.errors.failures"].__file__ or "", False),
        (str(Path(fl.__file__).parent / "spark" / "runner" / "process.py"), False),
        (str(Path(fl.__file__).parent / "client" / "running.py"), False),
        (sys.modules["typing"].__file__ or "", False),
    ],
)
def test_files_of_users_are_recognised(file: str, users: bool) -> None:
    assert is_user_source(file) is users


def test_a_syntax_error_in_user_code_shows_the_line() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ndef f(:\n", "script.py", "exec")
    failure = failure_of(caught.value, in_user_code=True)
    assert failure.kind is FailureKind.USER_CODE
    assert failure.frames[-1] == Frame("script.py", 2, "<module>", "def f(:")


def one() -> None:
    def inner() -> int:
        return 1

    inner()


def two() -> None:
    one()


SOURCES: StepSources = sources_of(
    {StepName("first"): one, StepName("second"): two}, {StepName("q"): "select nope from a"}
)


def _line(code: CodeType, offset: int) -> int:
    return code.co_firstlineno + offset


def test_a_line_inside_a_steps_function_names_the_step_and_the_function() -> None:
    line = _line(one.__code__, 2)
    inner = code_at(__file__, line, [two.__code__, one.__code__])
    assert inner is not None
    assert inner.co_name == "inner"
    failure = failure_of(analysis_error("no", call_site(f"{__file__}:{line}")), StepName("out"), SOURCES)
    assert failure.step == "first"
    assert failure.frames == (Frame(__file__, line, "inner", "return 1"),)
    assert failure.query_context is None  # the frame shows it


def test_a_fragment_of_sql_names_the_step() -> None:
    failure = failure_of(analysis_error("no", sql_context("", "nope", 7)), StepName("out"), SOURCES)
    assert failure.step == "q"


def test_without_any_trace_the_output_is_named() -> None:
    assert failure_of(analysis_error("no"), StepName("out"), SOURCES).step == "out"


def test_an_error_while_a_step_is_built_names_that_step() -> None:
    failure = failure_of(analysis_error("no", sql_context("", "nope", 7)), StepName("second"), SOURCES)
    assert failure.step == "second"


def test_long_texts_are_cut_in_the_middle() -> None:
    failure = failure_of(SparkException("x" * 100_000 + "end"))
    assert len(failure.message) < 20_000
    assert failure.message.endswith("end")


# --- lack of memory, lost engines


def test_a_worker_out_of_memory_has_that_kind() -> None:
    text = WORKER.replace("ZeroDivisionError: integer division or modulo by zero", "MemoryError")
    failure = failure_of(PythonException(message=text), StepName("out"))
    assert (failure.kind, failure.exception) == (FailureKind.OUT_OF_MEMORY, "MemoryError")
    arrow = WORKER.replace("ZeroDivisionError: integer", "pyarrow.lib.ArrowMemoryError: malloc of size 8 failed")
    assert failure_of(PythonException(message=arrow)).kind is FailureKind.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "message",
    [
        "Task 0 failed: java.lang.OutOfMemoryError: Java heap space",
        "org.apache.spark.memory.SparkOutOfMemoryError: [UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes",
        "Not enough memory to build and broadcast the table to all worker nodes",
    ],
)
def test_a_spark_task_out_of_memory_has_that_kind(message: str) -> None:
    assert kind_of(SparkException(message)) is FailureKind.OUT_OF_MEMORY
    assert kind_of(ValueError(message), in_user_code=True) is FailureKind.USER_CODE, "only Spark's own messages count"


def test_a_full_disk_is_not_the_fault_of_the_job() -> None:
    """Whether Spark, a Python worker or the user's own code meets it."""
    spark = SparkException("Task 0 failed: java.io.IOException: No space left on device")
    worker = PythonException(
        message="Traceback (most recent call last):\n"
        '  File "/work/job.py", line 3, in write\n'
        "OSError: [Errno 28] No space left on device"
    )
    full = OSError(errno.ENOSPC, "No space left on device")

    assert kind_of(spark) is FailureKind.NO_SPACE
    assert failure_of(worker).kind is FailureKind.NO_SPACE
    assert kind_of(full, in_user_code=True) is FailureKind.NO_SPACE
    assert kind_of(ValueError("No space left on device"), in_user_code=True) is FailureKind.USER_CODE


def test_a_worker_that_exited_is_a_spark_task_failure() -> None:
    message = "Job aborted: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
    assert kind_of(SparkException(message)) is FailureKind.SPARK_TASK


class Gone(SparkConnectGrpcException):
    def getGrpcStatusCode(self) -> Any:  # noqa: N802 - PySpark's name
        class Status:
            name = "UNAVAILABLE"

        return Status()


def wrapped(*, hidden: bool) -> Exception:
    """Return what user code raises that lost its engine."""
    try:
        try:
            raise Gone("failed to connect")
        except SparkConnectGrpcException as error:
            raise RuntimeError("cannot load prices") from (None if hidden else error)
    except RuntimeError as error:
        return error


def test_a_lost_engine_is_found_among_the_causes_of_an_error_of_user_code() -> None:
    assert kind_of(wrapped(hidden=False), in_user_code=True) is FailureKind.ENGINE_LOST
    assert kind_of(wrapped(hidden=True), in_user_code=True) is FailureKind.USER_CODE
    assert kind_of(RuntimeError("cannot load prices"), in_user_code=True) is FailureKind.USER_CODE


# Whether the same may succeed when it is run again


class BadInput(fl.NoRetry):
    """Inherits from NoRetry, with arguments of its own."""

    def __init__(self, row: int, *, column: str) -> None:  # does not call the one of Exception
        self.row = row
        self.column = column

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:  # noqa: BLE001 - it is returned
        return caught


def in_worker(error: BaseException) -> PythonException:
    """The exception that Spark raises for one of a Python worker: it has the traceback as text."""
    text = "".join(traceback.format_exception(raised(error)))
    return PythonException(message=f"[PYTHON_EXCEPTION] An exception was thrown: {text} SQLSTATE: 38000\n\tat a.b")


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k"), AssertionError(), Unavailable("no leader")])
def test_what_user_code_raises_may_be_retried(error: BaseException) -> None:
    failure = failure_of(raised(error), in_user_code=True)
    assert (failure.kind, failure.permanent) == (FailureKind.USER_CODE, False)


@pytest.mark.parametrize("error", [fl.NoRetry("row 7 has no key"), BadInput(7, column="key")])
def test_no_retry_of_a_step_or_program_is_permanent(error: BaseException) -> None:
    failure = failure_of(raised(error))
    assert (failure.kind, failure.permanent) == (FailureKind.USER_CODE, True)
    assert failure.message == str(error)


@pytest.mark.parametrize("error", [fl.NoRetry("row 7 has no key"), BadInput(7, column="key"), fl.NoRetry()])
def test_no_retry_of_a_python_worker_is_permanent(error: BaseException) -> None:
    failure = failure_of(in_worker(error))
    assert (failure.kind, failure.permanent) == (FailureKind.USER_CODE, True)
    assert failure.message == str(error), "without the note"
    assert failure_of(raised(RuntimeError("no rows"), in_worker(error)), in_user_code=True).permanent


def test_the_type_of_no_retry_is_shown_by_its_public_name() -> None:
    assert failure_of(raised(fl.NoRetry("x"))).exception == "flintlock.NoRetry"
    assert failure_of(in_worker(fl.NoRetry("x"))).exception == "flintlock.NoRetry"


def test_an_error_that_no_retry_caused_is_permanent_and_one_raised_while_handling_it_is_not() -> None:
    assert failure_of(raised(RuntimeError("x"), fl.NoRetry("y")), in_user_code=True).permanent
    try:
        raise fl.NoRetry("the file is empty")
    except fl.NoRetry:
        handled = raised(TimeoutError("the other service"))
    assert not failure_of(handled, in_user_code=True).permanent


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'x'", name="x"), ImportError("cannot import name 'y'")]
)
def test_an_import_that_fails_is_permanent_in_a_step_and_in_a_worker(error: ImportError) -> None:
    assert failure_of(raised(error)).permanent
    assert failure_of(in_worker(error)).permanent


def test_a_module_that_is_not_python_is_permanent_and_an_evaluated_text_is_not() -> None:
    with pytest.raises(SyntaxError) as module:
        compile("def f(:", "script.py", "exec")
    with pytest.raises(SyntaxError) as text:
        compile("1 +", "<string>", "eval")
    assert failure_of(module.value, in_user_code=True).permanent
    assert not failure_of(text.value, in_user_code=True).permanent


def test_what_flintlock_finds_wrong_with_user_code_is_permanent() -> None:
    assert failure_of(TaskError(FailureKind.USER_CODE, "the function returned nothing")).permanent


@pytest.mark.parametrize("error", [JobFailed("job a has failed"), NotFound("no such job")])
def test_a_program_is_not_run_again_after_an_error_of_flintlock_that_would_repeat(error: FlintlockError) -> None:
    assert failure_of(raised(error), in_user_code=True).permanent


def test_losses_are_retried_although_user_code_wraps_them() -> None:
    class Code:
        name = "UNAVAILABLE"

    lost = SparkConnectGrpcException("failed to connect", grpc_status_code=Code())  # type: ignore[arg-type]
    failure = failure_of(raised(fl.NoRetry("no rows"), lost), in_user_code=True)
    assert (failure.kind, failure.permanent) == (FailureKind.ENGINE_LOST, False)
