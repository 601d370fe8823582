"""Building the frames of steps, on a backend that only records its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import cloudpickle
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import Artifact, ArtifactKind, BlobKey, JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Function, Operation, Result, Source, Sql
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.artifacts import Artifacts
from flintlock.spark.region.errors.failures import TaskError
from flintlock.spark.region.plan import MAX_PATHS, StepFrames, bind

JOB = JobId("ab" * 16)


class FakeFrame(DataFrame):
    """A frame that records how it was made."""

    def __new__(cls, made: str) -> Self:
        frame = object.__new__(cls)
        frame.made = made
        frame.cached = False
        return frame

    made: str
    cached: bool

    def __init__(self, made: str) -> None:
        pass

    @property
    def schema(self) -> StructType:
        return StructType()

    def cache(self) -> FakeFrame:
        self.cached = True
        return self

    def unpersist(self, blocking: bool = False) -> FakeFrame:
        self.cached = False
        return self


class FakeReader:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., FakeReader]:
        def record(*args: Any, **kwargs: Any) -> FakeReader:
            if args or kwargs:
                self.calls.append(f"{name}({', '.join([*map(repr, args), *(f'{k}={v}' for k, v in kwargs.items())])})")
            return self

        return record

    def load(self, paths: list[str] | str | None = None) -> FakeFrame:
        return FakeFrame(".".join([*self.calls, f"load({paths})"]))

    def table(self, name: str) -> FakeFrame:
        return FakeFrame(f"table({name})")

    def parquet(self, path: str) -> FakeFrame:
        return FakeFrame(f"parquet({path})")


class FakeSpark:
    @property
    def read(self) -> FakeReader:
        return FakeReader()


class FakeBackend:
    """Returns frames that describe the calls that made them."""

    def __init__(self) -> None:
        self.spark: Any = FakeSpark()
        self.named_views: list[str] = []

    def sql(self, query: str, views: Sequence[tuple[str, DataFrame]], params: Mapping[str, object]) -> DataFrame:
        return FakeFrame(f"sql({query}; {', '.join(name for name, _ in views)}; {dict(params)})")

    def as_view(self, frame: DataFrame, name: str) -> DataFrame:
        self.named_views.append(name)
        return FakeFrame(f"{name} as {made(frame)}")


def vertex(name: str, operation: Operation, *inputs: str, **more: Any) -> JobVertex:
    return JobVertex(
        id=vertex_id(JOB, name), name=StepName(name), operation=operation, inputs=tuple(map(StepName, inputs)), **more
    )


def frames_of(tmp_path: Path, *vertices: JobVertex, backend: FakeBackend | None = None, **more: Any) -> StepFrames:
    inputs = more.pop("inputs", {})
    graph = JobGraph(job_id=JOB, name="j", vertices=vertices, **more)
    fake: Any = backend or FakeBackend()
    return StepFrames(fake, graph, Artifacts(tmp_path), inputs)


def made(frame: DataFrame) -> str:
    assert isinstance(frame, FakeFrame)
    return frame.made


def test_a_source_is_read_with_its_options(tmp_path: Path) -> None:
    source = Source(format="csv", paths=("a", "b"), schema="x INT", options={"header": "true"})
    frames = frames_of(tmp_path, vertex("s", source), vertex("t", Source(table="db.t")))
    assert made(frames.get(StepName("s"))) == "options(header=true).format('csv').schema('x INT').load(['a', 'b'])"
    assert made(frames.get(StepName("t"))) == "table(db.t)"


def test_views_are_in_topological_order_and_parameters_are_passed(tmp_path: Path) -> None:
    frames = frames_of(
        tmp_path,
        vertex("a", Source(table="a")),
        vertex("b", Sql(query="B"), "a"),
        vertex("c", Sql(query="C"), "b", "a"),
        params={"day": 1},
    )
    assert made(frames.get(StepName("c"))) == "sql(C; a, b; {'day': 1})"


def test_a_sql_step_that_is_a_command_is_refused(tmp_path: Path) -> None:
    frames = frames_of(tmp_path, vertex("x", Sql(query="DROP TABLE t")))
    with pytest.raises(TaskError, match="DROP is a command") as caught:
        frames.get(StepName("x"))
    assert (caught.value.kind, caught.value.step) == (FailureKind.ANALYSIS, "x")


def test_a_relative_path_in_a_query_or_an_option_starts_at_the_directory_of_the_job(tmp_path: Path) -> None:
    query = Sql(query="SELECT * FROM csv.`in/a.csv`")
    frames = frames_of(tmp_path, vertex("x", query), directory=str(tmp_path))
    assert made(frames.get(StepName("x"))) == f"sql(SELECT * FROM csv.`{tmp_path}/in/a.csv`; ; {{}})"
    assert frames.sources().queries == {"x": f"SELECT * FROM csv.`{tmp_path}/in/a.csv`"}  # offsets are those of Spark

    source = Source(format="csv", options={"path": "in/a.csv", "sep": ";"})
    frames = frames_of(tmp_path, vertex("s", source), directory=str(tmp_path))
    assert made(frames.get(StepName("s"))).startswith(f"options(path={tmp_path}/in/a.csv, sep=;)")
    other = Source(format="iceberg", options={"path": "db.table"})  # the name of a table
    assert "options(path=db.table)" in made(frames_of(tmp_path, vertex("s", other)).get(StepName("s")))

    elsewhere = frames_of(tmp_path, vertex("x", query), directory=str(tmp_path / "elsewhere"))
    with pytest.raises(TaskError, match=r"the path 'in/a\.csv' is relative, and the directory '.*elsewhere'") as caught:
        elsewhere.get(StepName("x"))
    assert (caught.value.kind, elsewhere.current_step) == (FailureKind.CONFIGURATION, "x")


def test_results_of_other_regions_are_read_back(tmp_path: Path) -> None:
    frames = frames_of(
        tmp_path,
        vertex("a", Source(table="a")),
        vertex("b", Sql(query="B"), "a"),
        vertex("r", Result(), "b"),
        inputs={StepName("b"): "/job/b/0"},
    )
    assert made(frames.output(vertex("r", Result(), "b"))) == "__flintlock_b as parquet(/job/b/0)"


def test_rebind_builds_consumers_again(tmp_path: Path) -> None:
    frames = frames_of(
        tmp_path,
        vertex("a", Source(table="a")),
        vertex("b", Sql(query="B"), "a"),
        vertex("c", Sql(query="C"), "b"),
        vertex("d", Sql(query="D"), "a"),
    )
    before = {name: frames.get(StepName(name)) for name in "abcd"}
    frames.rebind(StepName("b"), "/job/b/0")
    after = {name: frames.get(StepName(name)) for name in "abcd"}
    assert {name for name in "abcd" if before[name] is not after[name]} == {"b", "c"}
    assert made(after["b"]) == "__flintlock_b as parquet(/job/b/0)"


def test_a_graph_with_many_paths_gets_views(tmp_path: Path) -> None:
    backend = FakeBackend()
    steps = [vertex("s0", Source(table="t"))]
    steps += [vertex(f"s{n}", Sql(query=f"Q{n}"), f"s{n - 1}", *([f"s{n - 2}"] if n > 1 else [])) for n in range(1, 40)]
    frames = frames_of(tmp_path, *steps, backend=backend)
    frames.get(StepName("s39"))
    assert backend.named_views
    assert len(backend.named_views) <= 39
    assert MAX_PATHS > 8  # a common graph needs none


def test_release_unpersists_cached_frames(tmp_path: Path) -> None:
    backend = FakeBackend()
    frames = frames_of(tmp_path, vertex("a", Source(table="a"), cache=True), backend=backend)
    frame = frames.get(StepName("a"))
    assert isinstance(frame, FakeFrame)
    assert frame.cached
    assert backend.named_views == ["__flintlock_a"]
    frames.release()
    assert not frame.cached


def function_frames(tmp_path: Path, function: object, *, inputs: int = 1) -> StepFrames:
    blob = tmp_path / "blob"
    blob.write_bytes(cloudpickle.dumps(function))
    names = [f"i{n}" for n in range(inputs)]
    graph = JobGraph(
        job_id=JOB,
        name="j",
        vertices=(
            *(vertex(name, Source(table=name)) for name in names),
            vertex("f", Function(pickle="f.pkl"), *names),
        ),
        params={"day": 1},
        artifacts=(Artifact(name="f.pkl", blob=BlobKey("x"), kind=ArtifactKind.PICKLE),),
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    artifacts = Artifacts(scratch)
    artifacts.install(graph, {"f.pkl": str(blob)})
    backend: Any = FakeBackend()
    return StepFrames(backend, graph, artifacts)


@pytest.fixture(autouse=True)
def clean_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.parametrize("returned", [None, 3, [1]])
def test_a_step_returns_a_dataframe(tmp_path: Path, returned: object) -> None:
    def wrong(_: DataFrame) -> object:
        return returned

    frames = function_frames(tmp_path, wrong)
    with pytest.raises(TaskError, match="a step returns a DataFrame") as caught:
        frames.get(StepName("f"))
    assert (caught.value.kind, caught.value.step) == (FailureKind.USER_CODE, "f")


def test_current_step_names_the_step_that_raised(tmp_path: Path) -> None:
    def broken(_: DataFrame) -> DataFrame:
        raise LookupError("x")

    frames = function_frames(tmp_path, broken)
    with pytest.raises(LookupError):
        frames.get(StepName("f"))
    assert frames.current_step == "f"
    assert "f" in frames.sources().functions


STEP = vertex("f", Function(reference="a:b"), "x", "y")
SPARK = object()


def bound(function: Callable[..., object], *inputs: object) -> object:
    arguments, keywords = bind(STEP, function, inputs, {"day": 1}, SPARK)
    return function(*arguments, **keywords)


def test_inputs_go_by_position_and_the_rest_by_name() -> None:
    def plain(a: object, b: object) -> object:
        return a, b

    def with_params(a: object, b: object, params: dict[str, object]) -> object:
        return a, b, params

    def keyword_only(a: object, b: object, *, spark: object) -> object:
        return a, b, spark

    def spark_first(spark: object, a: object, b: object) -> object:
        return spark, a, b

    def rest(*frames: object, params: object = None) -> object:
        return frames, params

    def named_like_ours(params: object, spark: object) -> object:
        return params, spark

    def with_default(a: object, b: object, c: object = 3) -> object:
        return a, b, c

    assert bound(plain, 1, 2) == (1, 2)
    assert bound(with_params, 1, 2) == (1, 2, {"day": 1})
    assert bound(keyword_only, 1, 2) == (1, 2, SPARK)
    assert bound(spark_first, 1, 2) == (SPARK, 1, 2)
    assert bound(rest, 1, 2) == ((1, 2), {"day": 1})
    assert bound(named_like_ours, 1, 2) == (1, 2)
    assert bound(with_default, 1, 2) == (1, 2, 3)


def test_a_source_function_needs_no_input() -> None:
    def source(spark: object) -> object:
        return spark

    assert bound(source) is SPARK


def test_too_few_parameters_are_reported_with_the_signature() -> None:
    def single(a: object) -> object:
        return a

    with pytest.raises(TaskError, match=r"2 inputs \(x, y\), but its function is single\(a") as caught:
        bound(single, 1, 2)
    assert caught.value.step == "f"


def test_an_error_of_a_data_source_names_its_source_step(tmp_path: Path) -> None:
    class UnreadableFile(Exception):
        __module__ = "pyspark.errors.exceptions.connect"

    frames = frames_of(
        tmp_path,
        vertex("orders", Source(format="parquet", paths=("/in/orders.csv",))),
        vertex("days", Source(format="csv", paths=("/in/days.csv",))),
        vertex("joined", Sql(query="SELECT 1"), "orders", "days"),
    )
    error = UnreadableFile("file:/in/orders.csv is not a Parquet file")
    assert frames.find_failed_step(StepName("joined"), error) == ("orders", error)
    other = UnreadableFile("lost executor")
    assert frames.find_failed_step(StepName("joined"), other) is None
    assert frames.find_failed_step(StepName("orders"), error) == ("orders", error), "a source may be the only step"
