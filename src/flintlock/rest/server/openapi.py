"""The OpenAPI description, made from the route table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from flintlock.api import jobs as shapes
from flintlock.rest.server.http import BYTES
from flintlock.rest.server.route import Parameter, Route

_REF = "#/components/schemas/{name}"


def openapi(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of the routes."""
    named = [kind for row in routes for kind in (row.answers, row.takes)]
    kinds = [*{id(kind): kind for kind in named}.values(), shapes.Errors]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    schema_of = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for row in routes:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Flintlock", "version": version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


def _operation(row: Route, schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **_PATTERNS.get(name, {})}}
        for name in re.findall(r"{(\w+)}", row.path)
    ]
    parameters = [
        {
            "name": item.name,
            "in": item.where,
            "required": item.required,
            "description": item.description,
            "schema": _parameter_schema(item),
        }
        for item in row.parameters
    ]
    text = "text/event-stream" if row.streams else "text/html" if row.html else "text/plain"
    content_type = text if row.answers is str else "application/json"
    content: dict[str, Any] = {content_type: {"schema": schema_of[id(row.answers)]}}
    if row.asset:
        content = {kind: {"schema": schema_of[id(str)]} for kind in ("text/javascript", "text/css", "image/svg+xml")}
    if row.also is not None:
        content[row.also] = {"schema": _BINARY}
    operation: dict[str, Any] = {
        "summary": row.summary,
        "operationId": f"{row.method.lower()}{re.sub(r'[^a-z]+', '_', row.path)}".strip("_"),
        "parameters": path_parameters + parameters,
        "responses": {
            str(row.status): {"description": "Success.", "content": content},
            **{str(status): _error(status, schema_of) for status in row.statuses},
        },
        "security": [] if row.role is None else [{name: []} for name in _SCHEMES],
        **({} if row.role is None else {"x-flintlock-required-role": row.role}),
        "x-flintlock-served-by": row.served_by,
        **({"x-flintlock-cache-seconds": row.cache_s} if row.cache_s else {}),
        **({"x-flintlock-max-wait-seconds": row.max_wait_s} if row.max_wait_s else {}),
    }
    if row.body:
        operation["requestBody"] = {
            "required": row.body != (BYTES,),  # an empty blob is valid
            "content": {kind: {"schema": _body_schema(kind, schema_of[id(row.takes)])} for kind in row.body},
        }
    return operation


def _body_schema(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    if kind == "application/json":
        return document
    if kind == "multipart/form-data":
        files = {"type": "array", "items": _BINARY}
        return {
            "type": "object",
            "required": ["request"],
            "properties": {"request": document, "file": files},
        }
    return _BINARY


def _error(status: int, schema_of: dict[int, dict[str, Any]]) -> dict[str, Any]:
    return {
        "description": _REASONS[status],
        "content": {"application/json": {"schema": schema_of[id(shapes.Errors)]}},
    }


def _parameter_schema(item: Parameter) -> dict[str, Any]:
    bounds = {"minimum": item.minimum, "maxLength": item.max_length, "pattern": item.pattern}
    return {"type": item.kind, **{name: bound for name, bound in bounds.items() if bound is not None}}


_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of the cluster (`flintlock token create`), or one of its OpenID Connect provider.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "flintlock_session",
        "description": "The session of a browser (`flintlock dashboard`); the name ends in `_` and the port, if any.",
    },
}
_BINARY = {"type": "string", "format": "binary"}
_PATTERNS = {name: {"pattern": "^[0-9a-f]{32}$"} for name in ("jobid", "vertexid", "triggerid")}
_REASONS = {
    400: "Malformed.",
    401: "There is no credential, or it is wrong, expired or revoked.",
    403: "The credential's role does not allow it, or a web page of another origin sent it.",
    404: "Not found.",
    408: "The request timed out; repeat it.",
    409: "The job's present state does not allow it.",
    413: "Too large.",
    415: "The body is not of a content type that is accepted.",
    429: "Too many requests of this credential; try again after the time in Retry-After.",
    422: "The idempotency key was used with another graph.",
    500: "Internal error; no changes were made.",
    502: "The leader was lost: it is unknown whether the job was accepted (only without an Idempotency-Key).",
    503: "There is no leader at present; try again.",
}
