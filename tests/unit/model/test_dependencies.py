"""Jars and packages of a job, and the engine that they need."""

from __future__ import annotations

from typing import Any

import pytest

from flintlock.model.checking.graphcheck import problems_of
from flintlock.model.checking.jobspec import draft_graph, read_spec
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, JobGraph

JAR = {"own.jar": Artifact(name="own.jar", blob=BlobKey("sha256-" + "0" * 64))}
QUERY: dict[str, Any] = {"one": {"sql": "SELECT 1 AS x"}, "shown": {"result": {}, "inputs": ["one"]}}
PROGRAM: dict[str, Any] = {"script": {"program": {"file": "script.py"}}}
SCRIPT = {"script.py": Artifact(name="script.py", blob=BlobKey("sha256-" + "1" * 64), kind=ArtifactKind.FILE)}


def graph_of(**more: Any) -> JobGraph:
    spec, problems = read_spec({"name": "j", "steps": QUERY, **more})
    assert spec is not None, problems
    graph, unfilled = draft_graph(spec, JobId("ab" * 16), {**JAR, **SCRIPT})
    assert not unfilled
    return graph


def problems(**more: Any) -> list[str]:
    return [str(problem) for problem in problems_of(graph_of(**more))]


@pytest.mark.parametrize(
    "dependency",
    [
        {"jars": ["own.jar"]},
        {"packages": ["g:a:1"]},
        {"config": {"spark.jars": "/opt/a.jar"}},
        {"config": {"spark.jars.packages": "g:a:1"}},
    ],
)
def test_a_job_with_jars_or_packages_is_given_a_driver_of_its_own(dependency: dict[str, Any]) -> None:
    program = {"steps": PROGRAM, "artifacts": ["script.py"]}

    assert graph_of().engine is EngineKind.SHARED
    assert graph_of(**program).engine is EngineKind.AUTO
    assert graph_of(**dependency).engine is EngineKind.DEDICATED
    assert graph_of(**dependency, engine="auto").engine is EngineKind.DEDICATED
    assert graph_of(**dependency, **program).engine is EngineKind.DEDICATED


@pytest.mark.parametrize(
    ("dependency", "what"),
    [
        ({"jars": ["own.jar"]}, "jars"),
        ({"packages": ["g:a:1"]}, "packages"),
        ({"config": {"spark.jars": "/opt/a.jar"}}, "spark.jars"),
    ],
)
def test_the_shared_engine_refuses_jars_of_one_job_with_the_remedy(dependency: dict[str, Any], what: str) -> None:
    (problem,) = problems(**dependency, engine="shared")

    assert problem == (
        f"job, field 'engine': the shared engine is already running and cannot be given {what} for one job: choose the"
        " engine 'dedicated', or set spark.jars or spark.jars.packages for the whole cluster"
    )


@pytest.mark.parametrize("package", ["h2", "g:a", "g:a:1:x", "g:a:1,h:b:2", "g: a:1", "::"])
def test_what_is_not_a_package_is_named(package: str) -> None:
    assert problems(packages=[package]) == [
        f"job, field 'packages': {package!r} is not a package: give group:artifact:version"
    ]


def test_packages_of_common_forms_are_accepted() -> None:
    assert not problems(packages=["org.apache.x:y-runtime-4.1_2.13:1.12.0", "a.b:c:1.0.0-rc1+build"])


def test_a_jar_is_an_artifact_and_is_called_one() -> None:
    (artifact,) = graph_of(jars=["own.jar"]).artifacts

    assert artifact.kind is ArtifactKind.JAR
    assert problems(artifacts=[{"name": "script.py", "kind": "jar"}]) == [
        "job, field 'jars': 'script.py' is not a jar: its name ends otherwise"
    ]
