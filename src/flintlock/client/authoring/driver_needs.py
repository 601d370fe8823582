"""Finds by reading a script whether it needs a Spark driver of its own, which Spark Connect cannot replace.

What is overlooked here (a helper of a helper, a computed name) is noticed by the runner when the script asks for it.
A script that is given a driver without need only starts later.
"""

from __future__ import annotations

import ast
import re
from typing import Final

from msgspec import Struct

from flintlock.model.checking.dependencies import STATIC_SETTINGS

#: What a session has only where its driver is in the same process tree. `approxSimilarityJoin` exists in Connect, but
#: ignores the name that is given for the column of distances.
_ATTRIBUTES: Final = frozenset({
    "sparkContext", "rdd", "_jvm", "_jsc", "_sc", "enableHiveSupport", "saveAsTable", "approxSimilarityJoin",
})  # fmt: skip
_MODULES: Final = ("pyspark.mllib", "pyspark.streaming", "pyspark.rdd", "pyspark.context", "pyspark.core")
_NAMES: Final = {
    "pyspark": frozenset({"SparkContext", "RDD", "Accumulator", "Broadcast"}),
    "pyspark.sql": frozenset({"SQLContext", "HiveContext"}),
    "pyspark.sql.context": frozenset({"SQLContext", "HiveContext"}),
}
_CREATES_A_TABLE: Final = re.compile(r"\s*CREATE\s+(?:OR\s+REPLACE\s+)?(?:EXTERNAL\s+)?TABLE\s", re.IGNORECASE)


class DriverNeed(Struct, frozen=True, kw_only=True):
    """What a script uses that needs a driver, and on which line."""

    what: str
    line: int


def driver_need(tree: ast.Module) -> DriverNeed | None:
    """Return the first use of something that only a dedicated driver has; None if there is none to be seen."""
    found = [need for node in ast.walk(tree) if (need := _need(node)) is not None]
    return min(found, key=lambda need: need.line, default=None)


def _need(node: ast.AST) -> DriverNeed | None:
    match node:
        case ast.Import() | ast.ImportFrom():
            return _import_need(node)
        case ast.Attribute(attr=attribute) if attribute in _ATTRIBUTES:
            return DriverNeed(what=attribute, line=node.lineno)
        case ast.Attribute(value=ast.Name(id="pyspark"), attr="SparkContext"):
            return DriverNeed(what="SparkContext", line=node.lineno)
        case ast.Constant(value=str(text)) if _CREATES_A_TABLE.match(text):
            return DriverNeed(what="CREATE TABLE", line=node.lineno)
        case ast.Call(func=ast.Attribute(attr="config"), args=[ast.Constant(value=str(key)), *_]):
            if key in STATIC_SETTINGS:
                return DriverNeed(what=key, line=node.lineno)
        case _:
            pass
    return None


def _import_need(node: ast.Import | ast.ImportFrom) -> DriverNeed | None:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if _is_in(alias.name, _MODULES):
                    return DriverNeed(what=alias.name, line=node.lineno)
        case ast.ImportFrom(module=str(module), names=names, level=0):
            if _is_in(module, _MODULES):
                return DriverNeed(what=module, line=node.lineno)
            for alias in names:
                if alias.name in _NAMES.get(module, ()) or f"{module}.{alias.name}" in _MODULES:
                    return DriverNeed(what=alias.name, line=node.lineno)
        case _:
            pass
    return None


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
