"""One name for one thing: no public class or type alias of the product is defined twice."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src/flintlock"

#: Names that still are, to be renamed; a name that no longer is has to leave this set.
STILL_TWICE: frozenset[str] = frozenset()


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
