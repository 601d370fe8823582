"""Write `src/api/types.ts`: the messages of the REST API as TypeScript, from the same table as `/openapi.json`.

`make docs` runs it; a test compares the file with what this would write. A field that has a default may be missing in
a response.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from flintlock.rest.server.openapi import openapi
from flintlock.rest.server.routes import ROUTES

TYPES: Final = Path(__file__).parent / "src" / "api" / "types.ts"
_HEAD: Final = "// Made from the routes of the REST API by `make docs`.\n"
_PLAIN: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def types_text() -> str:
    """Return the content of the file."""
    description = msgspec.json.decode(msgspec.json.encode(openapi(ROUTES, "")))
    schemas: Mapping[str, Any] = description["components"]["schemas"]
    return _HEAD + "".join(_declaration(name, schemas[name]) for name in sorted(schemas))


def _declaration(name: str, schema: Mapping[str, Any]) -> str:
    comment = f"/** {schema['description']} */\n" if "description" in schema else ""
    if "properties" not in schema:
        return f"\n{comment}export type {name} = {_type(schema)};\n"
    required = frozenset(schema.get("required", ()))
    fields = "".join(
        f"  readonly {_key(key)}{'' if key in required else '?'}: {_type(field)};\n"
        for key, field in schema["properties"].items()
    )
    return f"\n{comment}export interface {name} {{\n{fields}}}\n"


def _key(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type(item) for item in schema["anyOf"])
    kind = schema.get("type")
    if kind == "array":
        return f"ReadonlyArray<{_type(schema.get('items', {}))}>"
    if kind == "object":
        values: Any = schema.get("additionalProperties")
        return f"Readonly<Record<string, {_type(values) if values and values is not True else 'unknown'}>>"
    return _PLAIN.get(str(kind), "unknown")
