"""Pages written by hand: links lead somewhere, and decisions have one form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
PARTS = ["Status", "Context", "Decision", "Consequences", "Rejected"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text()) if "://" not in target]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_list_of_decisions_has_each_page_under_its_title() -> None:
    listed = re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    titles = [(page.read_text().splitlines()[0], page.name) for page in sorted(DECISIONS.glob("0*.md"))]

    assert [(f"# {number}. {title}", name) for number, title, name in listed] == titles


@pytest.mark.parametrize("page", sorted(DECISIONS.glob("0*.md")), ids=lambda page: page.name[:4])
def test_a_decision_has_the_form_of_all(page: Path) -> None:
    text = page.read_text()

    assert text.startswith(f"# {int(page.name[:4])}. ")
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == PARTS
    assert re.search(r"^\*\*Status\.\*\* (Accepted|Replaced by)", text, re.MULTILINE)
