from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flintlock.client.authoring.job import Job
from flintlock.client.authoring.package import Overrides
from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import ArtifactKind, Exchange
from flintlock.model.operations import Function, Sink, Source

HERE = os.path.relpath(__file__)


def line() -> int:
    """Return the caller's line."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def small_job() -> Job:
    job = Job("small", parallelism=2, params={"day": "2026-01-01", "n": 3})
    orders = job.source("orders", format="parquet", path="in/${day}")
    clean = job.sql("clean", "SELECT * FROM orders WHERE day = :day", inputs=[orders], exchange="blocking")

    @job.step(inputs=[clean])
    def priced(clean: Any) -> Any:
        return clean.withColumn("total", clean.price * clean.quantity)

    job.sink("out", priced, format="parquet", path="out", mode="overwrite", partition_by=["day"])
    job.result("top", priced, limit=5)
    return job


def test_a_job_becomes_the_graph_that_was_written() -> None:
    graph = small_job().package().graph

    assert [vertex.name for vertex in graph.vertices] == ["orders", "clean", "priced", "out", "top"]
    assert graph.vertex("clean").exchange is Exchange.BLOCKING
    assert graph.vertex("top").inputs == ("priced",)
    assert graph.parallelism == 2
    assert graph.params == {"day": "2026-01-01", "n": 3}


def test_functions_are_sent_as_pickles_with_versions() -> None:
    package = small_job().package()
    operation = package.graph.vertex("priced").operation

    assert isinstance(operation, Function)
    assert operation.pickle in package.files
    assert re.search(r"^function: .*priced at .*test_job\.py:\d+$", operation.describe())
    assert [item.kind for item in package.graph.artifacts] == [ArtifactKind.PICKLE]
    assert package.graph.client is not None


def test_a_job_without_functions_names_no_versions() -> None:
    job = Job("sql")
    job.result("r", job.sql("one", "SELECT 1 AS x"))

    assert job.package().graph.client is None
    assert not job.pickles


def test_equal_functions_are_one_artifact() -> None:
    job = Job("twice")

    def one(spark: Any) -> Any:
        return spark.range(1)

    job.step("a")(one)
    job.step("b")(one)
    job.result("ra", "a")
    job.result("rb", "b")

    assert len(job.package().files) == 1


def test_local_paths_become_absolute_and_parameters_are_filled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = small_job().package(Overrides(params={"day": "2026-02-02"})).graph
    source, sink = graph.vertex("orders").operation, graph.vertex("out").operation

    assert isinstance(source, Source)
    assert isinstance(sink, Sink)
    assert source.paths == (f"{tmp_path}/in/2026-02-02",)
    assert sink.path == f"{tmp_path}/out"


def test_paths_with_a_scheme_stay_as_they_are() -> None:
    job = Job("remote")
    job.sink("out", job.source("in_", format="csv", path=["s3a://b/k", "file:/x"]), format="json", path="hdfs://n/x")
    graph = job.package().graph
    source, sink = graph.vertex("in_").operation, graph.vertex("out").operation

    assert isinstance(source, Source)
    assert isinstance(sink, Sink)
    assert source.paths == ("s3a://b/k", "file:/x")
    assert sink.path == "hdfs://n/x"


def test_steps_can_be_named_by_text_and_called_in_tests() -> None:
    job = Job("named")
    job.sql("one", "SELECT 1 AS x")

    @job.step("double", inputs="one")
    def function(one: int) -> int:
        return one * 2

    assert function(21) == 42
    assert job.steps == ("one", "double")


def test_a_schema_may_be_a_struct_type() -> None:
    from pyspark.sql.types import IntegerType, StructField, StructType

    job = Job("schema")
    job.result("r", job.source("s", format="json", path="x", schema=StructType([StructField("a", IntegerType())])))
    operation = job.package().graph.vertex("s").operation

    assert isinstance(operation, Source)
    assert operation.schema is not None
    assert StructType.fromJson(json.loads(operation.schema)).fieldNames() == ["a"]


def test_a_secret_parameter_is_given_by_reference_and_its_value_is_not_quoted() -> None:
    job = Job("j", params={"pw": "${secret:DB}"}, secret_params=["pw"])
    job.result("top", job.sql("n", "SELECT :pw AS pw"))
    assert job.package(Overrides(params={"pw": "${secret:OTHER}"})).graph.params["pw"] == "${secret:OTHER}"

    with pytest.raises(Invalid, match="'pw' is a secret, and its value would be stored") as refused:
        job.package(Overrides(params={"pw": "hunter2"}))
    assert "hunter2" not in repr((refused.value, refused.value.public, refused.value.problems))

    number = Job("j", params={"pin": 0}, secret_params=["pin"])
    number.result("top", number.sql("n", "SELECT :pin AS pin"))
    with pytest.raises(Invalid, match="'pin' must be a whole number") as refused:
        number.package(Overrides(params={"pin": "hunter2"}))
    assert "hunter2" not in refused.value.public


def test_parameters_given_as_text_take_the_type_of_the_jobs_own() -> None:
    assert small_job().package(Overrides(params={"n": "7"})).graph.params["n"] == 7

    with pytest.raises(Invalid, match="'n' must be a whole number, not 'many'"):
        small_job().package(Overrides(params={"n": "many"}))
    with pytest.raises(Invalid, match="no parameter 'dya'; did you mean 'day'"):
        small_job().package(Overrides(params={"dya": "x"}))


MISTAKES: list[tuple[Callable[[Any], object], str]] = [
    (lambda job: job.sql("clean", ""), "step 'clean', field 'sql': the query is empty"),
    (lambda job: job.sql("1x", "SELECT 1"), "step '1x': the name cannot be a SQL view"),
    (lambda job: job.sql("a", "SELECT 1", inputs=["nope"]), "field 'inputs': there is no step 'nope'"),
    (lambda job: job.sql("a", "SELECT 1", inputs=[3]), "an input is a step or a step's name, not int"),
    (lambda job: job.sql("a", "SELECT 1", exchange="blockin"), "field 'exchange'"),
    (lambda job: job.sql("a", "SELECT 1", parallelism=0), "field 'parallelism': must be from 1"),
    (lambda job: job.sql("a", "SELECT 1", parallelism="two"), "field 'parallelism'"),
    (lambda job: job.sql("one", "SELECT 1"), "step 'one': there is a step of this name already, at"),
    (lambda job: job.sql("ONE", "SELECT 1"), "cannot tell its view from that of step 'one'"),
    (lambda job: job.source("s"), "field 'source': needs a format"),
    (lambda job: job.source("s", format="csv", path="${x}"), "no parameter 'x'"),
    (lambda job: job.sink("s", "one", format="parquet", path="x", mode="replace"), "field 'sink.mode'"),
    (lambda job: job.sink("s", "one", format="csv", path="x", partition_by=3), "partition_by"),
    (lambda job: job.sql("a", "SELECT 1", inputs=3), "an input is a step or a step's name, not int"),
    (lambda job: job.source("s", format="csv", path=3), "field 'source.path'"),
    (lambda job: job.source("s", format="csv", options=["x"]), "field 'source.options'"),
    (lambda job: job.result("r", "one", limit=0), "limit must be from 1"),
    (lambda job: job.result("r", Job("other").sql("x", "SELECT 1")), "'x' belongs to another job"),
    (lambda job: job.step(inputs=["one"])(_no_arguments), "cannot be called with 1 input: too many"),
    (lambda job: job.step()(_two_arguments), "cannot be called with 0 inputs: missing a required argument: 'a'"),
    (lambda job: job.step("g")(_generator), "must return a DataFrame"),
]


@pytest.mark.parametrize(("add", "message"), MISTAKES)
def test_an_error_is_raised_with_file_line_step_and_field(add: Callable[[Any], object], message: str) -> None:
    job = Job("mistakes")
    job.sql("one", "SELECT 1 AS x")

    with pytest.raises(Invalid) as caught:
        add(job)

    assert message in caught.value.public
    assert HERE in caught.value.public
    assert job.steps == ("one",)


def _no_arguments() -> None: ...


def _two_arguments(a: Any, b: Any) -> None: ...


def _generator(spark: Any) -> Any:
    yield spark


def test_the_line_is_the_callers_own() -> None:
    job = Job("lines")

    with pytest.raises(Invalid) as caught:
        job.sql("a", "SELECT 1", inputs=["nope"])
    assert f"{HERE}:{line() - 1}: step 'a'" in caught.value.public


def test_problems_of_the_complete_job_are_reported_when_it_is_packaged() -> None:
    created = line() + 1
    job = Job("nothing", config={"restart-strategy.tpye": "none"})
    job.sql("one", "SELECT 1")

    with pytest.raises(Invalid) as caught:
        job.package()
    assert len(caught.value.problems) == 2
    assert all(problem.startswith(f"{HERE}:{created}: ") for problem in caught.value.problems)
    assert "did you mean 'restart-strategy.type'" in caught.value.public
    assert "neither a sink nor a result" in caught.value.public


def test_conflicting_parallelism_within_a_region_is_raised_by_the_call() -> None:
    job = Job("regions")
    job.sql("a", "SELECT 1", parallelism=1)

    with pytest.raises(Invalid, match="must agree on a parallelism, but: a=1, b=2"):
        job.sql("b", "SELECT * FROM a", inputs=["a"], parallelism=2)


def test_arguments_params_and_spark_come_on_top_of_the_inputs() -> None:
    job = Job("given")
    job.sql("one", "SELECT 1")

    @job.step(inputs=["one"])
    def both(one: Any, params: Any, spark: Any) -> Any:
        return one, params, spark

    @job.step
    def none(*, spark: Any) -> Any:
        return spark

    assert job.steps == ("one", "both", "none")
    with pytest.raises(Invalid, match="multiple values for argument 'spark'"):

        @job.step(inputs=["one"])
        def wrong(spark: Any, one: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
            return spark, one


def test_py_files_must_be_there_and_be_python() -> None:
    with pytest.raises(Invalid, match=r"field 'py_files': there is no file or folder .*nope"):
        Job("files", py_files=["nope"])
    with pytest.raises(Invalid, match="must be a list of paths"):
        Job("files", py_files="lib")


def test_a_job_has_labels() -> None:
    job = Job("labelled", labels={"team": "core", "attempt": 2})
    job.result("top", job.sql("one", "SELECT 1 AS x"))

    assert job.package().graph.labels == {"team": "core", "attempt": "2"}
