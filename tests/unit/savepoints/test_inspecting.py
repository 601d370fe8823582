"""What a savepoint says about its state without Spark."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from flintlock.model.streaming.savepoints import SavedQuery, SavepointFile, SavepointManifest
from flintlock.savepoints.inspecting import saved_states, schemas_in

KEY: dict[str, object] = {"type": "struct", "fields": [{"name": "k", "type": "string", "nullable": True}]}
WINDOW: dict[str, object] = {"type": "struct", "fields": [{"name": "start", "type": "timestamp"}]}
VALUE: dict[str, object] = {"type": "struct", "fields": [{"name": "n", "type": "long"}, {"name": "w", "type": WINDOW}]}


def schema_file(*schemas: object) -> bytes:
    """Return schemas as Spark writes them: JSON between lengths."""
    texts = [json.dumps(schema, separators=(",", ":")).encode() for schema in schemas]
    return b"v2\n" + b"".join(b"\x00\x00\x00\x01" + len(text).to_bytes(2, "big") + text for text in texts)


def snapshot(file: Path, rows: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [], "numKeys": rows}))


def manifest_of(root: Path) -> SavepointManifest:
    files = [path for path in root.rglob("*") if path.is_file()]
    return SavepointManifest(
        job_id="a" * 32,
        job_name="job",
        created_ms=1,
        spark="4.3.0",
        queries=(SavedQuery(uid="u", step="s", batch=4, query_id="q"),),
        files=tuple(
            SavepointFile(path=str(path.relative_to(root)), size=path.stat().st_size, sha256="0" * 64) for path in files
        ),
    )


def test_rows_partitions_and_schemas_of_each_operator(tmp_path: Path) -> None:
    place = tmp_path / "queries" / "u" / "state"
    snapshot(place / "0" / "0" / "4.zip", 100)
    snapshot(place / "0" / "0" / "5.zip", 7)
    snapshot(place / "0" / "1" / "5.zip", 3)
    (place / "0" / "0" / "_metadata").mkdir()
    (place / "0" / "0" / "_metadata" / "schema").write_bytes(schema_file(KEY, VALUE, KEY))
    snapshot(place / "1" / "0" / "left-keyToNumValues" / "4.zip", 1)
    (place / "1" / "_stateSchema" / "default").mkdir(parents=True)
    (place / "1" / "_stateSchema" / "default" / "0_a").write_bytes(schema_file(KEY))
    (place / "1" / "0" / "left-keyToNumValues" / "5.changelog").write_text("changes")

    first, second = saved_states(tmp_path / "queries", manifest_of(tmp_path))

    assert (first.uid, first.operator, first.partitions, first.rows) == ("u", 0, 2, 10)
    assert first.schemas == ("k string", "n long, w struct<start timestamp>")
    assert first.bytes > 0
    assert (second.operator, second.partitions, second.rows) == (1, 1, None), "only Spark can count changes"
    assert second.schemas == ("k string",)


def test_what_is_damaged_is_left_out() -> None:
    assert schemas_in(b'v2\n\x00{"type":"struct","fields":[' + schema_file(KEY)) == ("k string",)
    assert schemas_in(b"\xff\xfe") == ()
