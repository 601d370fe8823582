"""How field names are written. Flink's REST API uses all three ways; a message keeps the one that Flink uses."""

from __future__ import annotations

from msgspec import Struct


class ApiStruct(Struct, frozen=True, kw_only=True):
    """A message whose fields are written as they are declared. Unknown fields are ignored: the sender may be newer."""


class KebabCase(ApiStruct, frozen=True, kw_only=True, rename="kebab"):
    """A message whose fields are written with hyphens."""


class CamelCase(ApiStruct, frozen=True, kw_only=True, rename="camel"):
    """A message whose fields are written in camelCase."""
