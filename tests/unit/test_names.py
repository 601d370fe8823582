"""One name for one thing: no public class or type alias is defined twice. And no folder is too long to be read."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/flintlock"

#: Names that still are, to be renamed; a name that no longer is has to leave this set.
STILL_TWICE: frozenset[str] = frozenset()

#: How many modules a package may have beside its sub-packages, its own __init__.py among them.
MAX_MODULES = 17


def names(module: Path) -> Iterator[str]:
    """Yield the public classes, type aliases and new types that a module defines at its top level."""
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="NewType"))):
                pass
            case _:
                continue
        if not name.startswith("_"):
            yield name


def test_no_public_name_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module in sorted(SOURCE.rglob("*.py")):
        for name in names(module):
            places[name].append(str(module.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}

    assert {name: where for name, where in twice.items() if name not in STILL_TWICE} == {}
    assert twice.keys() >= STILL_TWICE, "these are defined once now: remove them from the set"


def test_no_package_has_more_modules_than_a_reader_takes_in() -> None:
    packages = [SOURCE, *(path for path in SOURCE.rglob("*") if (path / "__init__.py").exists())]
    sizes = {str(package.relative_to(SOURCE)): len(list(package.glob("*.py"))) for package in packages}

    assert {name: size for name, size in sizes.items() if size > MAX_MODULES} == {}
