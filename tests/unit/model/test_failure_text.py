"""A failure as a user reads it."""

from __future__ import annotations

from flintlock.model.failures.failure_text import headline, log_facts, render
from flintlock.model.ids import StepName
from flintlock.model.tasks import Failure, FailureKind, Frame

FAILURE = Failure(
    kind=FailureKind.USER_CODE,
    message="integer division or modulo by zero",
    exception="ZeroDivisionError",
    step=StepName("priced"),
    frames=(Frame("jobs/revenue.py", 12, "priced", "return 1 // 0"), Frame("lib.py", 3, "helper")),
    error_class="PYTHON_EXCEPTION",
    stack_trace="Traceback (most recent call last):\n  whole",
    jvm_stack_trace="org.apache.spark.SparkException\n\tat a.b(C.scala:1)",
)


def test_the_users_part_comes_first_and_stacks_are_left_out() -> None:
    assert render(FAILURE) == (
        "Step 'priced' failed (user code)\n"
        "  ZeroDivisionError: integer division or modulo by zero\n"
        "\n"
        '  File "jobs/revenue.py", line 12, in priced\n'
        "    return 1 // 0\n"
        '  File "lib.py", line 3, in helper\n'
        "\n"
        "  Spark's error class: PYTHON_EXCEPTION"
    )


def test_verbose_adds_both_stacks() -> None:
    text = render(FAILURE, verbose=True)
    assert text.startswith(render(FAILURE))
    assert "\n  Python stack trace:\n    Traceback (most recent call last):\n      whole\n" in text
    assert text.endswith("\n  JVM stack trace:\n    org.apache.spark.SparkException\n    \tat a.b(C.scala:1)")


def test_a_query_context_keeps_its_shape() -> None:
    context = "== SQL (line 1, position 8) ==\nSELECT nope FROM a\n       ^^^^\n"
    failure = Failure(kind=FailureKind.ANALYSIS, message="no column\nanywhere", query_context=context)
    assert render(failure) == (
        "The task failed (analysis)\n"
        "  no column\n"
        "  anywhere\n"
        "\n"
        "  == SQL (line 1, position 8) ==\n"
        "  SELECT nope FROM a\n"
        "         ^^^^"
    )


def test_an_error_class_inside_the_message_is_not_repeated() -> None:
    failure = Failure(kind=FailureKind.ANALYSIS, message="[NO_COLUMN] none", error_class="NO_COLUMN")
    assert render(failure).count("NO_COLUMN") == 1


def test_a_headline_is_one_line() -> None:
    assert headline(FAILURE) == "step 'priced': ZeroDivisionError: integer division or modulo by zero"
    assert headline(Failure(kind=FailureKind.INTERNAL, message="a\nb")) == "a"


def test_a_log_line_has_the_step_the_kind_the_message_and_the_users_line() -> None:
    assert log_facts(FAILURE) == {
        "kind": "user code",
        "step": "priced",
        "line": "lib.py:3",
        "message": "ZeroDivisionError: integer division or modulo by zero",
    }
    assert log_facts(Failure(kind=FailureKind.TIMEOUT, message="too late\nmore")) == {
        "kind": "timeout",
        "message": "too late",
    }
    assert len(log_facts(Failure(kind=FailureKind.TIMEOUT, message="x" * 100_000))["message"]) == 501
