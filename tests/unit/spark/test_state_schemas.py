"""The metadata of a state names schemas by absolute paths: those of its own checkpoint, wherever that was made of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.spark.streaming_harness import JOB, FakeQuery, FakeSpark, streaming
from tests.unit.spark.test_rescaled_checkpoints import repartition
from tests.unit.spark.test_rescaled_queries import rescaling

from flintlock.model.streaming.streams import StreamQuery, Trigger, TriggerKind
from flintlock.spark.region.streaming.state_schemas import adopt_schemas, with_own_schemas

SCHEMA = "0/_stateSchema/default/0_11111111-1111-1111-1111-111111111111"


def metadata(*paths: str) -> str:
    """As Spark writes it: a version, and JSON of which only the paths matter here."""
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2, "stateSchemaFilePaths": [*paths]}
    operator = {"operatorId": 0, "operatorName": "transformWithStateInPySparkExec"}
    content = {"operatorInfo": operator, "stateStoreInfo": [store], "operatorPropertiesJson": "{}"}
    return "v2\n" + json.dumps(content, separators=(",", ":"))


def paths_in(file: Path) -> list[str]:
    content: Any = json.loads(file.read_text().partition("\n")[2])
    return [path for store in content["stateStoreInfo"] for path in store["stateSchemaFilePaths"]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint with one schema, and metadata as they were written in the directory of another job."""
    place = tmp_path / "new" / "sessions-v1"
    schema = place / "state" / SCHEMA
    schema.parent.mkdir(parents=True)
    schema.write_bytes(b"v3")
    log = place / "state" / "0" / "_metadata" / "v2"
    log.mkdir(parents=True)
    (log / "0").write_text(metadata(f"file:/old/sessions-v1/state/{SCHEMA}"))
    (log / ".0.crc").write_bytes(b"of the former content")
    return place


def test_paths_of_another_directory_become_those_of_the_checkpoint(checkpoint: Path) -> None:
    """The rest of the metadata stays; a checksum of what was there before would make Spark refuse the file."""
    log = checkpoint / "state" / "0" / "_metadata" / "v2"
    before = (log / "0").read_text()

    adopt_schemas(checkpoint)

    assert (log / "0").read_text() == before.replace("/old/sessions-v1", str(checkpoint))
    assert [path.name for path in log.iterdir()] == ["0"]


def test_a_file_that_a_savepoint_has_too_is_not_written_through_the_link(checkpoint: Path, tmp_path: Path) -> None:
    """A savepoint that changes is damaged."""
    file = checkpoint / "state" / "0" / "_metadata" / "v2" / "0"
    saved = tmp_path / "saved"
    os.link(file, saved)

    adopt_schemas(checkpoint)

    assert paths_in(saved) == [f"file:/old/sessions-v1/state/{SCHEMA}"]
    assert paths_in(file) == [f"file:{checkpoint}/state/{SCHEMA}"]


def test_metadata_that_is_purged_meanwhile_is_passed_over(checkpoint: Path) -> None:
    """An earlier query of the checkpoint may still be ending. A link to nothing is listed, too, and cannot be read."""
    log = checkpoint / "state" / "0" / "_metadata" / "v2"
    (log / "0").rename(log / "5")
    (log / "3").symlink_to(log / "purged")

    adopt_schemas(checkpoint)

    assert paths_in(log / "5") == [f"file:{checkpoint}/state/{SCHEMA}"]


def test_what_names_its_own_files_is_not_written_again(checkpoint: Path) -> None:
    """Each start of a query looks at it."""
    adopt_schemas(checkpoint)
    file = checkpoint / "state" / "0" / "_metadata" / "v2" / "0"
    first = file.stat().st_ino

    adopt_schemas(checkpoint)

    assert file.stat().st_ino == first


@pytest.mark.parametrize(
    "text",
    [
        "v1\n",
        "v2\n[]",
        'v2\n{"stateStoreInfo":[{"storeName":"default"}]}',
        "",
        metadata("file:/old/state/0/_stateSchema/default/7_is-not-there"),
        metadata("hdfs://host/old/schema"),
    ],
)
def test_what_has_another_form_or_is_not_there_is_left_as_it_is(checkpoint: Path, text: str) -> None:
    """Spark reports it by itself."""
    assert with_own_schemas(text, checkpoint) is None


def test_a_path_without_a_scheme_keeps_that_form(checkpoint: Path) -> None:
    found = with_own_schemas(metadata(f"/old/state/{SCHEMA}"), checkpoint)

    assert found == metadata(f"{checkpoint}/state/{SCHEMA}")


def test_a_checkpoint_without_state_has_nothing_to_adopt(tmp_path: Path) -> None:
    adopt_schemas(tmp_path / "none")


def test_a_query_is_started_on_its_own_schemas(checkpoint: Path) -> None:
    """Whatever has made its checkpoint, on this or on another file system."""
    query = StreamQuery(uid=checkpoint.name, trigger=Trigger(kind=TriggerKind.AVAILABLE_NOW))

    streaming(FakeSpark(FakeQuery(True)), query, checkpoint_dir=str(checkpoint.parent)).run()
    streaming(FakeSpark(FakeQuery(True)), query, checkpoint_dir="s3a://bucket/checkpoints").run()

    assert paths_in(checkpoint / "state" / "0" / "_metadata" / "v2" / "0") == [f"file:{checkpoint}/state/{SCHEMA}"]


def test_a_rescaled_query_is_started_on_the_schemas_of_its_checkpoint(tmp_path: Path) -> None:
    """Spark repartitions a copy, which then takes the place of the checkpoint: nothing is where it was written."""

    def in_the_copy(copy: str, partitions: int) -> None:
        repartition(copy, partitions)
        schema, log = Path(copy, "state", SCHEMA), Path(copy, "state/0/_metadata/v2")
        for directory in (schema.parent, log):
            directory.mkdir(parents=True)
        schema.write_bytes(b"v3")
        (log / "5").write_text(metadata(f"file:{schema}"))

    rescaling(tmp_path, FakeSpark(FakeQuery(True)), lambda _: None, repartition=in_the_copy).run()

    place = tmp_path / JOB / "files-v1" / "state"
    assert paths_in(place / "0" / "_metadata" / "v2" / "5") == [f"file:{place}/{SCHEMA}"]
