"""`make site`: every page, every link, and nothing of other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[3]
#: What a browser loads by itself, other than what a reader follows.
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"|url\(["']?(https?:[^)]+)"""
)


class Section(msgspec.Struct):
    """A part of a page that the search finds."""

    location: str


class SearchIndex(msgspec.Struct):
    """What the search knows."""

    docs: list[Section]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it; a broken link or a page outside the navigation fails it."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={"NO_MKDOCS_2_WARNING": "1"}
    )
    assert (built.returncode, built.stderr) == (0, "")
    return directory


def test_the_site_has_every_page_and_finds_it(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    expected = {str(path.with_suffix(".html")).replace("README", "index") for path in pages}
    index = msgspec.json.decode((site / "search/search_index.json").read_bytes(), type=SearchIndex)

    assert {name for name in expected if not (site / name).is_file()} == set()
    assert expected | {"index.html"} <= {section.location.split("#")[0] for section in index.docs}


def test_links_into_the_repository_lead_to_pages_of_the_site(site: Path) -> None:
    for page in site.rglob("*.html"):
        links = re.findall(r'<a[^>]*\shref="([^":#?]+)[#"]', page.read_text(encoding="utf-8"))
        # 404.html is for servers: it has absolute links.
        assert page.name == "404.html" or [link for link in links if not (page.parent / link).exists()] == []
    assert "repository/src/flintlock/cli/jobs/run.py.html" in (site / "walkthrough.html").read_text(encoding="utf-8")


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    loaded = {"".join(found) for path in files for found in LOADED.findall(path.read_text(encoding="utf-8"))}

    assert len(loaded) > 5
    assert [url for url in loaded if "//" in url] == []
