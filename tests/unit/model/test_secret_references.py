"""A job names its secrets; only the process of a task has their values."""

from __future__ import annotations

import pytest
from msgspec import structs

from flintlock.model.access.secret_references import REDACTED, redacted, secret_names, with_secrets
from flintlock.model.checking.graphcheck import problems_of
from flintlock.model.checking.jobspec import draft_graph, read_spec
from flintlock.model.ids import JobId
from flintlock.model.jobgraph import JobGraph
from flintlock.model.operations import Program, Sink, Source
from flintlock.model.tasks import Failure, FailureKind

JOB = JobId("0123456789abcdef" * 2)
VALUES = {"DB": "correct horse", "S3": "battery"}


def graph(**changes: object) -> JobGraph:
    document: dict[str, object] = {
        "name": "secretive",
        "steps": {
            "people": {
                "source": {
                    "format": "jdbc",
                    "options": {"url": "jdbc:x", "password": "${secret:DB}", "user": "${user}"},
                }
            },
            "out": {"sink": {"format": "jdbc", "options": {"password": "${pw}"}}, "inputs": ["people"]},
        },
        "params": {"user": "me", "pw": "${secret:DB}", "limit": 5},
        "config": {"spark.hadoop.fs.s3a.secret.key": "${secret:S3}"},
        **changes,
    }
    spec, problems = read_spec(document)
    assert spec is not None, problems
    drafted, found = draft_graph(spec, JOB, {})
    assert not found
    return drafted


def test_options_parameters_and_config_refer_to_secrets_by_name() -> None:
    assert secret_names(graph()) == {"DB", "S3"}
    assert not list(problems_of(graph()))


def test_only_the_graph_of_the_runner_has_the_values() -> None:
    filled = with_secrets(graph(), VALUES)

    source, sink = filled.vertex("people").operation, filled.vertex("out").operation
    assert isinstance(source, Source)
    assert isinstance(sink, Sink)
    assert source.options == {"url": "jdbc:x", "password": "correct horse", "user": "me"}
    assert sink.options == {"password": "correct horse"}
    assert filled.config == {"spark.hadoop.fs.s3a.secret.key": "battery"}
    assert filled.params == {"user": "me", "pw": "correct horse", "limit": 5}
    assert "correct horse" not in repr(graph())


def test_arguments_of_programs_are_filled() -> None:
    plain = graph()
    program = structs.replace(plain.vertices[0], operation=Program(file="a.py", args=("--key", "k=${secret:DB}")))
    filled = with_secrets(structs.replace(plain, vertices=(program,)), VALUES)

    operation = filled.vertices[0].operation
    assert isinstance(operation, Program)
    assert operation.args == ("--key", "k=correct horse")


def test_a_graph_without_references_is_left_as_it_is() -> None:
    plain = graph(params={}, config={}, steps={"n": {"sql": "SELECT 1"}, "r": {"result": {}, "inputs": ["n"]}})
    assert secret_names(plain) == frozenset()
    assert with_secrets(plain, {}) is plain


@pytest.mark.parametrize("value", ["hunter2", "x${secret:DB}", "${secret:DB}${secret:S3}", "${secret}", 7, None, ""])
def test_a_parameter_that_is_declared_secret_is_refused_unless_it_is_a_reference(value: str | int | None) -> None:
    document = {
        "name": "secretive",
        "params": {"pw": value},
        "secretParams": ["pw"],
        "steps": {
            "a": {"source": {"format": "parquet", "path": "/d/${pw}"}},
            "b": {"sink": {"format": "parquet", "path": "/o/${pw}"}, "inputs": ["a"]},
            "c": {"sink": {"format": "parquet", "path": "/o/${pw}"}, "inputs": ["a"]},
        },
    }
    spec, _ = read_spec(document)
    assert spec is not None
    drafted, (refusal,) = draft_graph(spec, JOB, {})

    assert refusal.field == "params"
    assert "'pw' is a secret" in refusal.message
    assert "set the parameter to '${secret:NAME}'" in refusal.message
    assert "hunter2" not in repr((drafted, refusal, *problems_of(drafted)))


def test_a_parameter_that_is_declared_secret_takes_a_reference() -> None:
    assert graph(secretParams=["pw"]).params["pw"] == "${secret:DB}"
    spec, _ = read_spec({"name": "s", "params": {"pw": ""}, "secretParams": ["pw"], "steps": {}})
    assert spec is not None
    assert not draft_graph(spec, JOB, {}, {"pw": "${secret:S3}"})[1]
    assert len(draft_graph(spec, JOB, {}, {"pw": "hunter2"})[1]) == 1


def test_a_secret_parameter_that_the_job_does_not_have_is_a_problem() -> None:
    spec, _ = read_spec({"name": "s", "params": {"pw": "${secret:DB}"}, "secretParams": ["pwd"], "steps": {}})
    assert spec is not None
    (problem,) = draft_graph(spec, JOB, {})[1]
    assert str(problem) == "job, field 'secretParams': the job has no parameter 'pwd'; did you mean 'pw'?"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ({"a": {"source": {"format": "parquet", "path": "/d/${secret:X}"}}}, "a secret can be used in options"),
        ({"a": {"sql": "SELECT '${secret:X}'"}}, "a secret can be used in options"),
        ({"a": {"source": {"format": "jdbc", "options": {"p": "${secret:a b}"}}}}, "'a b' cannot be the name"),
    ],
)
def test_a_reference_that_would_not_be_replaced_is_a_problem(steps: dict[str, object], expected: str) -> None:
    checked = graph(params={}, config={}, steps={**steps, "r": {"result": {}, "inputs": ["a"]}})
    assert any(expected in problem.message for problem in problems_of(checked))


def test_a_failure_shows_no_value_of_a_secret() -> None:
    failure = Failure(
        kind=FailureKind.USER_CODE,
        message="login failed for correct horse",
        stack_trace="x\ncorrect horse\n",
        jvm_stack_trace="at correct horse",
    )
    text = repr(redacted(failure, (*VALUES.values(), "a")))

    assert "correct horse" not in text
    assert text.count(REDACTED) == 3
    assert "login failed" in text


def test_environment_variables_of_a_program_refer_to_secrets_by_name() -> None:
    step = {"program": {"file": "x.py", "env": {"TOKEN": "${secret:DB}", "LEVEL": 3, "USER_NAME": "${user}"}}}
    drafted = graph(steps={"p": step})
    program = drafted.vertex("p").operation
    filled = with_secrets(drafted, VALUES).vertex("p").operation

    assert isinstance(program, Program)
    assert isinstance(filled, Program)
    assert "DB" in secret_names(drafted)
    assert program.env == {"TOKEN": "${secret:DB}", "LEVEL": "3", "USER_NAME": "me"}
    assert filled.env == {"TOKEN": "correct horse", "LEVEL": "3", "USER_NAME": "me"}
