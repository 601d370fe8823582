"""The document form of a job: read with every mistake reported, turned into a graph, and back."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.model.graphs import BLOB, JOB, artifact

from flintlock.model.checking.graphcheck import check_graph
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, StepSpec, draft_graph, kind_of, read_spec
from flintlock.model.jobgraph import ArtifactKind, EngineKind, Exchange, JobGraph, JobType, Scalar, Versions, vertex_id
from flintlock.model.operations import (
    Function,
    PickleSpec,
    Program,
    ProgramSpec,
    Result,
    ResultSpec,
    SaveMode,
    Sink,
    SinkSpec,
    Source,
    SourceSpec,
    Sql,
    config_text,
)

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "name": "revenue",
    "parallelism": 2,
    "params": {"dir": "in", "day": "2026-01-01", "n": 3, "deep": True},
    "artifacts": ["lib.zip", {"name": "f.pickle", "kind": "pickle"}],
    "config": {"spark.sql.session.timeZone": "UTC", "spark.speculation": False, "restart-strategy.type": "none"},
    "steps": {
        "orders": {
            "source": {
                "format": "json",
                "path": "${dir}/orders",
                "schema": "ts TIMESTAMP, k STRING",
                "options": {"recursiveFileLookup": "${deep}", "maxFiles": 5, "multiLine": True},
            },
        },
        "clean": {
            "sql": "SELECT '${dir}', * FROM orders WHERE day = :day",
            "inputs": ["orders"],
            "exchange": "blocking",
        },
        "scored": {"function": "lib.score:score", "inputs": ["clean"], "cache": True, "parallelism": 2},
        "priced": {"function": {"pickle": "f.pickle"}, "inputs": ["scored"]},
        "out": {
            "sink": {"format": "parquet", "path": "out/${ day }", "mode": "overwrite", "partitionBy": ["day"]},
            "inputs": ["priced"],
        },
        "top": {"result": {"limit": 5}, "inputs": ["priced"]},
    },
}
BLOBS = {"lib.zip": artifact("lib.zip"), "f.pickle": artifact("f.pickle"), "job.py": artifact("job.py")}


def spec_of(document: object) -> JobSpec:
    spec, problems = read_spec(document)
    assert problems == ()
    assert spec is not None
    return spec


def graph_of(document: object, params: Mapping[str, Scalar] | None = None) -> JobGraph:
    """The graph of a document that has no problems."""
    graph, problems = draft_graph(spec_of(document), JOB, BLOBS, params)
    assert problems == []
    return graph


def problem_texts(document: object) -> list[str]:
    """All problems as their user reads them."""
    spec, problems = read_spec(document)
    assert (spec is None) == bool(problems)
    return [str(problem) for problem in problems]


def test_a_document_becomes_a_graph() -> None:
    """Every key arrives where it belongs, texts filled in, options as Spark writes them."""
    graph = graph_of(DOCUMENT)

    assert (graph.job_id, graph.name, graph.job_type, graph.parallelism) == (JOB, "revenue", JobType.BATCH, 2)
    assert graph.params == DOCUMENT["params"]
    assert graph.config == {
        "spark.sql.session.timeZone": "UTC",
        "spark.speculation": "false",
        "restart-strategy.type": "none",
    }
    assert [(item.name, item.kind) for item in graph.artifacts] == [
        ("lib.zip", ArtifactKind.PY_FILE),
        ("f.pickle", ArtifactKind.PICKLE),
    ]
    assert {vertex.name: vertex.operation for vertex in graph.vertices} == {
        "orders": Source(
            format="json",
            paths=("in/orders",),
            schema="ts TIMESTAMP, k STRING",
            options={"recursiveFileLookup": "true", "maxFiles": "5", "multiLine": "true"},
        ),
        "clean": Sql(query="SELECT '${dir}', * FROM orders WHERE day = :day"),
        "scored": Function(reference="lib.score:score"),
        "priced": Function(pickle="f.pickle"),
        "out": Sink(format="parquet", path="out/2026-01-01", mode=SaveMode.OVERWRITE, partition_by=("day",)),
        "top": Result(limit=5),
    }
    clean, scored = graph.vertex("clean"), graph.vertex("scored")
    assert (clean.inputs, clean.exchange) == (("orders",), Exchange.BLOCKING)
    assert (scored.cache, scored.parallelism) == (True, 2)
    assert check_graph(graph) == graph


def test_vertex_ids_are_the_same_whenever_the_same_step_is_read() -> None:
    """After a failover a step has the id that it had before, and two steps never share one."""
    graph = graph_of(DOCUMENT)

    assert [vertex.id for vertex in graph.vertices] == [vertex_id(JOB, name) for name in DOCUMENT["steps"]]
    assert len({vertex.id for vertex in graph.vertices}) == len(graph.vertices)


def test_parameters_of_the_submission_override_those_of_the_document() -> None:
    """The user who submits a job can override its parameters."""
    graph = graph_of(DOCUMENT, params={"dir": "elsewhere"})

    assert graph.vertex("orders").operation == Source(
        format="json",
        paths=("elsewhere/orders",),
        schema="ts TIMESTAMP, k STRING",
        options={"recursiveFileLookup": "true", "maxFiles": "5", "multiLine": "true"},
    )
    assert graph.params["dir"] == "elsewhere"


def test_sql_is_never_substituted() -> None:
    """Parameters enter SQL as bound parameters, whatever the text contains."""
    query = "SELECT '${dir}', ${nothing}, ${} FROM t WHERE a = :dir"
    spec = JobSpec(name="j", params={"dir": "'; DROP TABLE t"}, steps={"q": StepSpec(sql=query)})

    graph, problems = draft_graph(spec, JOB, {})

    assert problems == []
    assert graph.vertices[0].operation == Sql(query=query)


def test_placeholders_are_replaced_everywhere_else() -> None:
    """Paths, tables, schemas, options and a program's arguments."""
    spec = JobSpec(
        name="j",
        params={"x": "1"},
        steps={
            "a": StepSpec(source=SourceSpec(path=("${x}", "b${x}${x}"), schema="c${x} INT", options={"o": "${x}"})),
            "b": StepSpec(source=SourceSpec(table="t${x}")),
            "c": StepSpec(sink=SinkSpec(path="p${x}", options={"o": "${x}"})),
            "d": StepSpec(sink=SinkSpec(table="t${x}")),
            "e": StepSpec(program=ProgramSpec(file="${x}", args=("--n", "${x}"))),
        },
    )

    graph, problems = draft_graph(spec, JOB, {})

    assert problems == []
    assert [vertex.operation for vertex in graph.vertices] == [
        Source(paths=("1", "b11"), schema="c1 INT", options={"o": "1"}),
        Source(table="t1"),
        Sink(path="p1", options={"o": "1"}),
        Sink(table="t1"),
        Program(file="${x}", args=("--n", "1")),
    ]


def test_an_unknown_placeholder_is_reported_with_the_nearest_parameter() -> None:
    """Every unresolved `${…}` is named with its step and field."""
    spec = JobSpec(
        name="j",
        params={"day": "x", "empty": None},
        steps={
            "a": StepSpec(source=SourceSpec(format="csv", path="${dya}/${unlike}")),
            "b": StepSpec(sink=SinkSpec(path="${empty}"), inputs=("a",)),
        },
    )

    _, problems = draft_graph(spec, JOB, {})

    assert [str(problem) for problem in problems] == [
        "step 'a', field 'source': no parameter 'dya' for ${dya}; did you mean 'day'?",
        "step 'a', field 'source': no parameter 'unlike' for ${unlike}",
        "step 'b', field 'sink': the parameter 'empty' has no value",
    ]


def test_an_artifact_without_content_is_reported() -> None:
    """Every artifact that the document names must be sent with it."""
    _, problems = draft_graph(spec_of(DOCUMENT), JOB, {"lib.zip": artifact("lib.zip")})

    assert [str(problem) for problem in problems] == [
        "job, field 'artifacts': no file was sent for the artifact 'f.pickle'"
    ]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"parallelizm": 2}, "job, field 'parallelizm': unknown key; did you mean 'parallelism'?"),
        ({"steps": {"a": {"sqll": "x"}}}, "step 'a', field 'sqll': unknown key; did you mean 'sql'?"),
        (
            {"steps": {"a": {"sink": {"partition_by": ["x"]}}}},
            "step 'a', field 'sink.partition_by': unknown key; did you mean 'partitionBy'?",
        ),
        (
            {"steps": {"a": {"function": {"pickle": "f", "picle": "g"}}}},
            "step 'a', field 'function.picle': unknown key; did you mean 'pickle'?",
        ),
        (
            {"artifacts": [{"name": "a", "kid": "file"}]},
            "job, field 'artifacts.0.kid': unknown key; did you mean 'kind'?",
        ),
        (
            {"steps": {"a": {"result": {"zzzzzz": 1}}}},
            "step 'a', field 'result.zzzzzz': unknown key; known are limit",
        ),
    ],
)
def test_an_unknown_key_is_reported_with_the_nearest_known_one(document: object, problem: str) -> None:
    """A misspelt key is never ignored."""
    assert problem_texts(document) == [problem]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (None, "job: must be a mapping, not nothing"),
        ("text", "job: must be a mapping, not text"),
        ([1], "job: must be a mapping, not a list"),
        ({"name": 5}, "job, field 'name': expected text, got a whole number"),
        ({"parallelism": "2"}, "job, field 'parallelism': expected a whole number, got text"),
        ({"parallelism": True}, "job, field 'parallelism': expected a whole number, got a boolean"),
        ({"parallelism": 2.5}, "job, field 'parallelism': expected a whole number, got a decimal number"),
        ({"type": "batch"}, "job, field 'type': 'batch' is not one of BATCH, STREAMING; did you mean 'BATCH'?"),
        ({"engine": "own"}, "job, field 'engine': 'own' is not one of shared, dedicated"),
        ({"steps": []}, "job, field 'steps': expected a mapping, got a list"),
        ({"steps": {"a": None}}, "step 'a': must be a mapping, not nothing"),
        ({"steps": {"a": {"sql": 5}}}, "step 'a', field 'sql': expected text, got a whole number"),
        ({"steps": {"a": {"sql": "q", "inputs": "b"}}}, "step 'a', field 'inputs': expected a list, got text"),
        (
            {"steps": {"a": {"sql": "q", "inputs": [1]}}},
            "step 'a', field 'inputs.0': expected text, got a whole number",
        ),
        (
            {"steps": {"a": {"sql": "q", "exchange": "block"}}},
            "step 'a', field 'exchange': 'block' is not one of pipelined, blocking; did you mean 'blocking'?",
        ),
        (
            {"steps": {"a": {"function": 5}}},
            "step 'a', field 'function': expected text or a mapping, got a whole number",
        ),
        ({"steps": {"a": {"source": "x"}}}, "step 'a', field 'source': expected a mapping, got text"),
        (
            {"steps": {"a": {"source": {"path": 1}}}},
            "step 'a', field 'source.path': expected text or a list, got a whole number",
        ),
        (
            {"steps": {"a": {"source": {"options": {"header": None}}}}},
            "step 'a', field 'source.options.header': expected text, a number or a boolean, got nothing",
        ),
        ({"steps": {"a": {"program": {}}}}, "step 'a', field 'program': needs the key 'file'"),
        (
            {"config": {"spark": {"x": 1}}},
            "job, field 'config.spark': expected text, a number or a boolean, got a mapping",
        ),
        ({"params": {"x": [1]}}, "job, field 'params.x': expected text, a number or a boolean, got a list"),
        ({"params": {1: "x"}}, "job, field 'params.1': a key must be text, not a whole number"),
        ({"steps": {1: {"sql": "q"}}}, "step '1': a key must be text, not a whole number"),
        ({1: 2}, "job, field '1': unknown key; known are"),
        ({"artifacts": ["a", 5]}, "job, field 'artifacts.1': expected text or a mapping, got a whole number"),
        ({"artifacts": [{"kind": "file"}]}, "job, field 'artifacts.0': needs the key 'name'"),
        ({"version": 2}, "job, field 'version': this version reads documents of version 1, not 2"),
        ({"client": {"flintlock": "1", "python": "3"}}, "job, field 'client': needs the key 'pyspark'"),
    ],
)
def test_a_wrong_type_is_reported_with_its_place(document: object, problem: str) -> None:
    """The keys that lead to it, what is expected there, and what was found."""
    problems = problem_texts(document)

    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_step_is_of_exactly_one_kind() -> None:
    """For a step of no kind, or of two, the problem names the kinds to choose from."""
    assert problem_texts({"steps": {"a": {"inputs": []}, "b": {"sql": "q", "sink": {}}, "c": {"result": None}}}) == [
        "step 'a': does nothing: give one of source, sql, function, sink, result, program, foreachBatch",
        "step 'b', field 'sink': is already a sql: give only one of them",
        "step 'c': does nothing: give one of source, sql, function, sink, result, program, foreachBatch",
    ]


def test_all_problems_of_a_document_are_reported_at_once() -> None:
    """A user can fix a file in one pass."""
    assert len(problem_texts({"nam": 1, "parallelism": "x", "steps": {"a": {"sql": 1, "inputz": []}, "b": 3}})) == 5


def test_versions_of_a_newer_client_may_have_more_fields() -> None:
    """Clients of any version send the versions that they pickled functions with."""
    document = {"client": {"flintlock": "9", "python": "3.11", "pyspark": "4.3.0", "pandas": "2"}}

    assert spec_of(document).client == Versions(flintlock="9", python="3.11", pyspark="4.3.0")


def test_kinds_and_configuration_texts() -> None:
    """A step's kind is the one it gives; booleans are written as Spark writes them."""
    assert kind_of(StepSpec(result=ResultSpec())) == "result"
    assert [config_text(value) for value in (True, False, 1, 0.5, "x")] == ["true", "false", "1", "0.5", "x"]


NAMES = st.text(string.ascii_letters, min_size=1, max_size=8)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
CONFIG_VALUES = TEXTS | NUMBERS | st.booleans()
OPTIONS = st.dictionaries(NAMES, CONFIG_VALUES, max_size=3)
MAYBE = st.none() | TEXTS
OPERATIONS = st.one_of(
    st.fixed_dictionaries(
        {
            "source": st.builds(
                SourceSpec, format=MAYBE, path=TEXTS | st.lists(TEXTS).map(tuple), options=OPTIONS, stream=st.booleans()
            )
        }
    ),
    st.fixed_dictionaries({"sql": TEXTS}),
    st.fixed_dictionaries({"function": TEXTS | st.builds(PickleSpec, pickle=TEXTS)}),
    st.fixed_dictionaries(
        {"sink": st.builds(SinkSpec, format=MAYBE, path=MAYBE, mode=st.sampled_from(SaveMode), options=OPTIONS)}
    ),
    st.fixed_dictionaries({"result": st.builds(ResultSpec, limit=st.integers(-1, 100))}),
    st.fixed_dictionaries({"program": st.builds(ProgramSpec, file=TEXTS, args=st.lists(TEXTS).map(tuple))}),
)
STEPS = OPERATIONS.flatmap(
    lambda kind: st.builds(
        StepSpec,
        inputs=st.lists(NAMES, max_size=3).map(tuple),
        exchange=st.sampled_from(Exchange),
        parallelism=st.none() | st.integers(0, 100),
        cache=st.booleans(),
        **{key: st.just(value) for key, value in kind.items()},
    )
)
SPECS = st.builds(
    JobSpec,
    name=TEXTS,
    job_id=st.none() | st.just(str(JOB)),
    type=st.sampled_from(JobType),
    engine=st.sampled_from(EngineKind),
    parallelism=st.none() | st.integers(0, 100),
    params=st.dictionaries(NAMES, st.none() | CONFIG_VALUES, max_size=3),
    config=OPTIONS,
    artifacts=st.lists(TEXTS | st.builds(ArtifactSpec, name=TEXTS, blob=st.none() | st.just(str(BLOB)))).map(tuple),
    steps=st.dictionaries(NAMES, STEPS, max_size=3),
    client=st.none() | st.builds(Versions, flintlock=TEXTS, python=TEXTS, pyspark=TEXTS),
)


@settings(max_examples=50)
@given(SPECS)
def test_a_spec_is_equal_after_a_round_trip(spec: JobSpec) -> None:
    """What a client sends is what the cluster reads."""
    document = msgspec.json.decode(msgspec.json.encode(spec))

    assert read_spec(document) == (spec, ())


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS | st.integers() | st.none(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def corrupted_documents(draw: st.DrawFn) -> Any:
    """A valid document in which some values, anywhere, are replaced by arbitrary ones."""

    def spoilt(value: Any) -> Any:
        if draw(st.integers(0, 9)) == 0:
            return draw(JSON_VALUES)
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list):
            return [spoilt(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        return value

    return spoilt(DOCUMENT)


@settings(max_examples=60)
@given(JSON_VALUES | corrupted_documents())
def test_any_document_is_read_or_refused_with_a_problem(document: object) -> None:
    """Whatever is sent is either read, or refused with at least one problem; nothing else happens."""
    spec, problems = read_spec(document)

    assert (spec is None) == bool(problems)
    assert all(str(problem) for problem in problems)
    if spec is not None:
        draft_graph(spec, JOB, {})


@pytest.mark.parametrize("mode", ["error", "errorifexists", "default"])
def test_spark_has_several_names_for_the_default_save_mode(mode: str) -> None:
    steps = {"a": {"sql": "SELECT 1"}, "out": {"sink": {"format": "json", "path": "/x", "mode": mode}, "inputs": ["a"]}}
    spec, problems = read_spec({"version": 1, "name": "n", "steps": steps})
    assert problems == ()
    assert spec is not None
    sink = spec.steps["out"].sink
    assert sink is not None
    assert sink.mode is SaveMode.ERROR_IF_EXISTS
