"""What the hand-written pages say about the code is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flintlock.cli.main import COMMANDS
from flintlock.config.options import OPTIONS

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "flintlock"
LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./src/[^)]+)\)")
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]


def _defines(text: str, name: str) -> bool:
    """Whether a module defines a class, function, method, constant or log event of this name."""
    return re.search(rf"^\s*(?:class|def|async def) {name}\b|^{name}\b\s*[:=]", text, re.MULTILINE) is not None


def _links() -> list[tuple[str, str]]:
    return LINK.findall((DOCS / "walkthrough.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("symbol", "link"), sorted(set(_links())))
def test_a_link_of_the_walkthrough_leads_to_its_symbol(symbol: str, link: str) -> None:
    text = (DOCS / link).resolve().read_text(encoding="utf-8")
    missing = [name for name in symbol.split(".") if not _defines(text, name)]
    assert missing == [], f"{link} does not define {missing}"


def test_every_link_of_the_walkthrough_into_the_code_names_a_symbol() -> None:
    text = (DOCS / "walkthrough.md").read_text(encoding="utf-8")
    assert len(_links()) == text.count("](../src/")


def test_every_name_in_the_glossary_exists() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    rows = [line.split("|") for line in (DOCS / "glossary.md").read_text(encoding="utf-8").splitlines()]
    names = [name for row in rows if len(row) == 5 for name in re.findall(r"`([^`]+)`", row[2])]
    unknown = [name for name in names if not (SOURCE / name).exists() and not _defines(sources, name)]
    assert len(names) > 40
    assert unknown == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    commands = re.findall(r"(?:`|^)flintlock ([a-z][a-z-]*)", text, re.MULTILINE)
    groups = "|".join(sorted({option.key.split(".")[0] for option in OPTIONS}))
    options = re.findall(rf"`((?:{groups})(?:\.[a-z]+(?:-[a-z]+)*)+)`", text)
    files = ("json", "yaml", "py", "md")

    assert [name for name in commands if name not in COMMANDS] == []
    known = {option.key for option in OPTIONS}
    assert [key for key in options if key not in known and not key.endswith(files)] == []
