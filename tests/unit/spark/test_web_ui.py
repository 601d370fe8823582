"""Reading Spark's UI: with a token, with the root of its links, and not more than a page may have."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flintlock.model.diagnostics import MAX_UI_BYTES
from flintlock.model.errors import Refused, Unavailable
from flintlock.spark.engine.web_ui import WebUi

ROOT = "/spark-ui/pass"
KEY = base64.urlsafe_b64encode(b"k" * 32).decode().rstrip("=")


class Ui(BaseHTTPRequestHandler):
    """Answers with what it was sent, or as the path says."""

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/":
            self.send_response(302)
            self.send_header("Location", f"http://{self.headers['Host']}/jobs/?a=1")
            self.end_headers()
            return
        body = b"x" * (MAX_UI_BYTES + 1) if self.path == "/large" else json.dumps(dict(self.headers)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's signature
        """Print nothing."""


@pytest.fixture(scope="module")
def ui() -> Iterator[WebUi]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Ui) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield WebUi(f"http://127.0.0.1:{server.server_address[1]}", KEY)
        server.shutdown()
        thread.join()


def test_a_request_has_a_signed_token_and_the_root_of_its_links(ui: WebUi) -> None:
    page = ui.read("/jobs/", ROOT)

    sent = json.loads(page.body)
    assert (page.status, page.content_type) == (200, "application/json")
    assert sent["X-Forwarded-Context"] == ROOT
    head, claims, code = sent["Authorization"].removeprefix("Bearer ").split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "HS256", "typ": "JWT"}
    assert claims
    assert len(base64.urlsafe_b64decode(code + "=")) == 32


def test_a_redirection_is_a_path_below_the_root(ui: WebUi) -> None:
    assert ui.read("/", ROOT).location == f"{ROOT}/jobs/?a=1"


@pytest.mark.parametrize("path", ["jobs", "/a b", "/a\r\nHost: x", "/ä", "http://elsewhere/"])
def test_what_is_no_path_is_not_requested(ui: WebUi, path: str) -> None:
    with pytest.raises(Refused, match="no path of Spark's UI"):
        ui.read(path, ROOT)


def test_a_page_that_is_too_large_is_refused(ui: WebUi) -> None:
    with pytest.raises(Refused, match="more than 8 MiB"):
        ui.read("/large", ROOT)


def test_a_ui_that_does_not_answer_is_unavailable() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Ui) as closed:
        port = closed.server_address[1]
    with pytest.raises(Unavailable, match="does not respond"):
        WebUi(f"http://127.0.0.1:{port}", KEY).read("/jobs/", ROOT)
