"""Read YAML with the place of every key and value, and without surprises.

Types are those of YAML 1.2's core schema: `no` and `2026-01-01` are texts, `true` and `false` the only booleans.
Duplicate keys, which PyYAML lets pass, are problems. Job files and configuration files are both read with this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias, cast

import yaml
from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

Path: TypeAlias = tuple[str, ...]


class Mark(Struct, frozen=True):
    """A place in a file, counted from 1."""

    line: int
    column: int


class YamlProblem(Struct, frozen=True, kw_only=True):
    """Something that is wrong with the YAML itself."""

    mark: Mark
    message: str


class Document(Struct, frozen=True, kw_only=True):
    """A file's content and places: `keys` and `values` give the place of each key and of its value by path."""

    content: Any
    keys: dict[Path, Mark]
    values: dict[Path, Mark]
    problems: tuple[YamlProblem, ...]

    def mark(self, path: Path) -> Mark:
        """Return the place of the value at `path`, or else of the nearest one around it."""
        for end in range(len(path), 0, -1):
            found = self.keys.get(path[:end])
            if found is not None:
                return found
        return Mark(1, 1)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the implicit types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 filled below; PyYAML copies it on the first addition


_TAG: Final = "tag:yaml.org,2002:"
_CORE: Final = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan", "-+0123456789."),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
)  # fmt: skip
for _name, _pattern, _first in _CORE:
    _Loader.add_implicit_resolver(
        _TAG + _name, re.compile(rf"(?:{_pattern})\Z"), ["" if char == "\0" else char for char in _first]
    )


def read_yaml(text: str) -> Document:
    """Return the document with its places. What cannot be read is among its problems; never raises for it."""
    try:
        root = cast("Node | None", yaml.compose(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(mark.line + 1, mark.column + 1) if mark is not None else Mark(1, 1)
        message = ", ".join(part for part in (error.context, error.problem) if part)
        hint = "; indent with spaces" if "'\\t'" in message else ""
        return _unread(place, f"invalid YAML: {message}{hint}")
    except yaml.YAMLError as error:
        return _unread(Mark(1, 1), f"invalid YAML: {error}")
    if root is None:
        return _unread(Mark(1, 1), "the file is empty")
    reader = _Reader()
    content = reader.value(root, ())
    return Document(content=content, keys=reader.keys, values=reader.values, problems=tuple(reader.problems))


class _Reader:
    """Walks the nodes and records their places."""

    def __init__(self) -> None:
        self.keys: Final[dict[Path, Mark]] = {}
        self.values: Final[dict[Path, Mark]] = {}
        self.problems: Final[list[YamlProblem]] = []
        self._open: Final[set[int]] = set()  # nodes on the way down: an alias to one of them has no end

    def value(self, node: Node, path: Path) -> Any:
        self.values[path] = _mark(node)
        if id(node) in self._open:
            self.problems.append(YamlProblem(mark=_mark(node), message="an alias refers to the value that contains it"))
            return None
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        self._open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return [self.value(item, (*path, str(index))) for index, item in enumerate(node.value)]
            return dict(self._items(node, path)) if isinstance(node, MappingNode) else None
        finally:
            self._open.discard(id(node))

    def _items(self, node: MappingNode, path: Path) -> Iterator[tuple[str, Any]]:
        first: dict[str, Mark] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.problems.append(YamlProblem(mark=_mark(key), message="a key must be a plain text"))
                continue
            name, mark = str(key.value), _mark(key)
            if name in first:
                message = f"duplicate key {name!r} (first on line {first[name].line})"
                self.problems.append(YamlProblem(mark=mark, message=message))
                continue
            first[name] = self.keys[(*path, name)] = mark
            yield name, self.value(value, (*path, name))

    def _scalar(self, node: ScalarNode) -> Any:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0)
            case "float":
                return float(
                    text.replace(".inf", "inf").replace(".Inf", "inf").replace(".nan", "nan").replace(".NaN", "nan")
                )
            case "null":
                return None
            case "str":
                return text
            case _:
                self.problems.append(YamlProblem(mark=_mark(node), message=f"the tag {node.tag!r} is not known here"))
                return text


def _mark(node: Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)


def _unread(mark: Mark, message: str) -> Document:
    return Document(content=None, keys={}, values={}, problems=(YamlProblem(mark=mark, message=message),))
