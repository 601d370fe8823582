"""A query that names a step which its own step does not have as an input."""

from __future__ import annotations

import pytest

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Operation, Result, Source, Sql
from flintlock.model.tasks import Failure, FailureKind
from flintlock.spark.region.errors.forgotten_inputs import with_forgotten_input
from flintlock.spark.region.plan import refers_to

JOB = JobId("0" * 32)


def step(name: str, operation: Operation, *inputs: str) -> JobVertex:
    sources = tuple(StepName(source) for source in inputs)
    return JobVertex(id=vertex_id(JOB, name), name=StepName(name), operation=operation, inputs=sources)


GRAPH = JobGraph(
    job_id=JOB,
    name="j",
    vertices=(
        step("orders", Sql(query="SELECT 1")),
        step("days", Sql(query="SELECT 2")),
        step("joined", Sql(query="SELECT * FROM Orders JOIN days"), "days"),
        step("r", Result(), "joined"),
    ),
)


def not_found(table: str, step: str = "joined") -> Failure:
    return Failure(
        kind=FailureKind.ANALYSIS,
        message=f"[TABLE_OR_VIEW_NOT_FOUND] The table or view {table} cannot be found. Verify …",
        error_class="TABLE_OR_VIEW_NOT_FOUND",
        step=StepName(step),
    )


def test_a_step_that_a_query_names_and_does_not_list_is_named_with_the_remedy() -> None:
    failure = with_forgotten_input(not_found("`Orders`"), GRAPH)
    assert failure.message.startswith(
        "there is a step 'orders', which is not an input of this one: add it (inputs: [days, orders])\n[TABLE_OR"
    )


@pytest.mark.parametrize("table", ["`unknown`", "`days`", "`r`", "`joined`"])
def test_other_tables_are_reported_as_spark_does(table: str) -> None:
    assert with_forgotten_input(not_found(table), GRAPH) == not_found(table)


@pytest.mark.parametrize(
    ("source", "message", "named"),
    [
        (Source(format="parquet", paths=("/in/orders.csv",)), "file:/in/orders.csv is not a Parquet file", True),
        (Source(format="parquet", paths=("/in/*.csv",)), "file:/in/orders.csv is not a Parquet file", True),
        (Source(format="csv", paths=("/other",)), "file:/in/orders.csv is not a Parquet file", False),
        (Source(format="jdbc", options={"url": "jdbc:x"}), "java.sql.SQLException: No suitable driver", True),
        (Source(format="jdbc", options={"driver": "org.X"}), "java.lang.ClassNotFoundException: org.X", True),
        (Source(format="csv", paths=("/",)), "No suitable driver", False),
    ],
)
def test_an_error_of_a_data_source_is_that_of_its_source_step(source: Source, message: str, named: bool) -> None:
    assert refers_to(source, message) is named
