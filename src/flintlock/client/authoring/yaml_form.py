"""A job written in YAML: problems are reported with file, line, column, step and field.

Artifacts are found relative to the file. Local data paths are relative to the current directory, as in Python.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from flintlock.client.authoring.files.artifact_files import ArtifactFile, absolute_place, jar_file, plain_file, py_file
from flintlock.client.authoring.files.requirement_files import environment_files
from flintlock.client.authoring.package import AS_WRITTEN, JobPackage, Overrides, finish
from flintlock.client.authoring.schema_texts import PROPERTIES
from flintlock.client.authoring.source_locations import display_path
from flintlock.config.yaml_document import Document, Mark, read_yaml
from flintlock.model.checking.jobspec import ArtifactSpec, JobSpec, SpecProblem, read_spec
from flintlock.model.errors import Invalid, Refused
from flintlock.model.jobgraph import ArtifactKind
from flintlock.model.operations import READERS


class YamlJob:
    """A job in a YAML file. Made by `read_yaml_job`."""

    def __init__(self, file: Path, document: Document, spec: JobSpec, artifacts: tuple[ArtifactFile, ...]) -> None:
        self.file: Final = file
        self.pickles: Final = False
        self.spec: Final = spec
        self._document: Final = document
        self._artifacts: Final = artifacts

    @property
    def name(self) -> str:
        """The job's name."""
        return self.spec.name

    def package(self, overrides: Overrides = AS_WRITTEN) -> JobPackage:
        """Return the job packaged and checked. Raises Invalid with every problem found."""
        return finish(self.spec, self._artifacts, overrides, self._locate)

    def _locate(self, path: tuple[str, ...]) -> str:
        return _place(self.file, self._document.mark(_as_keys(path)))


def read_yaml_job(file: Path) -> YamlJob:
    """Read a job from a YAML file. Raises Refused if it cannot be read, Invalid with every problem found in it."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from error
    return read_yaml_text(file, data)


def read_yaml_text(file: Path, data: bytes) -> YamlJob:
    """Read a job from the text of a document (YAML, and so JSON). `file` names it; artifacts are found beside that."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(f"{file}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    document = read_yaml(_without_tabs(text))
    problems = [(problem.mark, problem.message) for problem in document.problems]
    if problems:
        raise _invalid(file, problems)
    spec, found = read_spec(document.content)
    if spec is None:
        problems = [_explained(document, problem) for problem in found]
        raise _invalid(file, problems, _problems_of_the_rest(file, document, found))
    artifacts, lost = _artifacts(file, document, spec)
    if lost:
        raise _invalid(file, lost)
    return YamlJob(file, document, _with_program_paths(spec, file), artifacts)


def _with_program_paths(spec: JobSpec, file: Path) -> JobSpec:
    """Say of each program where its file is."""
    steps = {
        name: structs.replace(
            step, program=structs.replace(step.program, path=absolute_place(file.parent / step.program.file))
        )
        for name, step in spec.steps.items()
        if step.program is not None and not step.program.path
    }
    return structs.replace(spec, steps={**spec.steps, **steps}) if steps else spec


def _problems_of_the_rest(file: Path, document: Document, found: Collection[SpecProblem]) -> tuple[str, ...]:
    """Return the problems of a document without the keys that are wrong; none if it cannot be read without them.

    So the author reads all of them together, and not the next ones after each correction. Steps with a wrong key are
    left out: what else they lack may follow from it.
    """
    content = document.content
    steps = {problem.path[1] for problem in found if problem.path[:1] == ("steps",) and len(problem.path) > 2}
    for problem in found:
        inside_a_step = problem.path[:1] == ("steps",) and len(problem.path) > 2
        if not inside_a_step and not problem.message.startswith("unknown key") and problem.path != ("parallelism",):
            return ()  # others depend on what is missing then, and would be reported for it
        content = _without(content, problem.path)
    spec, _ = read_spec(content)
    if spec is None:
        return ()
    artifacts, _ = _artifacts(file, document, spec)
    try:
        YamlJob(file, document, spec, artifacts).package()
    except Invalid as invalid:
        return tuple(line for line in invalid.problems if not any(f": step {name!r}" in line for name in steps))
    return ()


def _without(content: object, path: tuple[str, ...]) -> object:
    """Return a copy of nested mappings without the entry at that path. Lists are kept whole."""
    entries = cast("dict[str, object]", content)
    if not isinstance(content, dict) or not path:
        return entries
    rest = {key: value for key, value in entries.items() if key != path[0]}
    if len(path) > 1 and path[0] in entries:
        rest[path[0]] = _without(entries[path[0]], path[1:])
    return rest


def _without_tabs(text: str) -> str:
    """Return JSON with blanks for tabs, which YAML does not allow between values; other text as it is."""
    if "\t" not in text or not text.lstrip().startswith("{"):
        return text
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return text.replace("\t", " ")  # a JSON text has none inside of its strings


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the YAML form, for editors and other tools."""
    (_, components) = msgspec.json.schema_components((JobSpec,), ref_template="#/$defs/{name}")
    for name, component in components.items():
        for key, value in component.get("properties", {}).items():
            value["description"] = PROPERTIES[name][key]
    root = dict(components.pop("JobSpec"))
    components["StepSpec"]["oneOf"] = [{"required": [kind]} for kind in READERS]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Flintlock job",
        **{key: value for key, value in root.items() if key != "title"},
        "required": ["name", "steps"],
        "$defs": components,
    }


def _artifacts(
    file: Path, document: Document, spec: JobSpec
) -> tuple[tuple[ArtifactFile, ...], list[tuple[Mark, str]]]:
    """Return the files that the document names, and a program's own file where it is not among them."""
    files: list[ArtifactFile] = []
    lost: list[tuple[Mark, str]] = []
    for index, item in enumerate(spec.artifacts):
        named = ArtifactSpec(name=item) if isinstance(item, str) else item
        if named.blob is not None:
            continue
        try:
            files.append(_artifact(file.parent / named.name, named.kind))
        except Refused as refusal:
            mark = document.values.get(("artifacts", str(index)), document.mark(("artifacts",)))
            lost.append((mark, f"job, field 'artifacts': {refusal.public}"))
    for index, jar in enumerate(spec.jars):
        try:
            files.append(jar_file(file.parent / jar))
        except Refused as refusal:
            mark = document.values.get(("jars", str(index)), document.mark(("jars",)))
            lost.append((mark, f"job, field 'jars': {refusal.public}"))
    for key in ("requirements", "pyenv"):
        try:
            named = {key: file.parent / path if (path := getattr(spec, key)) else None}
            files.extend(environment_files(named.get("requirements"), named.get("pyenv")))
        except Refused as refusal:
            mark = document.values.get((key,), document.mark((key,)))
            lost.append((mark, f"job, field {key!r}: {refusal.public}"))
    for name, step in spec.steps.items():
        program = step.program
        if program is not None and all(program.file != listed.name for listed in files):
            try:
                files.append(_artifact(file.parent / program.file, ArtifactKind.FILE))
            except Refused as refusal:
                lost.append((document.mark(("steps", name, "program", "file")), f"step {name!r}: {refusal.public}"))
    return tuple(files), lost


def _artifact(path: Path, kind: ArtifactKind) -> ArtifactFile:
    if kind is ArtifactKind.PY_FILE:
        return py_file(path)
    if kind is ArtifactKind.JAR:
        return jar_file(path)
    return structs.replace(plain_file(path), kind=kind)


def _explained(document: Document, problem: SpecProblem) -> tuple[Mark, str]:
    """Return a problem with its location: that of the key if the key is wrong, else that of its value."""
    unknown = problem.message.startswith("unknown key")
    places = document.keys if unknown else document.values
    return places.get(problem.path, document.mark(problem.path)), str(problem)


def _as_keys(path: tuple[str, ...]) -> tuple[str, ...]:
    """A field such as `config.rest.port` is the key `rest.port` under `config`."""
    return tuple(part for item in path for part in item.split(".", 1)) if path and path[0] != "steps" else path


def _invalid(file: Path, problems: list[tuple[Mark, str]], others: Sequence[str] = ()) -> Invalid:
    ordered = sorted(problems, key=lambda problem: (problem[0].line, problem[0].column))
    lines = (*(f"{_place(file, mark)}: {message}" for mark, message in ordered), *others)
    return Invalid("\n".join(lines), problems=lines)


def _place(file: Path, mark: Mark) -> str:
    return f"{display_path(file)}:{mark.line}:{mark.column}"
