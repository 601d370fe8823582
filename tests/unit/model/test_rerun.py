"""A job that is submitted once more has the earlier one's graph, and the parameters that were given."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flintlock.model.checking.jobspec import draft_graph, read_spec
from flintlock.model.checking.parameters import typed
from flintlock.model.checking.rerun import rerun_graph
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, JobGraph, Scalar, vertex_id
from flintlock.model.operations import Sink, Source

FIRST, AGAIN, THIRD = JobId("a" * 32), JobId("b" * 32), JobId("c" * 32)
LIB = Artifact(name="lib.py", blob=BlobKey("sha256-" + "0" * 64), size=3)


def graph_of(*, sink: str = "/out/${day}", **more: Any) -> JobGraph:
    document = {
        "name": "revenue",
        "params": {"day": "2026-01-01", "n": 3, "ratio": 0.5, "full": False, "password": "${secret:DB}"},
        "artifacts": ["lib.py"],
        "steps": {
            "orders": {"source": {"format": "csv", "path": "/in"}},
            "out": {"sink": {"format": "parquet", "path": sink}, "inputs": ["orders"]},
        },
        **more,
    }
    spec, problems = read_spec(document)
    assert spec is not None, problems
    graph, unfilled = draft_graph(spec, FIRST, {"lib.py": LIB})
    assert unfilled == []
    return graph


def sink_path(graph: JobGraph) -> str | None:
    operation = graph.vertex("out").operation
    assert isinstance(operation, Sink)
    return operation.path


def test_a_rerun_is_another_job_with_the_same_steps_files_and_parameters() -> None:
    graph = graph_of(clientTimeout=30.0)
    again, problems = rerun_graph(graph, AGAIN, {})
    assert problems == []
    assert (again.job_id, again.rerun_of, again.client_timeout_s) == (AGAIN, FIRST, None)
    assert (again.params, again.artifacts, again.name) == (graph.params, (LIB,), "revenue")
    assert [vertex.operation for vertex in again.vertices] == [vertex.operation for vertex in graph.vertices]
    assert [vertex.id for vertex in again.vertices] == [vertex_id(AGAIN, name) for name in ("orders", "out")]


def test_a_changed_parameter_is_filled_in_again() -> None:
    again, problems = rerun_graph(graph_of(), AGAIN, {"day": "2026-01-02", "n": "4", "full": "true"})
    assert problems == []
    assert sink_path(again) == "/out/2026-01-02"
    assert (again.params["n"], again.params["full"], again.params["ratio"]) == (4, True, 0.5)
    third, problems = rerun_graph(again, THIRD, {"n": 5})
    assert problems == []
    assert (sink_path(third), third.params["day"], third.params["n"]) == ("/out/2026-01-02", "2026-01-02", 5)
    assert third.rerun_of == AGAIN


def test_a_graph_in_which_nothing_is_filled_in_needs_no_document() -> None:
    graph = graph_of(sink="/out")
    assert graph.document == b""
    again, problems = rerun_graph(graph, AGAIN, {"n": 4})
    assert (problems, again.params["n"], sink_path(again)) == ([], 4, "/out")


def test_graphs_of_earlier_versions_can_be_run_again() -> None:
    stored = msgspec.to_builtins(graph_of(sink="/out"))
    del stored["document"], stored["rerun_of"]
    again, problems = rerun_graph(msgspec.convert(stored, JobGraph), AGAIN, {"n": 4})
    assert (problems, again.params["n"]) == ([], 4)
    assert isinstance(again.vertex("orders").operation, Source)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"dya": "x"}, "the job has no parameter 'dya'"),
        ({"n": "many"}, "'n' must be a whole number, not 'many'"),
        ({"n": True}, "'n' must be a whole number"),
        ({"full": 1}, "'full' must be a boolean"),
        ({"day": 3}, "'day' must be text"),
        ({"ratio": "half"}, "'ratio' must be a number"),
        ({"password": "hunter2"}, "'password' is a secret: give it as '${secret:NAME}'"),
        ({"password": 5}, "'password' must be text"),
    ],
)
def test_parameters_that_the_job_does_not_take_are_refused(given: dict[str, Scalar], expected: str) -> None:
    _, problems = rerun_graph(graph_of(), AGAIN, given)
    (line,) = [str(problem) for problem in problems]
    assert expected in line
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("fixed", "given", "refused"),
    [
        ((), {"day": "/data"}, True),
        ((), {"day": "s3a://bucket/data"}, True),
        ((), {"day": "~/data"}, True),
        ((), {"day": "other"}, False),
        (("day",), {"day": "other"}, True),
        (("day",), {"n": 4}, False),
    ],
)
def test_a_parameter_in_a_path_that_the_client_made_absolute_is_not_changed(
    fixed: tuple[str, ...], given: dict[str, Scalar], refused: bool
) -> None:
    _, problems = rerun_graph(graph_of(fixedParams=fixed), AGAIN, given)
    assert ["flintlock run" in str(problem) for problem in problems] == [True] * refused


def test_a_secret_can_be_replaced_by_another_reference() -> None:
    again, problems = rerun_graph(graph_of(), AGAIN, {"password": "${secret:OTHER}"})
    assert (problems, again.params["password"]) == ([], "${secret:OTHER}")


def test_numbers_are_taken_for_numbers() -> None:
    assert (typed(3, 0.5), typed("3", 1), typed("0.5", 1.0), typed("x", None)) == (3, 3, 0.5, "x")
