"""Handlers of the dashboard's page and its assets, which `make dashboard` has built into a directory of this package.

They need no credential: the files are the same for every installation and have no data. The page then reads the REST
API, which needs one. Assets have a hash of their content in their names, so a browser keeps them; the page names the
assets that belong to it, so a browser asks for it each time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flintlock.rest.server.http import HttpResponse, RestCall, no_such
from flintlock.rest.server.request_body import header

PAGE: Final = "index.html"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The Content-Security-Policy of the page: scripts and styles are files of this JobManager, and no part of the page."""

_CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ASSET: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_NOT_BUILT: Final = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>Flintlock</title><h1>Flintlock</h1>'
    b"<p>The dashboard is not part of this installation. In a checkout, <code>make dashboard</code> builds it, also"
    b" while the cluster runs; a wheel that <code>make dist</code> has built contains it.</p>"
    b"<p>The commands <code>flintlock list</code> and <code>flintlock status</code> show the jobs, too.</p>"
)


async def page(call: RestCall) -> HttpResponse:
    """The dashboard, for a browser; where it is not built, how to build it."""
    found = await _read(call, PAGE)
    body, headers = found or (_NOT_BUILT, {})
    headers = {
        "Content-Security-Policy": POLICY,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        **headers,
    }
    return HttpResponse(body=body, content_type="text/html; charset=utf-8", headers=headers)


async def asset(call: RestCall) -> HttpResponse:
    """A script, a style sheet or an image of the dashboard."""
    name = call.path("asset")
    content_type = _CONTENT_TYPES.get(Path(name).suffix)
    found = await _read(call, f"assets/{name}") if content_type and _ASSET.fullmatch(name) else None
    if found is None or content_type is None:
        raise no_such("asset", name[:200])
    body, headers = found
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff", **headers}
    return HttpResponse(body=body, content_type=content_type, headers=headers)


async def _read(call: RestCall, name: str) -> tuple[bytes, Mapping[str, str]] | None:
    """Return a built file, compressed if the caller accepts that, and the headers about it; None if there is none."""
    path = call.services.dashboard / name
    accepted = {item.partition(";")[0].strip() for item in (header(call.request, b"accept-encoding") or "").split(",")}
    if "gzip" in accepted:
        compressed = await asyncio.to_thread(_content, path.with_name(f"{path.name}.gz"))
        if compressed is not None:
            return compressed, {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    content = await asyncio.to_thread(_content, path)
    return None if content is None else (content, {"Vary": "Accept-Encoding"})


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
