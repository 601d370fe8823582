from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from flintlock.client.authoring.package import Overrides
from flintlock.client.authoring.schema_texts import PROPERTIES
from flintlock.client.authoring.yaml_form import json_schema, read_yaml_job
from flintlock.config.yaml_document import read_yaml
from flintlock.model.errors import Invalid, Refused
from flintlock.model.jobgraph import ArtifactKind
from flintlock.model.operations import Function, Source

GOOD = """\
version: 1
name: clicks
parallelism: 2
params: {dir: in, least: 3, country: no}
artifacts: [lib.py]
config: {spark.sql.session.timeZone: UTC}
steps:
  events: {source: {format: json, path: "${dir}/events", schema: "ts TIMESTAMP, k STRING"}}
  counts: {sql: "SELECT k, count(*) n FROM events GROUP BY 1", inputs: [events], exchange: blocking}
  scored: {function: "lib:score", inputs: [counts]}
  files: {sink: {format: parquet, path: out, mode: overwrite, partitionBy: [k]}, inputs: [scored]}
  peek: {result: {limit: 5}, inputs: [scored]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib.py").write_text("def score(df): return df\n")
    return tmp_path


def problems_of(text: str) -> tuple[str, ...]:
    Path("job.yaml").write_text(text)
    with pytest.raises(Invalid) as caught:
        read_yaml_job(Path("job.yaml")).package()
    return caught.value.problems


def test_a_complete_job(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD)
    package = read_yaml_job(Path("job.yaml")).package(Overrides(params={"dir": "/data"}, config={"spark.x": "1"}))
    graph = package.graph
    source, function = graph.vertex("events").operation, graph.vertex("scored").operation

    assert isinstance(source, Source)
    assert isinstance(function, Function)
    assert source.paths == ("/data/events",)
    assert function.reference == "lib:score"
    assert graph.params == {"dir": "/data", "least": 3, "country": "no"}
    assert graph.config == {"spark.sql.session.timeZone": "UTC", "spark.x": "1"}
    assert [(item.name, item.kind) for item in graph.artifacts] == [("lib.py", ArtifactKind.PY_FILE)]
    assert graph.client is None


def test_artifacts_are_found_relative_to_the_file_and_data_relative_to_the_current_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "sub").mkdir()
    (folder / "job.yaml").write_text(GOOD)
    monkeypatch.chdir(folder / "sub")
    graph = read_yaml_job(Path("../job.yaml")).package().graph
    source = graph.vertex("events").operation

    assert isinstance(source, Source)
    assert source.paths == (f"{folder}/sub/in/events",)


def test_problems_of_form_are_reported_together_with_line_and_column(folder: Path) -> None:
    assert problems_of(
        "version: 1\n"
        "nam: clicks\n"
        "steps:\n"
        "  a:\n"
        "    sql: SELECT 1\n"
        "    inptus: [b]\n"
        "    parallelism: two\n"
        "  b: {source: {formt: csv}}\n"
        "  c: 3\n"
    ) == (
        "job.yaml:2:1: job, field 'nam': unknown key; did you mean 'name'?",
        "job.yaml:6:5: step 'a', field 'inptus': unknown key; did you mean 'inputs'?",
        "job.yaml:7:18: step 'a', field 'parallelism': expected a whole number, got text",
        "job.yaml:8:16: step 'b', field 'source.formt': unknown key; did you mean 'format'?",
        "job.yaml:9:6: step 'c': must be a mapping, not a whole number",
    )


def test_problems_of_meaning_are_reported_together_with_their_lines(folder: Path) -> None:
    found = problems_of(
        "name: clicks\n"
        "config: {rest.prot: 8}\n"
        "steps:\n"
        "  a: {sql: SELECT 1, inputs: [b]}\n"
        "  c:\n"
        "    source: {format: csv, path: '${dri}'}\n"
        "  d: {sink: {format: csv, path: x}}\n"
    )

    assert found == (
        "job.yaml:6:5: step 'c', field 'source': no parameter 'dri' for ${dri}",
        "job.yaml:4:22: step 'a', field 'inputs': there is no step 'b'",
        "job.yaml:7:3: step 'd', field 'inputs': a sink needs exactly one input, not 0",
        "job.yaml:2:10: job, field 'config.rest.prot': unknown option; did you mean 'rest.port'?",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [\n", "job.yaml:2:1: invalid YAML"),
        ("", "job.yaml:1:1: the file is empty"),
        ("name: a\nname: b\n", "job.yaml:2:1: duplicate key 'name' (first on line 1)"),
        ("- a\n", "must be a mapping, not a list"),
        ("name: !!python/object:os.system x\n", "job.yaml:1:7: the tag"),
        ("steps: &a {x: *a}\n", "job.yaml:1:8: an alias refers to the value that contains it"),
        (
            "name: j\nsteps: {s: {source: {format: json, path: x, stream: true}}}\n",
            "step 's', field 'source': a streaming source of json files needs a schema",
        ),
        (
            "name: j\nsteps:\n  s: {sql: SELECT 1, uid: u}\n",
            "job.yaml:3:3: step 's': uid, outputMode and trigger are for streaming jobs",
        ),
        ("name: j\nsteps:\n  s: {foreachBatch: 'a:b'}\n", "field 'foreachBatch': only a streaming job has batches"),
        ("name: j\nartifacts: [nope.zip]\nsteps: {}\n", "job.yaml:2:13: job, field 'artifacts': there is no file"),
        ("name: j\nsteps: {p: {program: {file: nope.py}}}\n", "job.yaml:2:23: step 'p': there is no file"),
        ("version: 2\nname: j\n", "job.yaml:1:10: job, field 'version': this version reads documents of version 1"),
    ],
)
def test_each_mistake_has_its_place(folder: Path, text: str, message: str) -> None:
    assert any(message in problem for problem in problems_of(text)), problems_of(text)


def test_a_programs_file_is_sent_without_being_named_twice(folder: Path) -> None:
    Path("job.yaml").write_text("name: j\nsteps: {p: {program: {file: lib.py, args: [a]}}}\n")

    package = read_yaml_job(Path("job.yaml")).package()

    assert [(item.name, item.kind) for item in package.graph.artifacts] == [("lib.py", ArtifactKind.FILE)]


def test_a_file_that_cannot_be_read_is_refused(folder: Path) -> None:
    Path("job.yaml").write_bytes(b"name: \xff\n")

    with pytest.raises(Refused, match="is not UTF-8 text"):
        read_yaml_job(Path("job.yaml"))
    with pytest.raises(Refused, match="No such file"):
        read_yaml_job(Path("other.yaml"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"), ("no", "no"), ("on", "on"), ("true", True), ("0123", "0123"), ("12", 12),
        ("-1.5e3", -1500.0), ("1:30", "1:30"), ("~", None), ("", None), ("0x10", 16), ("'12'", "12"), ("<<", "<<"),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    found: Any = read_yaml(f"x: {text}\n").content

    assert found == {"x": value}
    assert type(found["x"]) is type(value)


def test_the_schema_accepts_what_the_reader_accepts_and_refuses_what_it_refuses() -> None:
    validator = jsonschema_rs.validator_for(json_schema())

    assert validator.is_valid(read_yaml(GOOD).content)
    assert not validator.is_valid({"name": "x", "steps": {"a": {"sql": "x", "inptus": []}}})
    assert not validator.is_valid({"name": "x", "steps": {"a": {}}})
    assert not validator.is_valid({"name": "x", "steps": {"a": {"sql": "x", "result": {}}}})


def test_the_schema_describes_every_key() -> None:
    """With neither a key without a text nor a text without a key."""
    schema = json_schema()
    forms = {"JobSpec": schema, **schema["$defs"]}
    keys = {name: set(form["properties"]) for name, form in forms.items() if "properties" in form}

    assert keys == {name: set(texts) for name, texts in PROPERTIES.items()}
    assert schema["properties"]["labels"]["description"] == "Texts to find the job by."
    assert all(value["description"] for form in forms.values() for value in form.get("properties", {}).values())


def test_labels_are_texts_and_can_be_added_to(folder: Path) -> None:
    Path("job.yaml").write_text(GOOD + "labels: {team: core, run: 7}\n")
    package = read_yaml_job(Path("job.yaml")).package(Overrides(labels={"run": "8", "by": "me"}))

    assert package.graph.labels == {"team": "core", "run": "8", "by": "me"}
    assert read_yaml_job(Path("job.yaml")).package().graph.labels == {"team": "core", "run": "7"}
