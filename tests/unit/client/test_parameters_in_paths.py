"""Paths are made absolute before a job is sent, and keep their parameters, so that a rerun can fill them in again."""

from __future__ import annotations

from pathlib import Path

import pytest

from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, finish
from flintlock.model.checking.jobspec import read_spec
from flintlock.model.checking.rerun import rerun_graph
from flintlock.model.ids import JobId
from flintlock.model.operations import Sink

AGAIN = JobId("b" * 32)


def package(path: str, value: str) -> JobPackage:
    steps = {
        "n": {"sql": "SELECT 1 AS one"},
        "out": {"sink": {"format": "parquet", "path": path}, "inputs": ["n"]},
    }
    spec, problems = read_spec({"name": "x", "params": {"p": value}, "steps": steps})
    assert spec is not None, problems
    return finish(spec, (), AS_WRITTEN, lambda _: "")


def target(packaged: JobPackage, value: str | None = None) -> str | None:
    """Return where the sink writes; with `value`, where it writes when the job is run again with it."""
    graph, problems = rerun_graph(packaged.graph, AGAIN, {} if value is None else {"p": value})
    assert problems == []
    operation = graph.vertex("out").operation
    assert isinstance(operation, Sink)
    return operation.path


@pytest.mark.parametrize(
    ("path", "value", "other"),
    [
        ("out/${p}", "monday", "tuesday"),
        ("${p}/out", "monday", "tuesday"),
        ("${p}/out", "/data", "/other"),
        ("/data/${p}", "monday", "tuesday"),
        ("s3a://bucket/${p}", "monday", "tuesday"),
        ("./x/../${p}", "monday", "tuesday"),
    ],
)
def test_a_rerun_writes_where_a_new_submission_would(
    path: str, value: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, fresh = package(path, value), package(path, other)
    assert first.spec.fixed_params == ()
    monkeypatch.chdir("/")
    assert target(first, other) == target(fresh)
    assert target(first) == target(package(path, value)) or not path.startswith(("/", "s3a"))


def test_a_parameter_that_cannot_be_filled_in_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    packaged = package("${p}/out", "../elsewhere/")
    assert packaged.spec.fixed_params == ("p",)
    assert target(packaged) == str(tmp_path.parent / "elsewhere" / "out")
    _, problems = rerun_graph(packaged.graph, AGAIN, {"p": "x"})
    assert "flintlock run" in str(problems[0])
