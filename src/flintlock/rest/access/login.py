"""Login of browsers: a link with a code, a page that exchanges the code for a cookie, and logout.

The code is behind the `#` of the link: browsers send that to no server, and it appears in no log. A GET request changes
nothing: the page sends the code itself, by POST.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Final

from flintlock.api import jobs as shapes
from flintlock.api.tokens import CallerInfo, LoginCode, LoginRequest
from flintlock.model.errors import Conflict
from flintlock.rest.server.http import HttpResponse, RestCall, json_response
from flintlock.rest.server.request_body import header, read_as
from flintlock.security.sessions import CODE_LIFETIME_MS, Sessions

_MOST_BYTES: Final = 4096
_AFTER_LOGIN: Final = "/"
_SCRIPT: Final = f"""
const code = location.hash.slice(1);
history.replaceState(null, "", location.pathname);
fetch("/login", {{method: "POST", headers: {{"Content-Type": "application/json"}}, body: JSON.stringify({{code}})}})
  .then(async answer => {{
    if (answer.ok) location.replace("{_AFTER_LOGIN}");
    else document.getElementById("text").textContent = (await answer.json()).errors[0];
  }});
"""
_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Flintlock</title><p id="text">Logging in …</p>'
    f"<script>{_SCRIPT}</script></html>"
).encode()
_POLICY: Final = (
    "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src"
    f" 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


async def make_code(call: RestCall) -> HttpResponse:
    """Make a link that logs a browser in as the caller; it can be used once."""
    _sessions(call)
    code = call.services.login_codes.make(call.principal, call.services.clock_ms())
    made = LoginCode(path=f"/login#{code}", expires_in=CODE_LIFETIME_MS // 1000)
    return json_response(made, 201, {"Cache-Control": "no-store"})


async def page(_: RestCall) -> HttpResponse:
    """The page that logs a browser in: it exchanges the code of the link for a cookie."""
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return HttpResponse(body=_PAGE, content_type="text/html; charset=utf-8", headers=headers)


async def log_in(call: RestCall) -> HttpResponse:
    """Exchange the code of a link for a session, which is returned as a cookie."""
    wanted = await read_as(call.request, LoginRequest, _MOST_BYTES)
    services = call.services
    now_ms = services.clock_ms()
    sessions = _sessions(call)
    who = services.login_codes.use(wanted.code, now_ms)
    session, lasts_s = sessions.begin(who, now_ms)
    headers = {"Set-Cookie": _cookie(call, f"{sessions.cookie}={session}", lasts_s), "Cache-Control": "no-store"}
    expires_ms = now_ms + lasts_s * 1000
    return json_response(
        CallerInfo(name=who.name, role=who.role, kind="session", expires=expires_ms, token=who.token), headers=headers
    )


async def log_out(call: RestCall) -> HttpResponse:
    """Remove the cookie of a browser."""
    return json_response(shapes.Empty(), headers={"Set-Cookie": _cookie(call, f"{_sessions(call).cookie}=", 0)})


def _sessions(call: RestCall) -> Sessions:
    if call.services.sessions is None:
        raise Conflict("this cluster needs no login: security.authentication is 'none'")
    return call.services.sessions


def _cookie(call: RestCall, pair: str, lasts_s: int) -> str:
    # A proxy may provide TLS. A client that forges its header gets a cookie that is sent with TLS only.
    encrypted = "https" in (call.request.scope["scheme"], header(call.request, b"x-forwarded-proto"))
    secure = "; Secure" if encrypted else ""
    return f"{pair}; Path=/; Max-Age={lasts_s}; HttpOnly; SameSite=Strict{secure}"
