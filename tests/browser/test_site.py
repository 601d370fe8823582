"""The documentation in a real browser: opened from files, without any network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.browser.chromium import Chromium

ROOT = Path(__file__).parents[2]
SEARCH = """
    const requests = [];
    page.on("request", request => requests.push(request.url()));
    await page.goto(argument);
    await page.locator("input.md-search__input").fill("heartbeat");
    const found = page.locator("a.md-search-result__link").first();
    await found.waitFor();
    return [await found.getAttribute("href"), requests.filter(url => !/^(file|data|blob):/.test(url))];
"""


def test_the_site_is_searched_from_files(chromium: Chromium, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={"NO_MKDOCS_2_WARNING": "1"})

    found, foreign = chromium.run(SEARCH, (tmp_path / "index.html").as_uri())

    assert ".html" in found
    assert foreign == []
