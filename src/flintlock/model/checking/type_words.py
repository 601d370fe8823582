"""What messages call the types of values in documents: by words that users of YAML, JSON and Python all know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

#: By the names of msgspec, and by those of Python.
_WORDS: Final = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "a boolean", "array": "a list",
    "list": "a list", "tuple": "a list", "object": "a mapping", "dict": "a mapping", "null": "nothing",
    "NoneType": "nothing",
}  # fmt: skip
_ORDER: Final = list(dict.fromkeys(_WORDS.values()))


def is_type(name: str) -> bool:
    """Return whether there are words for a type."""
    return name in _WORDS


def type_words(names: Iterable[str]) -> str:
    """Return the words for one type, or for a choice of several; a choice need not say that it may be left out."""
    words = {_WORDS.get(name, f"a {name}") for name in names}
    if len(words) > 1:
        words.discard("nothing")
    if "a number" in words:
        words.discard("a whole number")  # is one
    ordered = sorted(words, key=lambda word: (_ORDER.index(word) if word in _ORDER else len(_ORDER), word))
    return " or ".join([", ".join(ordered[:-1]), ordered[-1]] if len(ordered) > 1 else ordered)


def words_of(value: object) -> str:
    """Return the words for the type of a value."""
    return type_words([type(value).__name__])
