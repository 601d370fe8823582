"""The documentation in a real browser, from a web server of this machine."""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
    return [await found.getAttribute("href"), requests];
"""


class SiteHandler(SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name in the base class
        """Write nothing."""


def test_the_site_is_searched_without_any_other_host(chromium: Chromium, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, env={"NO_MKDOCS_2_WARNING": "1"})

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SiteHandler, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            found, requests = chromium.run(SEARCH, f"{address}index.html")
        finally:
            server.shutdown()
            thread.join()

    assert ".html" in found
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
