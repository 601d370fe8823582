"""The files of the dashboard: served without a credential, under a policy that allows scripts of this server only."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest
from tests.unit.rest.rest_harness import RestHarness
from tests.unit.rest.test_access import send

PAGE = '<!doctype html><script type="module" src="/assets/index-1.js"></script>'


@pytest.fixture
def built(tmp_path: Path) -> RestHarness:
    """A JobManager with a dashboard."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "assets" / "index-1.js").write_text("0;")
    (tmp_path / "assets" / "index-1.js.gz").write_bytes(gzip.compress(b"0;"))
    (tmp_path / "assets" / "icon-1.svg").write_text("<svg/>")
    (tmp_path / "secret.js").write_text("not an asset")
    return RestHarness(None, tmp_path)


def get(rest: RestHarness, path: str, **headers: str) -> httpx.Response:
    """Send a request without a credential."""
    return send(rest.app, "GET", path, headers)


def test_the_page_is_served_without_a_credential_and_runs_no_script_but_files_of_this_server(
    built: RestHarness,
) -> None:
    response = get(built, "/")
    assert (response.status_code, response.text) == (200, PAGE)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    parts = response.headers["content-security-policy"].split("; ")
    policy = {name: value for name, _, value in (part.partition(" ") for part in parts)}
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert response.headers["cache-control"] == "no-cache"


def test_where_the_dashboard_is_not_built_the_page_says_how_to_build_it() -> None:
    response = get(RestHarness(), "/")
    assert response.status_code == 200
    assert "make dashboard" in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_assets_are_kept_by_browsers_and_compressed_where_they_accept_that(built: RestHarness) -> None:
    plain = get(built, "/assets/index-1.js", **{"Accept-Encoding": "identity"})
    assert (plain.status_code, plain.text) == (200, "0;")
    assert "content-encoding" not in plain.headers
    packed = get(built, "/assets/index-1.js", **{"Accept-Encoding": "br;q=1, gzip;q=0.8"})
    assert (packed.text, packed.headers["content-encoding"]) == ("0;", "gzip")
    for response in (plain, packed):
        assert response.headers["content-type"] == "text/javascript; charset=utf-8"
        assert "immutable" in response.headers["cache-control"]
        assert response.headers["vary"] == "Accept-Encoding"
        assert response.headers["x-content-type-options"] == "nosniff"
    assert get(built, "/assets/icon-1.svg").headers["content-type"] == "image/svg+xml"


NO_ASSETS = ["none.js", "index-1.js.gz", "index.html", "%2e%2e", ".js", "%2e%2e%2fsecret.js", "a%00.js"]


@pytest.mark.parametrize("name", NO_ASSETS)
def test_nothing_but_assets_is_served_as_one(built: RestHarness, name: str) -> None:
    assert get(built, f"/assets/{name}").status_code in (401, 404)
