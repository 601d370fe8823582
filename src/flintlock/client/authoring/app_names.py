"""The name that a script gives its Spark application: that of its job, unless the command line says otherwise."""

from __future__ import annotations

import ast
from typing import Final

_METHODS: Final = frozenset({"appName", "setAppName"})


def app_name(tree: ast.Module) -> str:
    """Return the first name that is written down as the application's; empty if there is none that a job can have."""
    names = [
        (node.lineno, node.col_offset, node.args[0].value.strip())
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _METHODS
        and len(node.args) == 1
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    ]
    return next((name for _, _, name in sorted(names) if name and name.isprintable()), "")
