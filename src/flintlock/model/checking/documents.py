"""Checks a decoded document (JSON, YAML) against the struct that describes it, and reports every mismatch.

An unknown key is reported with the nearest known one, a wrong type with the keys that lead to it; list items count as
keys `0`, `1`, …. A document without problems converts without error.

Rejected: converting it with msgspec alone. That stops at the first problem, and names mapping keys as `[...]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import UnionType
from typing import Any, TypeAlias, Union, cast, get_args, get_origin

import msgspec
from msgspec import Struct, structs

from flintlock.model.checking.problems import abbreviated
from flintlock.model.checking.suggestions import Suggestions
from flintlock.model.checking.type_words import is_type, type_words, words_of

DocumentProblem: TypeAlias = tuple[tuple[str, ...], str]
"""The keys that lead to it, and what is wrong there."""


def document_problems(
    kind: type[Struct], document: object, path: tuple[str, ...] = (), suggestions: Suggestions | None = None
) -> Iterator[DocumentProblem]:
    """Yield every problem that keeps the document from being converted to `kind`, by the keys that lead to it.

    `suggestions` are those of the document that this one is a part of.
    """
    suggestions = suggestions or Suggestions()
    if not isinstance(document, Mapping):
        yield (path, f"must be a mapping, not {words_of(document)}")
        return
    known = {field.encode_name: field for field in structs.fields(kind)}
    given = cast("Mapping[object, object]", document)
    for key, item in given.items():
        field = known.get(key) if isinstance(key, str) else None
        if field is not None:
            yield from _problems(field.type, item, (*path, field.encode_name), suggestions)
        elif kind.__struct_config__.forbid_unknown_fields:
            hint = suggestions.did_you_mean(str(key), known) or f"known are {', '.join(known)}"
            yield ((*path, str(key)), f"unknown key; {hint}")
    for field in known.values():
        if field.required and field.encode_name not in given:
            yield (path, f"needs the key {field.encode_name!r}")


def _problems(kind: Any, value: object, path: tuple[str, ...], suggestions: Suggestions) -> Iterator[DocumentProblem]:
    """Descend into mappings, lists and structs; convert every other value."""
    for choice in _choices(kind):
        of = get_args(choice)
        if isinstance(value, Mapping) and get_origin(choice) is dict:
            for key, item in cast("Mapping[object, object]", value).items():
                if isinstance(key, str):
                    yield from _problems(of[1], item, (*path, key), suggestions)
                else:
                    yield ((*path, str(key)), f"a key must be text, not {words_of(key)}")
            return
        if isinstance(value, list | tuple) and get_origin(choice) is tuple:
            for index, item in enumerate(cast("Sequence[object]", value)):
                yield from _problems(of[0], item, (*path, str(index)), suggestions)
            return
        # For a value that must be a mapping, the struct's problem is clearer; if other types are allowed, msgspec's is.
        if _is(choice, Struct) and (isinstance(value, Mapping) or choice is kind):
            yield from document_problems(choice, cast("object", value), path, suggestions)
            return
        if isinstance(value, str) and _is(choice, StrEnum):
            yield from _enum_problems(cast("type[StrEnum]", choice), value, path, suggestions)
            return
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        yield (path, _plain(str(error)))


def _enum_problems(
    kind: type[StrEnum], value: str, path: tuple[str, ...], suggestions: Suggestions
) -> Iterator[DocumentProblem]:
    try:
        kind(value)  # which knows other spellings, too
    except ValueError:
        names = [str(item) for item in kind]
        hint = suggestions.suggestion(value, names)
        yield (path, f"{abbreviated(value)!r} is not one of {', '.join(names)}{hint}")


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is(choice: Any, base: type) -> bool:
    return isinstance(choice, type) and issubclass(choice, base)


def _plain(text: str) -> str:
    """Put msgspec's message into the words of users, without its own path: the problem has a better one."""
    text = re.sub(r" - at `.*`$", "", text).replace("Expected", "expected")
    return re.sub(r"`([^`]*)`", _words, text.replace(", got `float`", ", got a decimal number"))


def _words(quoted: re.Match[str]) -> str:
    """Return the words for a type, or a choice of types; what is none keeps its quotes."""
    names = quoted[1].split(" | ")
    return type_words(names) if all(map(is_type, names)) else f"'{quoted[1]}'"
