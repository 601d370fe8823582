"""The modules beside a script that it imports: Python finds them in the script's folder, so they travel with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct


class Sibling(Struct, frozen=True):
    """A module (a file) or a package (a folder) beside a script, with the syntax trees of its files."""

    path: Path
    trees: tuple[ast.Module, ...]


def siblings(folder: Path, tree: ast.Module) -> list[Sibling]:
    """Return what a script in this folder imports from it, directly or through another sibling, in order of names.

    A file that is not valid Python travels, too: the error is the script's to report.
    """
    found: dict[str, Sibling] = {}
    pending = [tree]
    while pending:
        for name in sorted(set(_imported(pending.pop())) - found.keys()):
            sibling = _sibling(folder, name)
            if sibling is not None:
                found[name] = sibling
                pending += sibling.trees
    return [found[name] for name in sorted(found)]


def _sibling(folder: Path, name: str) -> Sibling | None:
    package, module = folder / name, folder / f"{name}.py"
    if (package / "__init__.py").is_file():
        return Sibling(package, _trees(sorted(package.rglob("*.py"))))
    return Sibling(module, _trees([module])) if module.is_file() else None


def parsed(file: Path) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is not valid Python."""
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except (OSError, SyntaxError, ValueError):
        return None


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level names of all modules that are imported absolutely."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case _:
                pass


def _trees(files: list[Path]) -> tuple[ast.Module, ...]:
    return tuple(tree for file in files if (tree := parsed(file)) is not None)
