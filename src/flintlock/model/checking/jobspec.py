"""The document form of a job: the content of a YAML file and of the body of POST /jobs.

`read_spec` turns a decoded document into a JobSpec and reports every unknown key (with the nearest known one), every
wrong type and its place; `draft_graph` turns a JobSpec into a JobGraph. `${name}` stands for a parameter in
paths, tables, schemas, options and program arguments; in SQL parameters are bound (`:name`), never pasted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct, field, structs

from flintlock.model.access.secret_references import REDACTED, is_one_reference, is_secret_reference
from flintlock.model.checking.dependencies import driver_dependency
from flintlock.model.checking.documents import document_problems
from flintlock.model.checking.problems import MAX_FOUND, Problem, abbreviated
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.ids import JobId, StepName
from flintlock.model.jobgraph import (
    Artifact,
    ArtifactKind,
    EngineKind,
    Exchange,
    JobGraph,
    JobType,
    JobVertex,
    Resources,
    Scalar,
    Versions,
    vertex_id,
)
from flintlock.model.operations import (
    READERS,
    ConfigValue,
    Fill,
    Operation,
    PickleSpec,
    ProgramSpec,
    ResultSpec,
    SinkSpec,
    SourceSpec,
    StepForm,
    config_text,
)
from flintlock.model.quantities import memory_bytes
from flintlock.model.streaming.streams import (
    OutputMode,
    StreamQuery,
    TriggerKind,
    TriggerSpec,
    Watermark,
    WatermarkSpec,
    read_trigger,
)

_PARAMETER: Final = re.compile(r"\$\{([^}]*)\}")


class StepSpec(StepForm, frozen=True, kw_only=True):
    """One step: exactly one of source, sql, function, sink, result, program, foreachBatch says what it does."""

    source: SourceSpec | None = None
    sql: str | None = None
    function: str | PickleSpec | None = None
    sink: SinkSpec | None = None
    result: ResultSpec | None = None
    program: ProgramSpec | None = None
    foreach_batch: str | PickleSpec | None = None
    inputs: tuple[str, ...] = ()
    exchange: Exchange = Exchange.PIPELINED
    parallelism: int | None = None
    cache: bool = False
    cpu: float | None = None
    memory: str | int | None = None
    watermark: WatermarkSpec | None = None
    uid: str | None = None
    output_mode: OutputMode | None = None
    trigger: TriggerSpec | None = None


#: The names of the fields of a step by their keys in a document, for the keys that say what the step does.
_FIELDS: Final[Mapping[str, str]] = {
    one.encode_name: one.name for one in structs.fields(StepSpec) if one.encode_name in READERS
}


class ArtifactSpec(StepForm, frozen=True, kw_only=True):
    """An artifact by name; `blob` where it has been uploaded already."""

    name: str
    blob: str | None = None
    kind: ArtifactKind = ArtifactKind.PY_FILE


class JobSpec(StepForm, frozen=True, kw_only=True):
    """The whole document."""

    version: int = 1
    name: str = ""
    job_id: str | None = None
    type: JobType | None = None  # where absent: STREAMING if a source streams, else BATCH
    parallelism: int | None = None
    engine: EngineKind | None = None  # where absent: auto for a program, shared for a job graph without jars
    directory: str = ""  # where relative paths start; a client sets the one that it runs in
    params: dict[str, Scalar] = field(default_factory=dict)
    secret_params: tuple[str, ...] = ()  # those whose values are secrets: they are given as `${secret:NAME}` only
    artifacts: tuple[str | ArtifactSpec, ...] = ()
    jars: tuple[str, ...] = ()  # artifacts for the class path of the job's own driver
    packages: tuple[str, ...] = ()  # coordinates that the job's own driver resolves
    requirements: str = ""  # the artifact with the requirements of the job's Python environment
    pyenv: str = ""  # the artifact that is the job's Python environment, packed
    config: dict[str, ConfigValue] = field(default_factory=dict)
    labels: dict[str, ConfigValue] = field(default_factory=dict)
    steps: dict[str, StepSpec] = field(default_factory=dict)
    client: Versions | None = None
    client_timeout: float | None = None  # seconds; set by a client that stays attached
    fixed_params: tuple[str, ...] = ()  # those in paths that a client has made absolute: a rerun cannot change them


class SpecProblem(Struct, frozen=True, kw_only=True):
    """One thing wrong with a document, by the keys that lead to it."""

    path: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        if len(self.path) >= 2 and self.path[0] == "steps":
            return str(Problem(step=self.path[1], field=".".join(self.path[2:]) or None, message=self.message))
        return str(Problem(field=".".join(self.path) or None, message=self.message))


def read_spec(document: object) -> tuple[JobSpec | None, tuple[SpecProblem, ...]]:
    """Return the document as a JobSpec, or None and the problems that were found in it, at most `MAX_FOUND`."""
    try:
        spec = msgspec.convert(document, JobSpec)
    except msgspec.ValidationError as error:
        found = [*islice(document_problems(JobSpec, document), MAX_FOUND)] or [((), str(error))]
        return None, tuple(SpecProblem(path=path, message=message) for path, message in found)
    problems = tuple(_meaning_problems(spec))
    return (None if problems else spec), problems


def draft_graph(
    spec: JobSpec, job_id: JobId, blobs: Mapping[str, Artifact], params: Mapping[str, Scalar] | None = None
) -> tuple[JobGraph, list[Problem]]:
    """Return the graph that the document describes, its vertices in the order they were written, and its problems.

    `blobs` gives each named artifact its content; `params` override the document's. A `${…}` that stands for nothing
    and an artifact without content are problems. A client reports them together with those of `problems_of`, each with
    its line in the user's file.
    """
    job_type = spec.type or (JobType.STREAMING if any(map(_streams, spec.steps.values())) else JobType.BATCH)
    values = {**spec.params, **(params or {})}
    problems: list[Problem] = []
    used: set[str] = set()  # parameters that are filled in
    suggestions = Suggestions()
    for secret in dict.fromkeys(spec.secret_params):
        if secret not in values:
            message = f"the job has no parameter {abbreviated(secret)!r}{suggestions.suggestion(secret, values)}"
            problems.append(Problem(field="secretParams", message=message))
        elif not is_one_reference(values[secret]):
            problems.append(Problem(field="params", message=_not_a_reference(secret)))
            values[secret] = REDACTED  # so that no other problem quotes it

    def filled(name: str, step: StepSpec) -> Fill:
        def fill(text: str) -> str:
            def value_of(match: re.Match[str]) -> str:
                parameter = match[1].strip()
                if is_secret_reference(parameter):
                    return match[0]
                value = values.get(parameter)
                if value is not None:
                    used.add(parameter)
                    return config_text(value)
                if parameter in values:
                    message = f"the parameter {parameter!r} has no value"
                else:
                    shown = abbreviated(parameter)
                    message = f"no parameter {shown!r} for ${{{shown}}}{suggestions.suggestion(parameter, values)}"
                problems.append(Problem(step=name, field=kind_of(step), message=message))
                return match[0]

            return _PARAMETER.sub(value_of, text)

        return fill

    vertices = tuple(
        JobVertex(
            id=vertex_id(job_id, name),
            name=StepName(name),
            operation=_operation(step, filled(name, step)),
            inputs=tuple(StepName(source) for source in step.inputs),
            exchange=step.exchange,
            parallelism=step.parallelism,
            cache=step.cache,
            resources=_resources(name, step, problems),
            query=_query(name, step, problems, streaming=job_type is JobType.STREAMING),
            watermark=None if step.watermark is None else Watermark(**structs.asdict(step.watermark)),
        )
        for name, step in spec.steps.items()
    )
    artifacts: list[Artifact] = []
    for named in named_artifacts(spec):
        found = blobs.get(named.name)
        if found is None:
            problems.append(Problem(field="artifacts", message=f"no file was sent for the artifact {named.name!r}"))
        else:
            artifacts.append(structs.replace(found, kind=named.kind))
    config = {key: config_text(value) for key, value in spec.config.items()}
    graph = JobGraph(
        job_id=job_id,
        name=spec.name,
        job_type=job_type,
        vertices=vertices,
        parallelism=spec.parallelism,
        params=values,
        config=config,
        labels={key: config_text(value) for key, value in spec.labels.items()},
        artifacts=tuple(artifacts),
        packages=spec.packages,
        engine=_engine(spec, needs_driver=driver_dependency(artifacts, spec.packages, config) is not None),
        directory=spec.directory,
        client=spec.client,
        client_timeout_s=spec.client_timeout,
        document=msgspec.json.encode(structs.replace(spec, params={})) if used or spec.fixed_params else b"",
    )
    return graph, problems


def fill_in(text: str, values: Mapping[str, Scalar]) -> str:
    """Return a text with its parameters filled in; what stands for nothing stays."""

    def value_of(match: re.Match[str]) -> str:
        value = values.get(match[1].strip())
        return match[0] if value is None else config_text(value)

    return _PARAMETER.sub(value_of, text)


def parameters_in(text: str) -> tuple[str, ...]:
    """Return the names of the parameters that a text refers to, those of secrets excepted."""
    names = (match[1].strip() for match in _PARAMETER.finditer(text))
    return tuple(name for name in names if not is_secret_reference(name))


def _not_a_reference(parameter: str) -> str:
    shown = abbreviated(parameter)
    return (
        f"{shown!r} is a secret, and its value would be stored with the job: put the value into the file `secrets/NAME`"
        f" of the state directory of the TaskManagers (mode 0600), or their environment variable SECRET_NAME, and set"
        f" the parameter to '${{secret:NAME}}'"
    )


def named_artifacts(spec: JobSpec) -> tuple[ArtifactSpec, ...]:
    """Return the artifacts that the document names, its jars and its Python environment among them."""
    if not (spec.artifacts or spec.jars or spec.requirements or spec.pyenv):
        return ()
    listed = (ArtifactSpec(name=item) if isinstance(item, str) else item for item in spec.artifacts)
    named = (
        *((name, ArtifactKind.JAR) for name in spec.jars),
        (spec.requirements, ArtifactKind.REQUIREMENTS),
        (spec.pyenv, ArtifactKind.ENVIRONMENT),
    )
    return (*listed, *(ArtifactSpec(name=name, kind=kind) for name, kind in named if name))


def _engine(spec: JobSpec, *, needs_driver: bool) -> EngineKind:
    """Return the engine that the document chooses, or that its steps and dependencies need."""
    if needs_driver and spec.engine in (None, EngineKind.AUTO):
        return EngineKind.DEDICATED
    program = any(step.program is not None for step in spec.steps.values())
    return spec.engine or (EngineKind.AUTO if program else EngineKind.SHARED)


def _operation(step: StepSpec, fill: Fill) -> Operation:
    kind = kind_of(step)
    return READERS[kind](getattr(step, _FIELDS[kind]), fill)


def kind_of(step: StepSpec) -> str:
    """Return which of the kinds the step is."""
    for kind, name in _FIELDS.items():
        if getattr(step, name) is not None:
            return kind
    raise ValueError("the step does nothing")  # `read_spec` accepts no such step


def _streams(step: StepSpec) -> bool:
    return step.source is not None and step.source.stream


def _query(name: str, step: StepSpec, problems: list[Problem], *, streaming: bool) -> StreamQuery | None:
    """Return what makes the step a streaming query: every sink of a streaming job is one."""
    given = (step.uid, step.output_mode, step.trigger) != (None, None, None)
    is_sink = step.sink is not None or step.foreach_batch is not None
    if not given and not (streaming and is_sink):
        return None
    if step.trigger is not None and len(step.trigger.given) != 1:
        message = f"needs exactly one of {', '.join(TriggerKind)}"
        problems.append(Problem(step=name, field="trigger", message=message))
    elif step.trigger is not None and step.trigger.available_now is False:
        message = "availableNow is true where it is given: leave the trigger out for a query without an end"
        problems.append(Problem(step=name, field="trigger", message=message))
    if step.uid == "":
        problems.append(Problem(step=name, field="uid", message="the uid is empty"))
    return StreamQuery(
        uid=step.uid or "", output_mode=step.output_mode or OutputMode.APPEND, trigger=read_trigger(step.trigger)
    )


def _resources(name: str, step: StepSpec, problems: list[Problem]) -> Resources | None:
    if step.cpu is None and step.memory is None:
        return None
    memory = 0
    try:
        memory = memory_bytes(str(step.memory or 0))
    except ValueError as error:
        problems.append(Problem(step=name, field="memory", message=str(error)))
    return Resources(cpu=step.cpu or 0.0, memory=memory)


def _meaning_problems(spec: JobSpec) -> Iterator[SpecProblem]:
    if spec.version != 1:
        yield SpecProblem(path=("version",), message=f"this version reads documents of version 1, not {spec.version}")
    for name, step in spec.steps.items():
        kinds = [kind for kind, field_name in _FIELDS.items() if getattr(step, field_name) is not None]
        if not kinds:
            yield SpecProblem(path=("steps", name), message=f"does nothing: give one of {', '.join(READERS)}")
        elif len(kinds) > 1:
            yield SpecProblem(path=("steps", name, kinds[1]), message=f"is already a {kinds[0]}: give only one of them")
