"""What a document costs is bounded: each limit is named, suggestions and reports are cut, no check is quadratic."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from msgspec import structs
from tests.unit.model.graphs import artifact, blocking, graph, result, sink, source, sql, step

from flintlock.config.configuration import Scope, config_problems
from flintlock.config.job_problems import job_problems
from flintlock.config.options import OPTIONS
from flintlock.model.checking import limits
from flintlock.model.checking.graphcheck import check_graph, problems_of
from flintlock.model.checking.jobspec import draft_graph, read_spec
from flintlock.model.checking.problems import MAX_FOUND, MAX_REPORTED, Problem, reported
from flintlock.model.checking.suggestions import MAX_SUGGESTIONS, did_you_mean
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import JobGraph, Resources
from flintlock.model.jobs import JobSnapshot
from flintlock.model.operations import Sink
from flintlock.model.regions import region_resources, regions_of
from flintlock.model.states import JobStatus

FINE = graph(source("orders"), sink("out", "orders"))
CPU_S = 2.0  # of this thread; the quadratic checks needed 10 s and more


def spent_s(work: Callable[[], object]) -> float:
    """The CPU time of this thread: other processes on the machine do not count."""
    begun_s = time.thread_time()
    work()
    return time.thread_time() - begun_s


def texts(bad: JobGraph) -> list[str]:
    return [str(problem) for problem in problems_of(bad)]


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (structs.replace(FINE, name="n" * 256), "job, field 'name': has 256 characters; at most 255 are allowed"),
        (
            structs.replace(FINE, config={f"spark.k{n}": "" for n in range(1001)}),
            "job, field 'config': there are 1001 settings; at most 1000 are allowed",
        ),
        (
            structs.replace(FINE, params={f"p{n}": n for n in range(1001)}),
            "job, field 'params': there are 1001 parameters; at most 1000 are allowed",
        ),
        (
            structs.replace(FINE, artifacts=tuple(artifact(f"a{n}") for n in range(1001))),
            "job, field 'artifacts': there are 1001 artifacts; at most 1000 are allowed",
        ),
        (
            structs.replace(FINE, artifacts=(artifact("a" * 1025),)),
            f"job, field 'artifacts': the name {'a' * 127 + '…'!r} has 1025 characters; at most 1024 are allowed",
        ),
        (
            structs.replace(FINE, params={"p" * 256: 1}),
            f"job, field 'params': the key {'p' * 127 + '…'!r} has 256 characters; at most 255 are allowed",
        ),
        (
            structs.replace(FINE, params={"p": "x" * (limits.MAX_VALUE + 1)}),
            "job, field 'params': the value of 'p' has 262145 characters; at most 262144 are allowed",
        ),
        (
            structs.replace(FINE, labels={f"k{n}": "" for n in range(17)}),
            "job, field 'labels': there are 17 labels; at most 16 are allowed",
        ),
        (
            structs.replace(FINE, labels={"team": "x" * 64}),
            "job, field 'labels': the value of 'team' has 64 characters; at most 63 are allowed",
        ),
        (
            graph(*(source(f"s{n}") for n in range(1001))),
            "job, field 'steps': there are 1001 steps; at most 1000 are allowed",
        ),
        (
            graph(source("orders"), sql("all", *["orders"] * 1001), sink("out", "all")),
            "step 'all', field 'inputs': has 1001 inputs; at most 1000 are allowed",
        ),
        (
            graph(source("orders"), *(sql(f"s{n}", *["orders"] * 1000) for n in range(11))),
            "job, field 'steps': have 11000 inputs together; at most 10000 are allowed",
        ),
    ],
)
def test_a_job_beyond_a_limit_is_refused_with_the_limit(bad: JobGraph, text: str) -> None:
    """The problem names the place, how much there is, and how much is allowed; nothing else is checked."""
    assert texts(bad) == [text]


def test_a_job_at_its_limits_is_accepted() -> None:
    """As many steps, inputs and characters as are allowed."""
    steps = [source("s0"), *(sql(f"s{n}", *[f"s{n - 1}"] * 10) for n in range(1, 999)), sink("out", "s998")]
    full = structs.replace(graph(*steps), name="n" * 255, params={f"p{n}": n for n in range(1000)})

    assert texts(full) == []


def test_a_document_of_misspelt_names_is_checked_in_bounded_time() -> None:
    """A thousand dangling inputs, unknown options, unknown parameters and unknown keys: suggestions for the first."""
    names = [f"a_step_with_a_long_name_{n:04}" for n in range(900)]
    steps = {name: {"sql": "SELECT 1", "inputs": [name.replace("long", "lonq")]} for name in names}
    paths = {f"read_{n}": {"source": {"format": "csv", "path": f"${{day_{n}}}"}} for n in range(90)}
    document = {
        "name": "job",
        "params": {f"dya_{n}": n for n in range(900)},
        "config": {f"restart-strateqy.attempts.{n}": "1" for n in range(900)},
        "steps": {**steps, **paths},
    }
    found: list[Problem] = []

    def check() -> None:
        spec, problems = read_spec(document)
        assert spec is not None, problems
        drafted, unfilled = draft_graph(spec, JobId("0" * 32), {})
        found.extend([*unfilled, *job_problems(drafted)])

    assert spent_s(check) < CPU_S
    assert len(found) == 90 + 900 + 900 + 1  # and nothing to do: there is no output
    hints = [problem for problem in found if "did you mean" in problem.message]
    assert 0 < len(hints) <= 3 * MAX_SUGGESTIONS
    assert "did you mean 'a_step_with_a_long_name_0000'?" in next(
        problem.message for problem in found if problem.step == names[0]
    )


def test_unknown_keys_are_looked_for_up_to_a_bound() -> None:
    """A document of nothing but unknown keys: the first are reported, the rest is counted up to a bound."""
    problems: tuple[object, ...] = ()

    def check() -> None:
        nonlocal problems
        _, problems = read_spec({f"kee{n}": n for n in range(100_000)})

    assert spent_s(check) < CPU_S
    assert len(problems) == MAX_FOUND
    lines = reported(problems)
    assert len(lines) == MAX_REPORTED + 1
    assert lines[-1] == f"and at least {MAX_FOUND - MAX_REPORTED} more problems"


@pytest.mark.parametrize(("count", "last"), [(100, "problem 99"), (101, "and 1 more problem"), (300, "and 200 more problems")])  # fmt: skip # noqa: E501
def test_a_report_says_how_many_more_problems_there_are(count: int, last: str) -> None:
    """A hundred problems are spelled out."""
    lines = reported(f"problem {n}" for n in range(count))

    assert (len(lines), lines[-1]) == (min(count, 101), last)


def test_what_a_document_says_is_abbreviated_in_a_report() -> None:
    """A name of a megabyte does not come back in the answer."""
    long = "x" * 1_000_000

    lines = [
        str(Problem(step=long, field=long, message=long)),
        *texts(graph(source("orders"), sql("all", long), sink("out", "all"))),
        *(f"{key}: {message}" for key, message in config_problems({"restart": long}, OPTIONS, Scope.JOB)),
    ]

    assert len(lines) == 3
    assert all(len(line) < 2_000 for line in lines)


def test_a_suggestion_compares_a_bounded_number_of_short_names() -> None:
    """Names that are built to be expensive to compare."""
    known = ["ab" * 30 + str(n) for n in range(100_000)]

    assert spent_s(lambda: did_you_mean("ba" * 31, known)) < CPU_S
    assert did_you_mean("x" * 1000, ["x" * 1001]) == ""
    assert did_you_mean("Ordres", ["lines", "orders"]) == "did you mean 'orders'?"


def test_looking_at_every_step_of_a_large_job_takes_linear_time() -> None:
    """What is done for each step when a job is planned, deployed and listed does not search through all steps."""
    count = 20_000  # more than is accepted now: an earlier version may have stored it
    last = sql("last", *(f"s{n}" for n in range(count)))
    needs = Resources(cpu=1.0)
    steps = [structs.replace(each, resources=needs) for each in (*(sql(f"s{n}") for n in range(count)), last)]
    large = graph(*steps, result("top", "last"))

    def work() -> None:
        regions = regions_of(large)
        assert region_resources(large, regions[0]) == needs
        snapshot = JobSnapshot(
            graph=large,
            regions=regions,
            status=JobStatus.RUNNING,
            timestamps={},
            end_ms=-1,
            last_modified_ms=0,
            executions=(),
        )
        assert all(snapshot.regions_with(vertex.name) == regions for vertex in large.vertices)
        assert len(snapshot.readers[regions[0].id]) == count
        assert snapshot.summary().tasks.total == count + 2

    assert spent_s(work) < CPU_S


def test_regions_that_wait_for_each_other_are_merged_in_linear_time() -> None:
    """A thousand pairs of groups with a blocking exchange around a pipelined path."""
    steps = [
        each
        for n in range(1_000)
        for each in (
            source(f"a{n}"),
            blocking(sql(f"b{n}", f"a{n}")),
            sql(f"c{n}", f"b{n}", f"a{n}"),
            sink(f"d{n}", f"c{n}"),
        )
    ]

    assert spent_s(lambda: regions_of(graph(*steps))) < CPU_S
    assert [region.steps for region in regions_of(graph(*steps))[:2]] == [
        ("a0", "b0", "c0", "d0"),
        ("a1", "b1", "c1", "d1"),
    ]


def test_targets_inside_each_other_are_found_in_linear_time() -> None:
    """Deep paths: only the nearest outer target is named."""
    deep = "/".join("d" * 400)
    steps = [source("s"), *(sink(f"t{n}", "s", path=f"out/{n}/{deep}") for n in range(900))]
    nested = [sink("outer", "s", path="out/7"), sink("all", "s", path="./out/")]
    found: list[str] = []

    assert spent_s(lambda: found.extend(texts(graph(*steps, *nested)))) < CPU_S
    assert len(found) == 901
    assert "step 't7', field 'sink': writes inside the path of step 'outer'" in found
    assert "step 't8', field 'sink': writes inside the path of step 'all'" in found
    assert "step 'outer', field 'sink': writes inside the path of step 'all'" in found


@pytest.mark.parametrize(
    ("one", "other", "inside"),
    [
        ("out", "out/a", True),
        ("out", "outer", False),
        (".", "out", True),
        ("/", "/out", True),
        ("s3://b/x", "s3://b/x/y", True),
        ("s3://b/x", "s3://c/x/y", False),
        ("/out", "out/a", False),
    ],
)
def test_a_target_inside_another_is_a_problem(one: str, other: str, *, inside: bool) -> None:
    """By the parts of the path, not by its characters."""
    steps = (source("s"), step("a", Sink(format="csv", path=one), "s"), step("b", Sink(format="csv", path=other), "s"))

    assert texts(graph(*steps)) == (["step 'b', field 'sink': writes inside the path of step 'a'"] if inside else [])


def test_a_step_is_found_by_name() -> None:
    """Also after a graph was copied with other steps."""
    checked = check_graph(FINE)
    assert checked.vertex("orders").name == "orders"
    copy = structs.replace(checked, vertices=(source("others"),))

    assert copy.vertex("others").name == StepName("others")
    with pytest.raises(KeyError):
        copy.vertex("orders")
