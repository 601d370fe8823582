"""Suggestions for misspelled names, in one form everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the question `did you mean '…'?` with the nearest known name, in any case; empty if none is near."""
    spellings = {item.lower(): item for item in known}
    near = get_close_matches(name.lower(), spellings, n=1, cutoff=cutoff)
    return f"did you mean {spellings[near[0]]!r}?" if near else ""


def suggestion(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did_you_mean` as the end of a sentence."""
    question = did_you_mean(name, known, cutoff)
    return f"; {question}" if question else ""
