"""The modules beside a script that it imports: Python finds them in the script's folder, so they travel with it.

So do modules in folders that the script puts on `sys.path`, where it names them by its own place (`__file__`), and
folders without an `__init__.py`, from which Python imports all the same.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct


class Sibling(Struct, frozen=True):
    """A module (a file) or a package (a folder) beside a script, with the syntax trees of its files."""

    path: Path
    trees: tuple[ast.Module, ...]


def siblings(script: Path, tree: ast.Module) -> list[Sibling]:
    """Return what a script imports from its folders, directly or through another sibling, in order of names.

    A file that is not valid Python travels, too: the error is the script's to report.
    """
    folders = (script.parent, *added_folders(script, tree))
    found: dict[str, Sibling] = {}
    pending = [tree]
    while pending:
        for name in sorted(set(_imported(pending.pop())) - found.keys()):
            sibling = _sibling(folders, name)
            if sibling is not None:
                found[name] = sibling
                pending += sibling.trees
    return [found[name] for name in sorted(found)]


def added_folders(script: Path, tree: ast.Module) -> tuple[Path, ...]:
    """Return the folders that a script puts on `sys.path`, as far as they are named by its own place."""
    values = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    added: dict[Path, None] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), attr="insert" | "append"
                ),
                args=[*_, path],
            ):
                folder = _folder(path, script, values)
                if folder is not None and folder.is_dir():
                    added[folder.resolve()] = None
            case _:
                pass
    return tuple(folder for folder in added if folder != script.parent)


def _folder(node: ast.expr, script: Path, values: Mapping[str, ast.expr], depth: int = 0) -> Path | None:
    """Return the path that an expression over `__file__` means; None for any other one."""

    def path_of(inner: ast.expr) -> Path | None:
        return _folder(inner, script, values, depth + 1) if depth < _DEEPEST else None

    match node:
        case ast.Name(id="__file__"):
            return script
        case ast.Name(id=name) if name in values:
            return path_of(values[name])
        case ast.Attribute(value=inner, attr="parent"):
            return _parent(path_of(inner), 1)
        case ast.Subscript(value=ast.Attribute(value=inner, attr="parents"), slice=ast.Constant(value=int(number))):
            return _parent(path_of(inner), number + 1)
        case ast.BinOp(left=inner, op=ast.Div(), right=ast.Constant(value=str(name))):
            return _joined(path_of(inner), [name])
        case (
            ast.Call(func=ast.Attribute(attr="dirname"), args=[inner])
            | ast.Call(func=ast.Name(id="dirname"), args=[inner])
        ):
            return _parent(path_of(inner), 1)
        case (
            ast.Call(func=ast.Attribute(attr="join") | ast.Name(id="join"), args=[inner, *names])
            | ast.Call(func=ast.Attribute(value=inner, attr="joinpath"), args=names)
        ):
            texts = [one.value for one in names if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            return _joined(path_of(inner), texts) if len(texts) == len(names) else None
        case ast.Call(func=ast.Attribute(value=inner, attr="resolve" | "absolute" | "as_posix"), args=[]):
            return path_of(inner)
        case ast.Call(args=[inner]):  # str, Path, abspath, realpath, fspath
            return path_of(inner)
        case _:
            return None


_DEEPEST: Final = 20  # nested expressions and names: a name may be defined by itself


def _parent(path: Path | None, levels: int) -> Path | None:
    return None if path is None or not 0 < levels <= len(path.parents) else path.parents[levels - 1]


def _joined(path: Path | None, names: list[str]) -> Path | None:
    return None if path is None else path.joinpath(*names)


def _sibling(folders: Sequence[Path], name: str) -> Sibling | None:
    """Return the module of that name as Python finds it: folders without an `__init__.py` come last."""
    for folder in folders:
        package, module = folder / name, folder / f"{name}.py"
        if (package / "__init__.py").is_file():
            return Sibling(package, _trees(sorted(package.rglob("*.py"))))
        if module.is_file():
            return Sibling(module, _trees([module]))
    if name in sys.stdlib_module_names:
        return None  # Python prefers its own
    for folder in folders:
        sources = sorted((folder / name).rglob("*.py")) if (folder / name).is_dir() else []
        if sources:
            return Sibling(folder / name, _trees(sources))
    return None


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
