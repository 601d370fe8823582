"""Configuration: what is read, what is refused, and where an option may be set."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flintlock.config.configuration import (
    MASTER_VARIABLES,
    WORKER_VARIABLES,
    Configuration,
    Option,
    Scope,
    boolean,
    config_problems,
    integer,
    number,
    one_of,
)
from flintlock.config.options import OPTIONS, RESULT_BYTES
from flintlock.model.quantities import duration_s, memory_bytes, positive_duration_s

SLOTS = Option(key="taskmanager.slots", parse=integer(1, 8), kind="a whole number", default=2, description="d")
DELAY = Option(key="restart.delay", parse=duration_s, kind="a duration", default=1.0, description="d", scope=Scope.JOB)
KNOWN: tuple[Option[Any], ...] = (SLOTS, DELAY)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 s", 10),
        ("10s", 10),
        ("500 ms", 0.5),
        ("250", 0.25),
        ("1 min", 60),
        ("2 h", 7200),
        ("1 d", 86400),
        (" 1.5 SEC ", 1.5),
        ("0", 0),
        ("3 minutes", 180),
        ("7 days", 604800),
    ],
)
def test_durations_are_read_as_flink_writes_them(text: str, seconds: float) -> None:
    """With or without a space, long or short, a bare number in milliseconds."""
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1 s", "1 lightyear", "1 s 2 ms", "1,5 s", "inf", "nan", "1e3 s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """The message has the text, and examples of a valid one."""
    with pytest.raises(ValueError, match="is not a duration such as '10 s' or '500 ms'") as caught:
        duration_s(text)
    assert repr(text) in str(caught.value)


def test_a_period_cannot_be_nothing() -> None:
    """An action repeated without any delay would keep a process busy for ever."""
    assert positive_duration_s("10 ms") == pytest.approx(0.01)
    with pytest.raises(ValueError, match="'0 s' is shorter than 10 ms"):
        positive_duration_s("0 s")


@pytest.mark.parametrize(
    ("text", "size"),
    [("512m", 512 << 20), ("2 gb", 2 << 30), ("1K", 1024), ("1.5k", 1536), ("7", 7), ("8 bytes", 8), ("1t", 1 << 40)],
)
def test_memory_sizes_are_read(text: str, size: int) -> None:
    """As Flink and Spark write them."""
    assert memory_bytes(text) == size


def test_a_result_larger_than_a_message_is_refused_with_the_reason() -> None:
    assert Configuration({RESULT_BYTES.key: "30m"}).get(RESULT_BYTES) == 30 << 20
    assert RESULT_BYTES.default_text == "16m"
    found = list(config_problems({RESULT_BYTES.key: "200m"}, OPTIONS, Scope.JOB))
    assert [key for key, _ in found] == [RESULT_BYTES.key]
    assert "'200m' is more than 30m: a result travels in one message, as Arrow and as JSON" in found[0][1]


def test_variables_of_containers_have_any_name_that_a_variable_may_have() -> None:
    values = {"containerized.taskmanager.env.AWS_PROFILE": "a", "containerized.master.env.HTTPS_PROXY": "b"}

    assert config_problems(values, OPTIONS, Scope.CLUSTER) == []
    assert Configuration(values).variables(WORKER_VARIABLES) == {"AWS_PROFILE": "a"}
    assert Configuration(values).variables(MASTER_VARIABLES) == {"HTTPS_PROXY": "b"}


@pytest.mark.parametrize(
    ("key", "scope", "problem"),
    [
        ("containerized.taskmanager.env.", Scope.CLUSTER, "'' is not the name of an environment variable"),
        ("containerized.master.env.A-B", Scope.CLUSTER, "'A-B' is not the name of an environment variable"),
        ("containerized.master.env.FLINTLOCK_REST_PORT", Scope.CLUSTER, "set the option"),
        ("containerized.taskmanager.env.A", Scope.JOB, "a job cannot set it"),
        ("containerized.worker.env.A", Scope.CLUSTER, "unknown option"),
    ],
)
def test_what_sets_no_variable_of_a_container_is_refused(key: str, scope: Scope, problem: str) -> None:
    ((found, text),) = config_problems({key: "x"}, OPTIONS, scope)
    assert found == key
    assert problem in text


@pytest.mark.parametrize("text", ["", "m", "-1m", "1 s", "lots"])
def test_what_is_no_memory_size_is_refused(text: str) -> None:
    """The message has the text, and examples of a valid one."""
    with pytest.raises(ValueError, match="is not a memory size such as '512m' or '2g'"):
        memory_bytes(text)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False), ("True", True)])
def test_booleans_are_true_or_false(text: str, value: bool) -> None:
    """In any case of letters."""
    assert boolean(text) is value


@pytest.mark.parametrize("text", ["", "yes", "1", "truee"])
def test_other_texts_are_not_booleans(text: str) -> None:
    """No guessing."""
    with pytest.raises(ValueError, match="is neither 'true' nor 'false'"):
        boolean(text)


@given(st.integers(-20, 20))
def test_whole_numbers_keep_their_bounds(value: int) -> None:
    """Both bounds are within."""
    parse = integer(-3, 7)
    if -3 <= value <= 7:
        assert parse(str(value)) == value
    else:
        with pytest.raises(ValueError, match=f"{value} is not from -3 to 7"):
            parse(str(value))


@pytest.mark.parametrize("text", ["", "1.5", "x", "1e3"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    """The message has the text."""
    with pytest.raises(ValueError, match="is not a whole number"):
        integer(0)(text)


@given(st.floats())
def test_numbers_are_finite_and_keep_their_bounds(value: float) -> None:
    """Neither NaN nor infinity gets in, whatever the bounds."""
    parse = number(0.0, 1.0)
    if math.isfinite(value) and 0.0 <= value <= 1.0:
        assert parse(repr(value)) == value
    else:
        with pytest.raises(ValueError, match=r"is not a number|is less than|is more than"):
            parse(repr(value))


def test_a_name_is_one_of_a_few() -> None:
    """The message lists them."""
    parse = one_of("none", "fixed-delay")

    assert parse("none") == "none"
    with pytest.raises(ValueError, match="'fixed' is not one of none, fixed-delay"):
        parse("fixed")


def test_an_unknown_key_is_reported_with_the_nearest_known_one() -> None:
    """A misspelt option is never ignored."""
    assert config_problems({"taskmanager.slot": "2", "zzz": "1"}, KNOWN, Scope.CLUSTER) == [
        ("taskmanager.slot", "unknown option; did you mean 'taskmanager.slots'?"),
        ("zzz", "unknown option"),
    ]


def test_an_ill_typed_value_is_reported_with_what_the_option_takes() -> None:
    """Key, value and kind."""
    assert config_problems({"taskmanager.slots": "many"}, KNOWN, Scope.CLUSTER) == [
        ("taskmanager.slots", "'many' is not a whole number (the option takes a whole number)")
    ]


def test_a_job_sets_only_options_of_jobs() -> None:
    """The cluster's own options are the cluster's; a cluster may set both."""
    values = {"taskmanager.slots": "2", "restart.delay": "1 s"}

    assert config_problems(values, KNOWN, Scope.JOB) == [
        ("taskmanager.slots", "is an option of the cluster: a job cannot set it")
    ]
    assert config_problems(values, KNOWN, Scope.CLUSTER) == []


def test_options_of_spark_are_passed_on_unchanged() -> None:
    """Flintlock does not know Spark's options, and does not check them."""
    values = {"spark.sql.shuffle.partitions": "x", "restart.delay": "2 s"}

    assert config_problems(values, KNOWN, Scope.JOB) == []
    configuration = Configuration(values)

    assert configuration.spark() == {"spark.sql.shuffle.partitions": "x"}
    assert configuration.as_dict() == values


def test_values_are_read_by_their_options_and_later_ones_win() -> None:
    """What is not set has its default; `over` leaves the lower layer as it was."""
    below = Configuration({"taskmanager.slots": "4"})
    above = below.over({"taskmanager.slots": "5", "restart.delay": "3 s"})

    assert (below.get(SLOTS), below.get(DELAY), below.has(DELAY)) == (4, 1.0, False)
    assert (above.get(SLOTS), above.get(DELAY), above.has(DELAY)) == (5, 3.0, True)
    assert Configuration().get(SLOTS) == 2


def test_white_space_in_the_name_of_a_setting_of_spark_is_a_problem() -> None:
    values = {"spark.sql.shuffle.partitions ": "7", "spark.sql.shuffle.partitions": "7"}
    (problem,) = config_problems(values, KNOWN, Scope.JOB)
    assert problem == ("spark.sql.shuffle.partitions ", "has white space in its name: Spark would not know it")
