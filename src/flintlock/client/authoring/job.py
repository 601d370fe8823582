"""A job written in Python.

Each call checks its arguments, and its errors name the user's own file and line; `package` checks the complete job and
pickles the functions, which happens last so that versions can be compared before.

Rejected: checking only at the end; an error is most useful at the line that caused it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeAlias, TypeVar, cast, overload

from msgspec import structs

from flintlock.client.authoring.files.artifact_files import ArtifactFile, jar_file, module_names, py_file
from flintlock.client.authoring.files.requirement_files import environment_files
from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, finish, located_error, with_location
from flintlock.client.authoring.source_locations import (
    MAX_PLACE,
    caller,
    file_of,
    name_and_place,
    place_of,
    place_of_function,
)
from flintlock.client.authoring.step_arguments import (
    as_list,
    check_batch_function,
    check_signature,
    path_text,
    path_texts,
    save_mode,
    schema_text,
    watermark_document,
    without_none,
)
from flintlock.client.connection.versions import own_versions
from flintlock.model.checking.dependencies import driver_dependency
from flintlock.model.checking.graphcheck import problems_of
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, draft_graph, read_spec
from flintlock.model.checking.problems import Problem
from flintlock.model.errors import Invalid, Refused
from flintlock.model.ids import BlobKey, JobId
from flintlock.model.jobgraph import Artifact, ArtifactKind, EngineKind, Scalar
from flintlock.model.operations import ConfigValue, PickleSpec

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NOT_PICKLED_YET: Final = "pending"  # the artifact of a function until `package` pickles it
_ALL_CHECKED: Final = 100  # steps of a job that are all checked again with each one that is added


class Step(Generic[P, R]):
    """A step of a job, which other steps take as their input. A function step can still be called."""

    def __init__(self, job: Job, name: str, function: Callable[P, R] | None = None) -> None:
        self.job: Final = job
        self.name: Final = name
        self.function: Final = function
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__: Final = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the step's function, as a test of it would."""
        if self.function is None:
            raise TypeError(f"step {self.name!r} is not a function")
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<step {self.name!r} of job {self.job.name!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A step function that calls another one takes the plain function along, not the job around it.
        if self.function is None:
            raise TypeError(f"step {self.name!r} cannot be used inside a step function: name it in inputs")
        return _plain_function, (self.function,)


AnyStep: TypeAlias = "Step[..., Any]"
Input: TypeAlias = "AnyStep | str"


class Job:
    """A job graph under construction. Steps: `source`, `sql`, `step`, `sink`, `foreach_batch` and `result`.

    `params` are bound in SQL as `:name`, fill `${name}` in paths, tables, schemas and options, and reach step
    functions that have an argument `params`. Those in `secret_params` are accepted as `${secret:NAME}` only. `config`
    has job options and `spark.*`. `labels` are texts to find the job by. `py_files` (Python files, folders, zips,
    wheels) and `jars` are found relative to the file that makes the job; `packages` are Maven coordinates
    (`group:artifact:version`). `requirements` (a file for pip) or `pyenv` (an environment of venv-pack or conda-pack)
    is the job's own Python environment. `engine` is the Spark driver that the job runs on: `shared`, or one of its own
    (`dedicated`), which jars and packages need, and which such a job is given unless `engine` says otherwise. Local
    data paths (those without a scheme) are relative to the current directory at the time the job is packaged.
    """

    def __init__(
        self,
        name: str,
        *,
        parallelism: int | None = None,
        params: Mapping[str, Scalar] | None = None,
        secret_params: Iterable[str] = (),
        config: Mapping[str, ConfigValue] | None = None,
        labels: Mapping[str, ConfigValue] | None = None,
        py_files: Iterable[str | Path] = (),
        engine: str | None = None,
        jars: Iterable[str | Path] = (),
        packages: Iterable[str] = (),
        requirements: str | Path | None = None,
        pyenv: str | Path | None = None,
    ) -> None:
        frame = caller()
        self._home: Final = str(frame.f_globals.get("__name__", "__main__"))
        self._file: Final = file_of(frame)
        self._place: Final = place_of(frame)
        self._places: Final[dict[str, str]] = {}
        self._functions: Final[dict[str, Callable[..., object]]] = {}
        document = {
            "name": name,
            "parallelism": parallelism,
            "params": params or {},
            "secretParams": tuple(secret_params),
            "config": config or {},
            "labels": labels or {},
            "engine": engine,
            "packages": self._listed("packages", packages),
        }
        self._spec = _read(document, self._place)
        self._py_files: Final = self._found("py_files", py_files, py_file)
        self._jars: Final = self._found("jars", jars, jar_file)
        self._environment: Final = self._environment_files(requirements, pyenv)

    @property
    def name(self) -> str:
        """The job's name."""
        return self._spec.name

    @property
    def params(self) -> Mapping[str, Scalar]:
        """The parameters, with the values that the job's file gives them."""
        return dict(self._spec.params)

    @property
    def pickles(self) -> bool:
        """Whether the job has functions that are pickled."""
        return bool(self._functions)

    @property
    def needs_driver(self) -> bool:
        """Whether the job runs on a dedicated driver, as it is written."""
        config = {key: str(value) for key, value in self._spec.config.items()}
        dependency = self._jars or driver_dependency((), self._spec.packages, config)
        chosen = self._spec.engine
        return chosen is EngineKind.DEDICATED or (chosen is None and bool(dependency))

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps so far."""
        return tuple(self._spec.steps)

    def source(
        self,
        name: str,
        *,
        format: str | None = None,  # noqa: A002 Spark's name
        path: str | Path | Sequence[str | Path] | None = None,
        table: str | None = None,
        schema: object = None,
        options: Mapping[str, ConfigValue] | None = None,
        stream: bool = False,
        watermark: tuple[str, str] | None = None,
        exchange: str = "pipelined",
        parallelism: int | None = None,
        cache: bool = False,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> AnyStep:
        """Add a step that reads a table, or files or anything else that Spark has a format for.

        `schema` is DDL text or a PySpark StructType. `stream` reads what arrives, without an end; the job is then a
        streaming one. `watermark` is a column of event times, and how late rows may be (`("ts", "10 minutes")`).
        Raises Invalid if it cannot be a source.
        """
        place = place_of(caller())
        source = without_none(format=format, table=table, schema=schema_text(schema), options=options or {})
        source["stream"] = stream
        if path is not None:
            source["path"] = path_text(path) if isinstance(path, str | Path) else path_texts(path)
        needs = {"parallelism": parallelism, "cache": cache, "cpu": cpu, "memory": memory}
        late = watermark_document(watermark, name, place)
        return self._add(place, name, {"source": source}, (), exchange=exchange, watermark=late, **needs)

    def sql(
        self,
        name: str,
        query: str,
        *,
        inputs: Input | Sequence[Input] = (),
        watermark: tuple[str, str] | None = None,
        exchange: str = "pipelined",
        parallelism: int | None = None,
        cache: bool = False,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> AnyStep:
        """Add a query over views that are named as the input steps; it refers to parameters as `:name`."""
        place = place_of(caller())
        needs = {"parallelism": parallelism, "cache": cache, "cpu": cpu, "memory": memory}
        late = watermark_document(watermark, name, place)
        return self._add(place, name, {"sql": query}, inputs, exchange=exchange, watermark=late, **needs)

    @overload
    def step(self, name: Callable[P, R], /) -> Step[P, R]: ...

    @overload
    def step(
        self,
        name: str | None = None,
        *,
        inputs: Input | Sequence[Input] = (),
        watermark: tuple[str, str] | None = None,
        exchange: str = "pipelined",
        parallelism: int | None = None,
        cache: bool = False,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> Callable[[Callable[P, R]], Step[P, R]]: ...

    def step(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        inputs: Input | Sequence[Input] = (),
        watermark: tuple[str, str] | None = None,
        exchange: str = "pipelined",
        parallelism: int | None = None,
        cache: bool = False,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> Any:
        """Add a PySpark function from DataFrames to a DataFrame; used as a decorator.

        The inputs are passed by position; arguments `params` and `spark` are passed if the function declares them. The
        step has the function's name unless `name` is given.
        """
        asked_at = place_of(caller())

        def add(function: Callable[..., Any]) -> AnyStep:
            place = place_of_function(function) or asked_at
            called = name if isinstance(name, str) else getattr(function, "__name__", "")
            check_signature(function, called, len(as_list(inputs)), place)
            self._add(
                place,
                called,
                {"function": {"pickle": _NOT_PICKLED_YET}},
                inputs,
                exchange=exchange,
                parallelism=parallelism,
                cache=cache,
                cpu=cpu,
                memory=memory,
                watermark=watermark_document(watermark, called, place),
            )
            self._functions[called] = function
            return Step(self, called, function)

        return add(name) if callable(name) else add

    def sink(
        self,
        name: str,
        input: Input,  # noqa: A002 the name that users know
        *,
        format: str | None = None,  # noqa: A002 Spark's name
        path: str | Path | None = None,
        table: str | None = None,
        mode: str = "errorifexists",
        partition_by: str | Sequence[str] = (),
        options: Mapping[str, ConfigValue] | None = None,
        uid: str | None = None,
        output_mode: str | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        parallelism: int | None = None,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> AnyStep:
        """Add a step that writes its input; `mode` is Spark's (append, overwrite, errorifexists, ignore).

        In a streaming job it is a query: `uid` names its state, `output_mode` is Spark's (append, update, complete),
        and `trigger` says when its batches run (`{"processingTime": "10 seconds"}`, `{"availableNow": True}`,
        `{"realTime": "5 minutes"}`; without one, as soon as there are rows).
        """
        place = place_of(caller())
        columns = [partition_by] if isinstance(partition_by, str) else partition_by
        sink = without_none(format=format, path=None if path is None else path_text(path), table=table)
        sink |= {"mode": save_mode(mode), "partitionBy": columns, "options": options or {}}
        query: dict[str, Any] = {"uid": uid, "outputMode": output_mode, "trigger": trigger}
        return self._add(place, name, {"sink": sink}, input, parallelism=parallelism, cpu=cpu, memory=memory, **query)

    def foreach_batch(
        self,
        name: str,
        input: Input,  # noqa: A002 the name that users know
        *,
        uid: str | None = None,
        output_mode: str | None = None,
        trigger: Mapping[str, str | bool] | None = None,
        parallelism: int | None = None,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> Callable[[Callable[P, R]], Step[P, R]]:
        """Add a sink of a streaming job that calls a function `(batch, batch_id)` with each micro-batch; a decorator.

        A batch that was interrupted is repeated with the same id. The other arguments are those of `sink`.
        """
        asked_at = place_of(caller())

        def add(function: Callable[P, R]) -> Step[P, R]:
            place = place_of_function(function) or asked_at
            check_batch_function(function, name, place)
            needs = {"parallelism": parallelism, "cpu": cpu, "memory": memory}
            query: dict[str, Any] = {"uid": uid, "outputMode": output_mode, "trigger": trigger}
            self._add(place, name, {"foreachBatch": {"pickle": _NOT_PICKLED_YET}}, input, **needs, **query)
            self._functions[name] = function
            return Step(self, name, function)

        return add

    def result(
        self,
        name: str,
        input: Input,  # noqa: A002 the name that users know
        *,
        limit: int = 20,
        parallelism: int | None = None,
        cpu: float | None = None,
        memory: str | int | None = None,
    ) -> AnyStep:
        """Store the first `limit` rows of the input with the job, for clients to fetch."""
        place = place_of(caller())
        return self._add(
            place, name, {"result": {"limit": limit}}, input, parallelism=parallelism, cpu=cpu, memory=memory
        )

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged and checked, its functions pickled. Raises Invalid with every problem found."""
        from flintlock.client.authoring.pickling import pickle_function

        travelling = [*self._py_files, *_named_py_files(overrides.py_files)]
        shipped = frozenset(module_names(travelling))
        steps, pickles = dict(self._spec.steps), dict[str, ArtifactFile]()
        for name, function in self._functions.items():
            content = pickle_function(
                function,
                step=name,
                home=self._home,
                folder=self._file.parent if self._file else None,
                place=self._places[name],
                shipped=shipped,
            )
            key = f"function-{hashlib.sha256(content).hexdigest()[:16]}.pickle"
            pickles[key] = ArtifactFile(name=key, content=content, kind=ArtifactKind.PICKLE)
            pickled = PickleSpec(pickle=key, place=name_and_place(function)[:MAX_PLACE])
            if steps[name].foreach_batch is not None:
                steps[name] = structs.replace(steps[name], foreach_batch=pickled)
            else:
                steps[name] = structs.replace(steps[name], function=pickled)
        spec = structs.replace(self._spec, steps=steps, client=own_versions() if pickles else None)
        files = [*self._py_files, *self._jars, *self._environment, *pickles.values()]
        return finish(spec, files, overrides, self._locate)

    def __repr__(self) -> str:
        return f"<flintlock.Job {self.name!r}: {', '.join(self.steps) or 'no steps'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a step function cannot use the Job itself: take an argument `params` for its parameters")

    def _add(
        self,
        place: str,
        name: str,
        what: dict[str, object],
        inputs: Input | Sequence[Input],
        *,
        exchange: str = "pipelined",
        **needs: object,
    ) -> AnyStep:
        if not isinstance(cast("object", name), str):
            raise Invalid(with_location(place, f"a step's name is text, not {name!r}"))
        if name in self._spec.steps:
            first = self._places[name]
            raise Invalid(
                with_location(
                    place, str(Problem(step=name, message=f"there is a step of this name already, at {first}"))
                )
            )
        names = [self._input_name(item, name, place) for item in as_list(inputs)]
        document = {**what, "inputs": names, "exchange": exchange, **needs}
        step = _read({"name": self.name, "steps": {name: document}}, place).steps[name]
        spec = structs.replace(self._spec, steps={**self._spec.steps, name: step})
        problems = _problems_of_addition(spec, name)
        if problems:
            raise located_error(self.name, problems, lambda _: place)
        self._spec = spec
        self._places[name] = place
        return Step(self, name)

    def _input_name(self, item: object, step: str, place: str) -> str:
        if isinstance(item, str):
            return item
        if not isinstance(item, Step):
            message = f"an input is a step or a step's name, not {type(item).__name__}"
        elif cast("AnyStep", item).job is not self:
            message = f"step {item.name!r} belongs to another job"
        else:
            return item.name
        raise Invalid(with_location(place, str(Problem(step=step, field="inputs", message=message))))

    def _found(
        self, field: str, paths: Iterable[str | Path], read: Callable[[Path], ArtifactFile]
    ) -> tuple[ArtifactFile, ...]:
        folder = self._file.parent if self._file else Path.cwd()
        try:
            return tuple(read(folder / item) for item in self._listed(field, paths))
        except Refused as refusal:
            raise Invalid(with_location(self._place, f"job, field {field!r}: {refusal.public}")) from refusal

    def _environment_files(self, requirements: str | Path | None, pyenv: str | Path | None) -> tuple[ArtifactFile, ...]:
        folder = self._file.parent if self._file else Path.cwd()
        given = [None if path is None else folder / path for path in (requirements, pyenv)]
        try:
            return tuple(environment_files(*given))
        except Refused as refusal:
            field = "pyenv" if requirements is None else "requirements"
            raise Invalid(with_location(self._place, f"job, field {field!r}: {refusal.public}")) from refusal

    def _listed(self, field: str, items: Iterable[T]) -> tuple[T, ...]:
        if isinstance(items, str):
            what = "coordinates" if field == "packages" else "paths"
            raise Invalid(with_location(self._place, f"job, field {field!r}: must be a list of {what}, not one text"))
        return tuple(items)

    def _locate(self, path: tuple[str, ...]) -> str:
        return self._places.get(path[1], self._place) if len(path) > 1 and path[0] == "steps" else self._place


def _plain_function(function: Callable[..., object]) -> Callable[..., object]:
    return function


def _read(document: Mapping[str, object], place: str) -> JobSpec:
    """Read the arguments of one call as the part of a job document that they form."""
    spec, problems = read_spec(document)
    if spec is None:
        lines = tuple(with_location(place, _in_python(str(problem))) for problem in problems)
        raise Invalid("\n".join(lines), problems=lines)
    return spec


def _in_python(text: str) -> str:
    """Spell field names as Python does: `sink.partitionBy` was the argument `partition_by`."""
    return re.sub(
        r"field '([^']*)'", lambda match: re.sub(r"(?<=[a-z])([A-Z])", lambda c: "_" + c[1].lower(), match[0]), text
    )


def _problems_of_addition(spec: JobSpec, name: str) -> list[Problem]:
    """Return what is wrong with the steps after the one of this name was added.

    In a large job only that step is checked, with its inputs, or adding would take longer with each step; what concerns
    several steps is then reported when the job is packaged, with the same location.
    """
    if len(spec.steps) <= _ALL_CHECKED:
        return [problem for problem in _draft_problems(spec) if problem.step is not None]
    step = spec.steps[name]
    inputs = {source: structs.replace(spec.steps[source], inputs=()) for source in step.inputs if source in spec.steps}
    part = structs.replace(spec, steps={**inputs, name: step})
    return [problem for problem in _draft_problems(part) if problem.step == name]


def _draft_problems(spec: JobSpec) -> list[Problem]:
    """Return what is wrong with the steps so far; functions that are not pickled yet count as present."""
    pending = Artifact(name=_NOT_PICKLED_YET, blob=BlobKey(""), kind=ArtifactKind.PICKLE)
    spec = structs.replace(spec, artifacts=(ArtifactSpec(name=_NOT_PICKLED_YET),))
    graph, problems = draft_graph(spec, JobId("0" * 32), {_NOT_PICKLED_YET: pending})
    return [*problems, *problems_of(graph)]


def _named_py_files(paths: Iterable[Path]) -> list[ArtifactFile]:
    """Return those that can be read; `finish` reports the others."""
    return [py_file(path) for path in paths if path.exists()]
