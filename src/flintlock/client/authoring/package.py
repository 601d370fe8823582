"""A packaged job: the job document, the files that it names, and the checked graph that they form.

All three ways to write a job end in `finish`: it applies what the command line overrides, makes local data paths
absolute, and runs the same checks that the cluster will run again, so that all problems are reported together, each
with the line of the user's own file.

Rejected: leaving the checks to the server. It knows neither the file nor the line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from msgspec import Struct, structs

from flintlock.client.authoring.files.artifact_files import (
    ArtifactFile,
    Content,
    described,
    jar_file,
    plain_file,
    py_file,
)
from flintlock.client.authoring.files.requirement_files import ENVIRONMENT_KINDS, environment_files
from flintlock.config.job_problems import job_problems
from flintlock.model.checking.dependencies import driver_dependency
from flintlock.model.checking.graphcheck import in_order
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, StepSpec, draft_graph, fill_in, parameters_in
from flintlock.model.checking.parameters import changed_parameters
from flintlock.model.checking.problems import Problem, reported
from flintlock.model.errors import Invalid, Refused
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, EngineKind, JobGraph
from flintlock.model.operations import ConfigValue, Program, Sink, Source, config_text
from flintlock.model.operations.kind import is_relative

Locate: TypeAlias = Callable[[tuple[str, ...]], str]
"""Returns the location in the user's file (`file:line`) of the value under these keys; empty if it has none."""

UNSENT: Final = JobId("0" * 32)
"""The job id in a graph that no cluster has accepted yet."""

_NO_FILE_PATHS: Final = frozenset({"iceberg"})  # its "path" may name a table


class Overrides(Struct, frozen=True, kw_only=True):
    """What the command line, or the caller of `run`, sets in addition to the job's file. Parameters are texts."""

    name: str | None = None
    parallelism: int | None = None
    engine: EngineKind | None = None
    params: dict[str, str] = {}
    config: dict[str, str] = {}
    labels: dict[str, str] = {}
    env: dict[str, str] = {}  # of a program
    py_files: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()  # which user code opens by their names
    jars: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    requirements: Path | None = None  # in place of the job's own Python environment
    pyenv: Path | None = None  # as requirements

    @property
    def needs_driver(self) -> bool:
        """Whether the job runs on a dedicated driver by what is set here."""
        dependency = self.jars or driver_dependency((), self.packages, self.config)
        chosen = self.engine in (None, EngineKind.AUTO) and dependency
        return self.engine is EngineKind.DEDICATED or bool(chosen)


AS_WRITTEN: Final = Overrides()


def given_overrides(
    *,
    name: str | None = None,
    params: Mapping[str, object] | None = None,
    parallelism: int | None = None,
    config: Mapping[str, ConfigValue] | None = None,
    labels: Mapping[str, ConfigValue] | None = None,
) -> Overrides:
    """Return what a caller in Python sets in addition to the job's own values."""
    return Overrides(
        name=name,
        parallelism=parallelism,
        params={key: _param_text(value) for key, value in (params or {}).items()},
        config={key: config_text(value) for key, value in (config or {}).items()},
        labels={key: config_text(value) for key, value in (labels or {}).items()},
    )


def _param_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class JobPackage(Struct, frozen=True, kw_only=True):
    """Ready to be sent. `graph` is what the cluster will make of it (under a job id of its own)."""

    spec: JobSpec
    files: dict[str, Content]
    graph: JobGraph


class Packable(Protocol):
    """A job in any of its three forms."""

    @property
    def name(self) -> str:
        """The job's name."""
        ...

    @property
    def pickles(self) -> bool:
        """Whether Python functions are pickled: then Python and PySpark must be the cluster's."""
        ...

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged and checked. Raises Invalid with every problem found."""
        ...


def finish(spec: JobSpec, artifacts: Iterable[ArtifactFile], overrides: Overrides, locate: Locate) -> JobPackage:
    """Package the job. Raises Invalid with every problem and its location."""
    problems: list[Problem] = []
    if overrides.requirements is not None or overrides.pyenv is not None:
        artifacts = [file for file in artifacts if file.kind not in ENVIRONMENT_KINDS]
    files = _by_name(
        [
            *artifacts,
            *_environment_files(overrides, problems),
            *_files(py_file, overrides.py_files, "py_files", problems),
            *_files(plain_file, overrides.files, "files", problems),
            *_files(jar_file, overrides.jars, "jars", problems),
        ],
        problems,
    )
    spec = _overridden(spec, overrides, problems)
    spec = structs.replace(
        spec, artifacts=_listed(spec, files), jars=(), requirements="", pyenv="", directory=_directory(spec)
    )
    contents = {name: described(file) for name, file in files.items()} | _uploaded(spec)
    spec = _with_absolute_paths(spec, draft_graph(spec, UNSENT, contents)[0])
    draft, found = draft_graph(spec, UNSENT, contents)
    problems += [*found, *job_problems(draft)]
    if problems:
        raise located_error(spec.name, problems, locate)
    return JobPackage(spec=spec, files={name: file.content for name, file in files.items()}, graph=in_order(draft))


def located_error(name: str, problems: Iterable[Problem], locate: Locate) -> Invalid:
    """Return the error that reports each problem with its location."""
    lines = reported(with_location(locate(problem.path), str(problem)) for problem in problems)
    return Invalid(f"job {name!r} is not valid:\n  " + "\n  ".join(lines), problems=lines)


def with_location(place: str, text: str) -> str:
    """Put a location before a text, if there is one."""
    return f"{place}: {text}" if place else text


def absolute_path(path: str, base: Path | None = None) -> str:
    """Return a local path (one without a scheme) as an absolute one, from `base` or the current directory."""
    if not path.startswith("/") and not is_relative(path):
        return path
    return os.path.normpath(os.path.join(base or Path.cwd(), os.path.expanduser(path)))  # noqa: PTH118, PTH111 globs stay


def _directory(spec: JobSpec) -> str:
    """Return where relative paths start: the document's own directory, else the current one if there is one."""
    try:
        return absolute_path(spec.directory) if spec.directory.strip() else str(Path.cwd())
    except FileNotFoundError:  # it was removed
        return ""


def _with_absolute_paths(spec: JobSpec, draft: JobGraph) -> JobSpec:
    """Make the local paths of the document absolute. Their parameters stay, where filling them in later is the same."""
    steps = dict(spec.steps)
    base = Path(spec.directory) if spec.directory else None
    fixed: dict[str, None] = {}  # parameters that had to be filled in here

    def absolute(written: str, filled: str) -> str:
        wanted = absolute_path(filled, base)
        for text in (written, absolute_path(written, base)):
            if fill_in(text, spec.params) == wanted:
                return text
        fixed.update(dict.fromkeys(parameters_in(written)))
        return wanted

    for vertex in draft.vertices:
        step = steps[vertex.name]
        match vertex.operation:
            case Source(paths=paths, format=form) if paths and step.source and form not in _NO_FILE_PATHS:
                written = (step.source.path,) if isinstance(step.source.path, str) else step.source.path or paths
                texts = tuple(absolute(text, path) for text, path in zip(written, paths, strict=True))
                steps[vertex.name] = _with(step, source=structs.replace(step.source, path=texts))
            case Sink(path=str(path), format=form) if step.sink and form not in _NO_FILE_PATHS:
                text = absolute(step.sink.path or path, path)
                steps[vertex.name] = _with(step, sink=structs.replace(step.sink, path=text))
            case _:
                pass
    return structs.replace(spec, steps=steps, fixed_params=tuple(fixed))


def _with(step: StepSpec, **changes: object) -> StepSpec:
    return structs.replace(step, **changes)


def _overridden(spec: JobSpec, overrides: Overrides, problems: list[Problem]) -> JobSpec:
    return structs.replace(
        _with_environment(spec, overrides.env, problems),
        name=spec.name if overrides.name is None else overrides.name,
        parallelism=spec.parallelism if overrides.parallelism is None else overrides.parallelism,
        engine=overrides.engine or spec.engine,
        params=changed_parameters(spec.params, overrides.params, spec.secret_params, problems),
        config={**spec.config, **overrides.config},
        labels={**spec.labels, **overrides.labels},
        packages=tuple(dict.fromkeys((*spec.packages, *overrides.packages))),
    )


def _with_environment(spec: JobSpec, env: Mapping[str, str], problems: list[Problem]) -> JobSpec:
    """Add environment variables to the job's program."""
    if not env:
        return spec
    steps = {
        name: _with(step, program=structs.replace(step.program, env={**step.program.env, **env}))
        for name, step in spec.steps.items()
        if step.program is not None
    }
    if not steps:
        message = "only a program has environment variables: steps of a job graph get parameters (`params`)"
        problems.append(Problem(field="env", message=message))
    return structs.replace(spec, steps={**spec.steps, **steps})


def _files(
    read: Callable[[Path], ArtifactFile], paths: Iterable[Path], field: str, problems: list[Problem]
) -> list[ArtifactFile]:
    files: list[ArtifactFile] = []
    for path in paths:
        try:
            files.append(read(path))
        except Refused as refusal:
            problems.append(Problem(field=field, message=refusal.public))
    return files


def _environment_files(overrides: Overrides, problems: list[Problem]) -> list[ArtifactFile]:
    try:
        return environment_files(overrides.requirements, overrides.pyenv)
    except Refused as refusal:
        problems.append(
            Problem(field="pyenv" if overrides.requirements is None else "requirements", message=refusal.public)
        )
        return []


def _by_name(files: Iterable[ArtifactFile], problems: list[Problem]) -> dict[str, ArtifactFile]:
    by_name: dict[str, ArtifactFile] = {}
    for file in files:
        first = by_name.setdefault(file.name, file)
        if first is not file and described(first).blob != described(file).blob:
            problems.append(
                Problem(field="artifacts", message=f"two different files are called {file.name!r}: rename one of them")
            )
    return by_name


def _listed(spec: JobSpec, files: Mapping[str, ArtifactFile]) -> tuple[ArtifactSpec, ...]:
    """Return the document's artifacts: the files that are sent, and the blobs that it names itself."""
    uploaded = [item for item in spec.artifacts if isinstance(item, ArtifactSpec) and item.blob is not None]
    return (*uploaded, *(ArtifactSpec(name=file.name, kind=file.kind) for file in files.values()))


def _uploaded(spec: JobSpec) -> dict[str, Artifact]:
    return {
        item.name: Artifact(name=item.name, blob=BlobKey(item.blob), kind=item.kind)
        for item in spec.artifacts
        if isinstance(item, ArtifactSpec) and item.blob is not None
    }


def driver_note(package: JobPackage) -> str | None:
    """Return why a job is given a driver of its own by its dependencies; None if it is not, or if it was requested."""
    graph = package.graph
    dependency = driver_dependency(graph.artifacts, graph.packages, graph.config)
    if dependency is None or package.spec.engine not in (None, EngineKind.AUTO):
        return None
    need = "needs" if dependency.startswith("spark.") else "need"
    return f"{dependency} {need} a Spark driver of its own: the job runs on a dedicated engine"


def is_program(graph: JobGraph) -> bool:
    """Return whether the job is a program: what it prints is its output."""
    return any(isinstance(vertex.operation, Program) for vertex in graph.vertices)
