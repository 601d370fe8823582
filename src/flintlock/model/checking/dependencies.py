"""What a job needs beside its own code: on the class path of its Spark driver, and in its Python environment.

A driver loads classes when it starts, and all jobs of a shared engine would see the classes of one of them: a session
of Spark Connect can add jars, but data sources, JDBC drivers and file systems are registered once for a JVM. So a job
with jars or packages of its own runs on a dedicated driver. A Python environment needs none: the job's runner and the
Python workers of its session use it, and no other job does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from flintlock.model.checking.problems import Problem, abbreviated
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, JobGraph

JARS: Final = "spark.jars"
PACKAGES: Final = "spark.jars.packages"
#: Settings that are fixed when a Spark application starts and that have an effect on a driver without executors.
STATIC_SETTINGS: Final = frozenset({
    "spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.catalogImplementation", "spark.serializer",
    "spark.jars", "spark.files", "spark.archives", "spark.kryo.registrator", "spark.local.dir",
})  # fmt: skip
_ENVIRONMENTS: Final = (ArtifactKind.REQUIREMENTS, ArtifactKind.ENVIRONMENT)
_COORDINATES: Final = re.compile(r"[\w.-]+:[\w.-]+:[\w.+-]+", re.ASCII)


def has_environment(graph: JobGraph) -> bool:
    """Return whether a job has a Python environment of its own."""
    return any(artifact.kind in _ENVIRONMENTS for artifact in graph.artifacts)


def driver_dependency(artifacts: Iterable[Artifact], packages: Iterable[str], config: Mapping[str, str]) -> str | None:
    """Return what of a job only a dedicated driver has on its class path; None if there is nothing."""
    if any(artifact.kind is ArtifactKind.JAR for artifact in artifacts):
        return "jars"
    if any(packages):
        return "packages"
    return next((key for key in (JARS, PACKAGES) if key in config), None)


def dependency_problems(graph: JobGraph) -> Iterator[Problem]:
    """Yield coordinates that are none, jars that are no jars by their name, and an engine that cannot have either."""
    for package in graph.packages:
        if not _COORDINATES.fullmatch(package):
            message = f"{abbreviated(package)!r} is not a package: give group:artifact:version"
            yield Problem(field="packages", message=message)
    for artifact in graph.artifacts:
        if artifact.kind is ArtifactKind.JAR and not artifact.name.endswith(".jar"):
            yield Problem(field="jars", message=f"{abbreviated(artifact.name)!r} is not a jar: its name ends otherwise")
    environments = [artifact.name for artifact in graph.artifacts if artifact.kind in _ENVIRONMENTS]
    if len(environments) > 1:
        message = f"a job has one Python environment: choose one of {', '.join(map(repr, environments))}"
        yield Problem(field="requirements", message=message)
    dependency = driver_dependency(graph.artifacts, graph.packages, graph.config)
    if dependency is not None and graph.engine is EngineKind.SHARED:
        message = (
            f"the shared engine is already running and cannot be given {dependency} for one job: choose the engine"
            f" 'dedicated', or set {JARS} or {PACKAGES} for the whole cluster"
        )
        yield Problem(field="engine", message=message)
