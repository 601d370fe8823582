"""What the state in a savepoint is, as far as its files say that without Spark: schemas, and numbers of rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from msgspec import Struct

from flintlock.model.streaming.savepoints import QUERIES, SavepointManifest
from flintlock.savepoints.checkpoints import snapshot_metadata

_STORE: Final = re.compile(
    r"state/(?P<operator>\d+)/(?P<store>\d+(?:/[^/]+)?)/(?P<version>\d+)(?:_[0-9a-f-]+)?\.(?P<kind>\w+)"
)
# Spark has it in the store of the first partition; of operators with several stores in each of these, or beside all.
_SCHEMA: Final = re.compile(r"state/(?P<operator>\d+)/(?:(?:\d+/(?:[^/]+/)?)?_metadata/schema|_stateSchema/[^/]+/.+)")
_STRUCT: Final = '{"type":"struct"'


class SavedState(Struct, frozen=True, kw_only=True):
    """The state of one operator of a query."""

    uid: str
    operator: int
    partitions: int
    rows: int | None = None  # None: it is in changes of which only Spark knows the sum
    bytes: int = 0
    schemas: tuple[str, ...] = ()  # of keys and values, each once


def saved_states(queries: Path, manifest: SavepointManifest) -> tuple[SavedState, ...]:
    """Return what is in the state of each query of a savepoint. Files that cannot be read are left out.

    `queries`: the directory that has one directory for each uid.
    """
    return tuple(state for query in manifest.queries for state in _states(queries / query.uid, query.uid, manifest))


def schemas_in(data: bytes) -> tuple[str, ...]:
    """Return the schemas in a file of a state's schema, which has them as JSON among lengths and names."""
    text, found = data.decode("utf-8", errors="replace"), dict[str, None]()
    at = text.find(_STRUCT)
    while at >= 0:
        try:
            schema, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            at = text.find(_STRUCT, at + 1)
            continue
        found[_shown(schema)] = None
        at = text.find(_STRUCT, end)
    return tuple(found)


def _states(place: Path, uid: str, manifest: SavepointManifest) -> Iterator[SavedState]:
    prefix = f"{QUERIES}/{uid}/"
    files = {file.path.removeprefix(prefix): file.size for file in manifest.files if file.path.startswith(prefix)}
    stores: dict[int, dict[str, tuple[int, str, str]]] = {}  # by operator and store: the latest version
    sizes: dict[int, int] = {}
    schemas: dict[int, dict[str, None]] = {}
    for name, size in sorted(files.items()):
        parts = name.split("/")
        if parts[0] == "state" and len(parts) > 1 and parts[1].isdecimal():
            sizes[int(parts[1])] = sizes.get(int(parts[1]), 0) + size
        if (match := _SCHEMA.fullmatch(name)) is not None:
            schemas.setdefault(int(match["operator"]), {}).update(dict.fromkeys(schemas_in(_bytes(place / name))))
        if (match := _STORE.fullmatch(name)) is not None:
            latest = stores.setdefault(int(match["operator"]), {})
            version = (int(match["version"]), match["kind"], name)
            latest[match["store"]] = max(latest.get(match["store"], version), version)
    for operator, latest in sorted(stores.items()):
        counts = [_rows(place / name) if kind == "zip" else None for _, kind, name in latest.values()]
        yield SavedState(
            uid=uid,
            operator=operator,
            partitions=len({store.partition("/")[0] for store in latest}),
            rows=None if None in counts else sum(count or 0 for count in counts),
            bytes=sizes.get(operator, 0),
            schemas=tuple(schemas.get(operator, {})),
        )


def _rows(file: Path) -> int | None:
    """Return the number of rows that RocksDB notes in its snapshot; None if it notes none."""
    try:
        keys: object = snapshot_metadata(file).get("numKeys")
    except (OSError, ValueError):
        return None
    return keys if isinstance(keys, int) and keys >= 0 else None


def _shown(schema: Any) -> str:
    """Return a schema of Spark as people write it: `k string, n bigint`."""
    if isinstance(schema, dict):
        kind = cast("dict[str, Any]", schema)
        match kind.get("type"):
            case "struct":
                fields = cast("list[dict[str, Any]]", kind.get("fields", []))
                return ", ".join(f"{field.get('name')} {_shown_type(field.get('type'))}" for field in fields)
            case other:
                return str(other)
    return str(schema)


def _shown_type(kind: Any) -> str:
    return f"struct<{_shown(kind)}>" if isinstance(kind, dict) and kind.get("type") == "struct" else _shown(kind)


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
