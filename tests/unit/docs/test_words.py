"""Phrases that users could not understand do not come back: in messages, help, options and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from flintlock.cli.main import app
from flintlock.config.options import OPTIONS

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "src").rglob("*.py")]
PHRASES = (
    "show it to its end",
    "ARGS are its own",
    "for the time of the job",
    "Whose Spark driver",
    "that travels along",
    "means it too",
    "Go on until",
    "jobs that have not ended; -a",
    "in the queue, for",
    "g(o on)",
    "has yet to begin",
    "what it may use can no longer",
    "standing cluster, one that",
    "the latest last:",
    "stands twice",
    "is not YAML",
    "an error came up",
    "says what it needs: then",
    "is not something to run",
    "is there already: name",
    "(not made yet)",
    "the cluster is not ready in time",
    "Tell whether a",
    "Tells JobManagers",
    "trying again may mend",
    "failure-rate bears",
    "chance adds",
    "long a silence",
    "is told to others",
    "another than it is reached",
    "is helped over",
    "before it says yes",
    "by the JobMaster's leave",
    "tells of every attempt",
    "error of Spark's own",
    "taken for lost",
    "good-bye",
    "What stands here",
    "The process lives",
    "Nobody leads",
    "own code has written",
    "shows the whole stack",
)

#: Words that say less than the noun that they stand for, in what users read.
WORDS = re.compile(
    r"\b(?:whoever|nobody|somebody|anew|in earnest|mends?|mended|bur(?:y|ies|ied)|told)\b", re.IGNORECASE
)

#: What is said in other words in messages, too: continues; is already running; a whole number, a list, text.
IN_MESSAGES = re.compile(
    r"\b(?:go(?:es)? on|went on|runs already|expected '(?:int|float|bool|str|array|object)'|of type (?:int|str))\b"
)


def test_no_page_has_a_phrase_that_was_replaced() -> None:
    texts = {page.relative_to(ROOT): " ".join(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert [(str(page), phrase) for page, text in texts.items() for phrase in PHRASES if phrase in text] == []


def helps(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Yield the help of a command and of those below it."""
    context = click.Context(command, info_name=name)
    yield name, command.get_help(context)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from helps(found, f"{name} {below}")


def test_help_options_and_pages_name_their_subject() -> None:
    pages = [page for page in PAGES if page.suffix == ".md" and page.name != "CHANGELOG.md"]
    texts = {
        **{str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in pages},
        **dict(helps(app, "flintlock")),
        **{option.key: f"{option.description} {option.unset}" for option in OPTIONS},
    }
    assert [(place, found.group()) for place, text in texts.items() if (found := WORDS.search(text))] == []


def texts(source: Path) -> Iterator[tuple[int, str]]:
    """Yield the strings of a source file, with their lines, without those that only document."""
    nodes = list(ast.walk(ast.parse(source.read_bytes())))
    documenting = {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documenting:
            yield node.lineno, node.value


def test_messages_and_pages_have_plain_words() -> None:
    sources = sorted((ROOT / "src").rglob("*.py"))
    found = [(str(source.relative_to(ROOT)), *text) for source in sources for text in texts(source)]
    found += [
        (str(page.relative_to(ROOT)), 1, page.read_text(encoding="utf-8")) for page in PAGES if page.suffix == ".md"
    ]
    found += [(place, 1, text) for place, text in helps(app, "flintlock")]
    assert [(place, line, bad.group()) for place, line, text in found if (bad := IN_MESSAGES.search(text))] == []
