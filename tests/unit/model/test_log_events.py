"""Log events are constants of one registry, in one grammar."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from flintlock.model import log_events

SRC = Path(log_events.__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAMES = {event for section in log_events.EVENTS.values() for event in section}


def logged_literals(path: Path) -> Iterator[str]:
    """Yield every log call of a module whose event is written as a literal."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=level), args=[ast.Constant(value=event), *_]
            ) if level in LEVELS:
                yield f"{path.relative_to(SRC)}:{node.lineno} {event!r}"
            case _:
                pass


def test_every_event_is_a_constant_of_the_registry() -> None:
    literals = [found for path in sorted(SRC.rglob("*.py")) for found in logged_literals(path)]
    assert literals == []


@pytest.mark.parametrize("name", sorted(NAMES))
def test_an_event_is_a_subject_and_what_happened(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)+", name)
    assert getattr(log_events, name.upper().replace("-", "_")) == name


def test_every_event_is_logged_somewhere() -> None:
    sources = [path.read_text(encoding="utf-8") for path in SRC.rglob("*.py") if path.name != "log_events.py"]
    text = "\n".join(sources)
    assert [name for name in sorted(NAMES) if f"log_events.{name.upper().replace('-', '_')}" not in text] == []
