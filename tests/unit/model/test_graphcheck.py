"""A graph that cannot be run is refused, with every problem, its step and its field."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from msgspec import structs
from tests.unit.model.graphs import acyclic_graphs, artifact, blocking, graph, result, sink, source, sql, step

from flintlock.model.checking.graphcheck import check_graph, problems_of, submission_problems
from flintlock.model.checking.problems import Problem
from flintlock.model.errors import Invalid
from flintlock.model.jobgraph import MAX_PARALLELISM, ArtifactKind, EngineKind, JobGraph
from flintlock.model.operations import MAX_RESULT_ROWS, Function, Program, Sink, Source, Sql

FINE = graph(source("orders"), sql("clean", "orders"), sink("out", "clean"))


def problem_texts(bad: JobGraph) -> list[str]:
    """All problems as their user reads them."""
    return [str(problem) for problem in problems_of(bad)]


def only(bad: JobGraph) -> str:
    """The one problem of the graph."""
    problems = problem_texts(bad)
    assert len(problems) == 1, problems
    return problems[0]


def program(*, file: str = "job.py", engine: EngineKind = EngineKind.SHARED) -> JobGraph:
    made = graph(step("main", Program(file=file)), artifacts=(artifact("job.py", ArtifactKind.FILE),))
    return structs.replace(made, engine=engine)


def test_a_sound_graph_has_no_problems() -> None:
    """A graph that can be run is accepted as it is."""
    assert problem_texts(FINE) == []
    assert check_graph(FINE) == FINE


def test_a_program_is_a_sound_graph() -> None:
    """One program, on the shared engine or on one of its own."""
    assert problem_texts(program()) == problem_texts(program(engine=EngineKind.DEDICATED)) == []


@settings(max_examples=40)
@given(acyclic_graphs())
def test_a_checked_graph_is_in_topological_order(drawn: JobGraph) -> None:
    """Once accepted, inputs come before their consumers, whatever order they were written in."""
    ended = graph(*drawn.vertices, result("top", drawn.vertices[0].name))

    names = [vertex.name for vertex in check_graph(ended).vertices]

    assert sorted(names) == sorted(vertex.name for vertex in ended.vertices)
    for vertex in ended.vertices:
        assert all(names.index(name) < names.index(vertex.name) for name in vertex.inputs)


def test_a_cycle_is_reported_in_the_direction_of_the_rows() -> None:
    """The steps of a cycle are named one after the other, as rows would flow."""
    bad = graph(sql("a", "c"), sql("b", "a"), sql("c", "b"), sink("out", "c"))

    assert only(bad) == "step 'a', field 'inputs': the steps form a cycle: a -> b -> c -> a"


def test_a_step_that_reads_itself_is_a_cycle() -> None:
    """The smallest cycle is one too."""
    assert "form a cycle: a -> a" in only(graph(sql("a", "a"), sink("out", "a")))


def test_a_dangling_input_comes_with_the_nearest_name() -> None:
    """A misspelt input is reported with the name that was probably meant."""
    bad = graph(source("orders"), sql("clean", "order"), sink("out", "clean"))

    assert only(bad) == "step 'clean', field 'inputs': there is no step 'order'; did you mean 'orders'?"


def test_a_dangling_input_without_a_near_name_has_no_suggestion() -> None:
    """Without a similar name there is no suggestion."""
    assert only(graph(source("orders"), sink("out", "xyz"))) == "step 'out', field 'inputs': there is no step 'xyz'"


def test_an_input_without_output_is_refused() -> None:
    """No step can read from a sink or a result."""
    bad = graph(source("a"), sink("out", "a"), sql("b", "out"), result("top", "b"))

    assert only(bad) == "step 'b', field 'inputs': step 'out' has no output to read from"


def test_duplicate_names_are_refused() -> None:
    """One name is one step."""
    assert only(graph(source("a"), source("a"), sink("out", "a"))) == "step 'a': there are 2 steps of this name"


def test_names_that_spark_cannot_distinguish_are_refused() -> None:
    """Views are not case-sensitive."""
    bad = graph(source("orders"), source("Orders"), sink("out", "orders"))

    assert only(bad) == "step 'Orders': Spark cannot tell its view from that of step 'orders'"


@pytest.mark.parametrize("name", ["1st", "a-b", "a b", "a.b", "näme", "a`b", "x" * 129, "a\n"])
def test_names_that_cannot_be_views_are_refused(name: str) -> None:
    """Each step is a view named as it is, so its name must be one that SQL takes unquoted."""
    assert "cannot be a SQL view" in only(graph(source(name), sink("out", name)))


def test_an_empty_step_name_is_refused() -> None:
    """A step needs a name."""
    assert only(graph(source(""), sink("out", ""))) == "step '': a step needs a name"


@pytest.mark.parametrize("name", ["", "  ", "\n"])
def test_a_job_without_a_name_is_refused(name: str) -> None:
    """A job needs a name, too."""
    assert only(structs.replace(FINE, name=name)) == "job, field 'name': the job needs a name"


def test_a_job_name_is_printable() -> None:
    """A name with control characters, which a terminal would interpret, is refused and shown escaped."""
    assert "'a\\x1b[2Jb' has characters that cannot be printed" in only(structs.replace(FINE, name="a\x1b[2Jb"))


@pytest.mark.parametrize("value", [0, -1, MAX_PARALLELISM + 1, 10**30])
def test_parallelism_out_of_range_is_refused(value: int) -> None:
    """On a step and on the job."""
    bound = f"must be from 1 to {MAX_PARALLELISM}, not {value}"

    assert only(structs.replace(FINE, parallelism=value)) == f"job, field 'parallelism': {bound}"
    assert only(graph(source("a", parallelism=value), sink("out", "a"))) == f"step 'a', field 'parallelism': {bound}"


@pytest.mark.parametrize("value", [1, MAX_PARALLELISM])
def test_parallelism_within_range_is_accepted(value: int) -> None:
    """The bounds themselves are allowed."""
    assert problem_texts(structs.replace(FINE, parallelism=value)) == []


def test_the_steps_of_a_region_agree_on_a_parallelism() -> None:
    """One task has one parallelism; the steps that disagree are named with what they want."""
    bad = graph(source("a", parallelism=2), sql("b", "a"), sink("out", "b", parallelism=4))

    assert only(bad) == (
        "step 'a', field 'parallelism': the steps of one region must agree on a parallelism, but: a=2, out=4"
    )


def test_regions_of_one_job_may_differ_in_parallelism() -> None:
    """A blocking exchange separates them."""
    assert problem_texts(graph(blocking(source("a", parallelism=2)), sink("out", "a", parallelism=4))) == []


def test_sinks_and_results_have_exactly_one_input() -> None:
    """A sink without input, or with two, says how many it has."""
    bad = graph(source("a"), source("b"), sink("none"), sink("two", "a", "b"), result("top"))

    assert problem_texts(bad) == [
        "step 'none', field 'inputs': a sink needs exactly one input, not 0",
        "step 'two', field 'inputs': a sink needs exactly one input, not 2",
        "step 'top', field 'inputs': a result needs exactly one input, not 0",
    ]


def test_sources_and_programs_have_no_inputs() -> None:
    """What reads from outside does not read from steps."""
    assert only(graph(source("a"), step("b", Source(table="t"), "a"), sink("out", "b"))) == (
        "step 'b', field 'inputs': a source has no inputs"
    )
    bad = graph(step("a", Program(file="job.py"), "a"), artifacts=(artifact("job.py"),))
    assert "step 'a', field 'inputs': a program has no inputs" in problem_texts(bad)


def test_a_program_stands_alone() -> None:
    """A program is a job of its own."""
    bad = graph(step("main", Program(file="job.py")), source("a"), artifacts=(artifact("job.py"),))

    assert only(bad) == "step 'main': a program is a job of its own: it cannot have other steps beside it"


def test_the_file_of_a_program_must_be_an_artifact() -> None:
    """It is named among the artifacts of the job."""
    assert only(program(file="other.py")) == (
        "step 'main', field 'program': the file 'other.py' is not among the job's artifacts"
    )


def test_a_graph_may_have_a_dedicated_engine() -> None:
    """It is what the message about static Spark settings advises."""
    assert not list(problems_of(structs.replace(FINE, engine=EngineKind.DEDICATED)))


def test_a_job_without_steps_or_without_outputs_is_refused() -> None:
    """There must be something to do."""
    assert only(graph()) == "job, field 'steps': the job has no steps"
    assert only(graph(source("a"))) == "job, field 'steps': nothing to do: the job has neither a sink nor a result"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Source(), "needs a format (with a path, where it has one) or a table"),
        (Source(table="t", format="csv", paths=("in",)), "give either a table, or a format with its path, not both"),
        (Source(table="t", schema="a INT"), "a table has its own schema"),
        (Source(format="lib:"), "'lib:' does not have the form 'package.module:Class' of a data source in Python"),
        (Source(format="parquet"), "the format 'parquet' needs a path"),
        (Source(format="csv", paths=("in", " ")), "the path is empty"),
        (Source(table=""), "the table is empty"),
    ],
)
def test_sources_that_cannot_be_read_are_refused(operation: Source, message: str) -> None:
    """A source names one thing to read."""
    assert only(graph(step("a", operation), sink("out", "a"))) == f"step 'a', field 'source': {message}"


@pytest.mark.parametrize(
    "operation",
    [
        Source(table="db.orders"),
        Source(format="jdbc", options={"url": "jdbc:…", "dbtable": "t"}),
        Source(format="parquet", options={"path": "in"}),
        Source(format="csv", paths=("in",), schema="a INT"),
    ],
)
def test_any_format_that_spark_reads_may_be_named(operation: Source) -> None:
    """What needs no path needs none here either."""
    assert problem_texts(graph(step("a", operation), sink("out", "a"))) == []


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (Sink(), "needs a format (with a path, where it has one) or a table"),
        (Sink(table="t", path="out"), "give either a table or a path, not both"),
        (Sink(format="parquet"), "the format 'parquet' needs a path"),
        (
            Sink(format="CSV", options={"path": "out"}),
            "the format 'CSV' needs a path: give it as 'path', not as an option",
        ),
        (Sink(format="parquet", path=" "), "the path is empty"),
        (Sink(format="", path="out"), "the format is empty"),
        (Sink(format="csv", path="out", partition_by=("day", "k", "day")), "partitions by 'day' more than once"),
    ],
)
def test_sinks_that_cannot_be_written_are_refused(operation: Sink, message: str) -> None:
    """A sink names one place to write to; a file format's place is its path, so that it can be staged there."""
    assert only(graph(source("a"), step("out", operation, "a"))) == f"step 'out', field 'sink': {message}"


@pytest.mark.parametrize("same", ["out/x", "out/x/", "out//x", "out/./x", "out/y/../x"])
def test_two_sinks_to_one_path_are_refused(same: str) -> None:
    """However the path is written."""
    bad = graph(source("a"), sink("one", "a", path="out/x"), sink("two", "a", path=same))

    assert only(bad) == "step 'two', field 'sink': writes to the same path as step 'one'"


def test_a_sink_inside_the_path_of_another_is_refused() -> None:
    """Overwriting the outer one would remove the inner one's files as old content."""
    bad = graph(source("a"), sink("inner", "a", path="out/x/deep"), sink("outer", "a", path="out/x"))

    assert only(bad) == "step 'inner', field 'sink': writes inside the path of step 'outer'"


def test_neighbouring_paths_are_accepted() -> None:
    """A common beginning of two names is no common directory."""
    assert problem_texts(graph(source("a"), sink("one", "a", path="out/x"), sink("two", "a", path="out/x2"))) == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (Function(), "needs either 'module:name' or a pickled function"),
        (Function(reference="lib:f", pickle="f.pickle"), "needs either 'module:name' or a pickled function"),
        (Function(pickle="gone.pickle"), "the pickled function 'gone.pickle' is not among the artifacts"),
        (Function(reference="lib.f"), "'lib.f' does not have the form 'package.module:name'"),
        (Function(reference="lib:"), "'lib:' does not have the form 'package.module:name'"),
    ],
)
def test_functions_that_cannot_be_found_are_refused(function: Function, message: str) -> None:
    """A function is either imported by reference or opened from an artifact."""
    bad = graph(source("a"), step("f", function, "a"), sink("out", "f"), artifacts=(artifact("f.pickle"),))

    assert only(bad) == f"step 'f', field 'function': {message}"


@pytest.mark.parametrize("limit", [0, -1, MAX_RESULT_ROWS + 1])
def test_a_result_keeps_a_bounded_number_of_rows(limit: int) -> None:
    """More rows belong into a sink."""
    message = only(graph(source("a"), result("top", "a", limit=limit)))

    assert message.startswith("step 'top', field 'result': ")
    assert str(limit) in message
    assert "sink" in message


def test_an_empty_query_is_refused() -> None:
    """A query needs text."""
    bad = graph(step("q", Sql(query=" \n")), sink("out", "q"))

    assert only(bad) == "step 'q', field 'sql': the query is empty"


def test_exchange_and_cache_belong_to_steps_with_an_output() -> None:
    """No step reads from a sink."""
    bad = graph(source("a"), blocking(sink("one", "a")), structs.replace(sink("two", "a"), cache=True))

    assert problem_texts(bad) == [
        "step 'one', field 'exchange': only a step that others read from has an exchange",
        "step 'two', field 'cache': only a step that others read from can be cached",
    ]


@pytest.mark.parametrize("name", ["", "..", "../lib.zip", "/etc/passwd", "a/../../b", "a\nb"])
def test_artifacts_stay_in_their_directory(name: str) -> None:
    """An artifact's name cannot lead out of the directory that it is unpacked to."""
    bad = structs.replace(FINE, artifacts=(artifact(name),))

    assert only(bad) == (f"job, field 'artifacts': {name!r} cannot be the name of an artifact: give a relative path")


def test_two_artifacts_of_one_name_are_refused() -> None:
    """One name is one file."""
    bad = structs.replace(FINE, artifacts=(artifact("lib.zip"), artifact("lib.zip")))

    assert only(bad) == "job, field 'artifacts': there are 2 artifacts called 'lib.zip'"


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 10**40])
def test_parameters_fit_into_64_bits(value: int) -> None:
    """Larger numbers can be neither bound by Spark nor stored."""
    bad = structs.replace(FINE, params={"n": value})

    assert only(bad) == "job, field 'params': 'n' does not fit into 64 bits; send it as text"


def test_parameters_of_every_kind_are_accepted() -> None:
    """Texts, numbers, truth and nothing."""
    params = {"a": "x", "b": (1 << 63) - 1, "c": -(1 << 63), "d": 0.5, "e": True, "f": None}

    assert problem_texts(structs.replace(FINE, params=params)) == []


def test_all_problems_are_reported_at_once() -> None:
    """A user can fix a file in one go."""
    bad = structs.replace(
        graph(source("1a"), sql("b", "nowhere"), sink("out"), result("top", "b", limit=0)),
        name="",
        parallelism=0,
    )

    with pytest.raises(Invalid) as caught:
        check_graph(bad)

    fields = [line.partition(":")[0] for line in caught.value.problems]
    assert fields == [
        "job, field 'name'",
        "job, field 'parallelism'",
        "step '1a'",
        "step 'b', field 'inputs'",
        "step 'out', field 'inputs'",
        "step 'top', field 'result'",
    ]
    assert all(line in caught.value.public for line in caught.value.problems)


def test_a_problem_has_its_path_in_the_document() -> None:
    """Its path leads from the document's root to the field, so that a client can give the line."""
    assert Problem(message="m", step="a", field="inputs").path == ("steps", "a", "inputs")
    assert Problem(message="m", step="a").path == ("steps", "a")
    assert Problem(message="m", field="name").path == ("name",)
    assert Problem(message="m").path == ()
    assert str(Problem(message="m")) == "job: m"


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        (
            {"a b": "x"},
            "job, field 'labels': 'a b' cannot be the key of a label: use letters (a-z), digits, '-', ",
        ),
        ({"": "x"}, "job, field 'labels': '' cannot be the key of a label"),
        ({"team": "a,b"}, "job, field 'labels': the value 'a,b' of 'team' has a comma, or characters that"),
        (
            {"team": "a\nb"},
            "job, field 'labels': the value 'a\\nb' of 'team' has a comma, or characters that",
        ),
    ],
)
def test_labels_that_no_filter_could_name_are_refused(labels: dict[str, str], text: str) -> None:
    """A filter separates labels by commas, and key from value by the first equals sign."""
    assert only(structs.replace(FINE, labels=labels)).startswith(text)
    assert problem_texts(structs.replace(FINE, labels={"team/x.y-z": "Größe = 7", "flag": ""})) == []


@pytest.mark.parametrize(
    ("query", "unbound"),
    [
        ("SELECT * FROM a WHERE day = :dya AND n < :n", ["no parameter 'dya' for :dya; did you mean 'day'?"]),
        ("SELECT :day, ':x', \":y\", `:z` -- :u\n/* :v */ FROM a", []),
        ("SELECT a::int, v:price.cents, CAST(s AS STRUCT<x:int, y: int>), m['k']:z FROM a", []),
        ("SELECT f(:day,:nn) WHERE 1>:n", ["no parameter 'nn' for :nn; did you mean 'n'?"]),
        ("SELECT 'not closed :x", []),
    ],
)
def test_a_parameter_of_a_query_that_the_job_does_not_have_is_found_before_submission(
    query: str, unbound: list[str]
) -> None:
    made = structs.replace(graph(step("q", Sql(query=query))), params={"day": "x", "n": 1})
    assert [problem.message for problem in submission_problems(made)] == unbound


def test_parameters_are_found_in_linear_time() -> None:
    made = graph(step("q", Sql(query="/*" * 200_000 + "'" * 200_001)))
    began = time.process_time()
    assert list(submission_problems(made)) == []
    assert time.process_time() - began < 2
