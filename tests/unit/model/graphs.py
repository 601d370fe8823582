"""Graphs for tests of the model: short ways to write a step, and random graphs without cycles."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st
from msgspec import structs

from flintlock.model.ids import BlobKey, JobId, StepName
from flintlock.model.jobgraph import Artifact, ArtifactKind, Exchange, JobGraph, JobVertex, vertex_id
from flintlock.model.operations import Operation, Result, Sink, Source, Sql

JOB: Final = JobId("0123456789abcdef0123456789abcdef")
BLOB: Final = BlobKey("sha256-" + "ab" * 32)


def step(
    name: str,
    operation: Operation,
    *inputs: str,
    exchange: Exchange = Exchange.PIPELINED,
    parallelism: int | None = None,
    cache: bool = False,
) -> JobVertex:
    return JobVertex(
        id=vertex_id(JOB, name),
        name=StepName(name),
        operation=operation,
        inputs=tuple(StepName(source) for source in inputs),
        exchange=exchange,
        parallelism=parallelism,
        cache=cache,
    )


def source(name: str, *, exchange: Exchange = Exchange.PIPELINED, parallelism: int | None = None) -> JobVertex:
    return step(name, Source(format="parquet", paths=("in",)), exchange=exchange, parallelism=parallelism)


def sql(name: str, *inputs: str, exchange: Exchange = Exchange.PIPELINED, parallelism: int | None = None) -> JobVertex:
    return step(name, Sql(query="SELECT 1"), *inputs, exchange=exchange, parallelism=parallelism)


def sink(name: str, *inputs: str, path: str = "", parallelism: int | None = None) -> JobVertex:
    return step(name, Sink(format="parquet", path=path or f"out/{name}"), *inputs, parallelism=parallelism)


def result(name: str, *inputs: str, limit: int = 20) -> JobVertex:
    return step(name, Result(limit=limit), *inputs)


def blocking(vertex: JobVertex) -> JobVertex:
    return structs.replace(vertex, exchange=Exchange.BLOCKING)


def artifact(name: str, kind: ArtifactKind = ArtifactKind.PY_FILE) -> Artifact:
    return Artifact(name=name, blob=BLOB, size=1, kind=kind)


def graph(*vertices: JobVertex, artifacts: tuple[Artifact, ...] = ()) -> JobGraph:
    return JobGraph(job_id=JOB, name="job", vertices=vertices, artifacts=artifacts)


@st.composite
def acyclic_graphs(draw: st.DrawFn) -> JobGraph:
    """Draw a graph without cycles, its steps written in any order, with exchanges of both kinds."""
    count = draw(st.integers(1, 12))
    exchanges = st.sampled_from(Exchange)
    vertices = [
        sql(
            f"s{number}",
            *(f"s{before}" for before in draw(st.lists(st.integers(0, number - 1), max_size=3)) if number),
            exchange=draw(exchanges),
        )
        if number
        else source("s0", exchange=draw(exchanges))
        for number in range(count)
    ]
    return graph(*draw(st.permutations(vertices)))
