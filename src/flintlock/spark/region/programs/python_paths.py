"""Refuses Python's own relative paths in a program whose directory does not exist where it runs.

Such a program starts in an empty directory of its task, which is removed with it: a file that it writes by a relative
path would be lost, and one that it reads would be missing. So the script is read before it is run: a path that is
written down in a statement that is always executed is refused before anything runs. All others are refused when they
are used, by a hook of Python's audit. Files that were sent with the program are there, and may be read by their names;
a program that changes its directory decides for itself.

Rejected: refusing every program whose directory is missing. Most programs on several machines use no relative path.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from flintlock.model.operations.kind import is_relative
from flintlock.model.tasks import FailureKind
from flintlock.spark.region.errors.failures import TaskError

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Events of Python's audit whose first arguments are paths, and how many are.
_EVENTS: Final = {
    "os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.rename": 2, "os.truncate": 1, "os.link": 2, "os.symlink": 2,
    "os.listdir": 1, "os.scandir": 1, "os.chdir": 1, "sqlite3.connect": 1,
}  # fmt: skip
_ONLY_READING: Final = frozenset({"os.listdir", "os.scandir", "os.chdir"})
_CHAINS: Final = frozenset({"read", "readStream", "write", "writeStream"})
_READERS: Final = frozenset({"csv", "json", "load", "orc", "parquet", "save", "start", "text", "textFile", "xml"})


class RelativePathRefused(TaskError, FileNotFoundError):
    """A relative path without a directory to start in; as a FileNotFoundError, code for optional files handles it."""


class PythonPaths:
    """Checks the paths of one program. `problem`: why they have no directory; `directory`: where it starts instead."""

    def __init__(self, problem: str, directory: Path) -> None:
        self._problem: Final = problem
        self._directory: Final = directory

    def check_script(self, tree: ast.Module) -> None:
        """Raise RelativePathRefused for a path in a statement that is executed whatever happens."""
        for path, line, writes in written_paths(tree):
            if is_relative(path) and (writes or not (self._directory / path).exists()):
                raise self._refusal(path, f"in line {line} ")

    def watch(self) -> None:
        """Check the paths that are used from now on, to the end of the process."""
        sys.addaudithook(self.observe)

    def observe(self, event: str, args: tuple[Any, ...]) -> None:
        """Raise RelativePathRefused if an event of Python's audit uses a relative path in the task's own directory."""
        if event == "open":
            path, mode, flags = args
            writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
            self._check(path, writes=writes)
        elif event in _EVENTS:
            for path in args[: _EVENTS[event]]:
                self._check(path, writes=event not in _ONLY_READING)

    def _check(self, path: object, *, writes: bool) -> None:
        name = path if isinstance(path, str) else os.fsdecode(path) if isinstance(path, bytes) else ""
        if not name or name.startswith(("/", ":", "file:")):  # ":memory:" of SQLite is no file
            return
        if not os.path.samefile(os.getcwd(), self._directory):  # noqa: PTH109, PTH121 - the program has changed it
            return
        if writes or not os.path.exists(name):  # noqa: PTH110 - a Path would be made at each event
            raise self._refusal(name)

    def _refusal(self, path: str, place: str = "") -> RelativePathRefused:
        return RelativePathRefused(
            FailureKind.CONFIGURATION,
            f"the path {path!r} {place}is relative, and {self._problem}: give an absolute path, or a directory that "
            "all TaskManagers have (`directory` of the job)",
        )


def written_paths(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield each path that is written down in a statement that always runs, its line, and whether it is written to.

    Statements at the top of a script and in `if __name__ == "__main__"` always run, and so do those of functions that
    these call by their names; what is under another condition may not. A script that changes its directory has none.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if any(isinstance(call.func, ast.Attribute) and call.func.attr in ("chdir", "fchdir") for call in calls):
        return
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    pending, called = list(_always(tree.body)), set[str]()
    while pending:
        call = pending.pop(0)
        found = _path_of(call)
        if found is not None:
            yield found[0], call.lineno, found[1]
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in functions and name not in called:
            called.add(name)
            pending += _always(functions[name].body)


def _always(statements: Iterable[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls in these statements that are made whatever happens, up to the first that may end them early."""
    for statement in statements:
        match statement:
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), body=body):
                yield from _always(body)
            case ast.With(items=items, body=body):
                for item in items:
                    yield from _calls(item.context_expr)
                yield from _always(body)
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from _calls(statement)
            case ast.If() | ast.Try() | ast.While() | ast.For() | ast.Match() | ast.Return() | ast.Raise():
                return  # what follows may not be reached
            case _:
                pass


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in an expression, except for those that may not be made."""
    if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp | ast.ListComp | ast.SetComp | ast.DictComp):
        return
    if isinstance(node, ast.GeneratorExp):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _path_of(call: ast.Call) -> tuple[str, bool] | None:
    """Return the path in a call of `open` or of Spark's readers and writers, and whether it is written to."""
    if not call.args or not isinstance(call.args[0], ast.Constant) or not isinstance(call.args[0].value, str):
        return None
    path = call.args[0].value
    match call.func:
        case ast.Name(id="open"):
            return path, any(sign in mode for mode in _texts(call) for sign in "wax+")
        case ast.Attribute(attr=name) if name in _READERS:
            chain = _attributes(call.func) & _CHAINS
            return (path, bool(chain & {"write", "writeStream"})) if chain else None
        case _:
            return None


def _texts(call: ast.Call) -> list[str]:
    """Return the mode of a call of `open`, if it has one that is written down."""
    values = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


def _attributes(node: ast.expr) -> set[str]:
    names: set[str] = set()
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
            node = node.value
        else:
            node = node.func
    return names
