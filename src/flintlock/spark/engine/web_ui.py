"""Spark's own UI of an engine, read by the engine's process for the JobManager, which shows it to its callers.

The UI listens on its own port, behind Spark's filter, which serves only requests with a token. Tokens are signed with a
key that only this process and the JVM have. Requests are GET requests: nothing can be changed through the UI.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
from typing import Final
from urllib.parse import urlsplit

from flintlock.model.diagnostics import MAX_UI_BYTES, EngineUiPage
from flintlock.model.errors import Refused, Unavailable

_TIMEOUT_S: Final = 20.0
_REDIRECTIONS: Final = frozenset({301, 302, 303, 307, 308})
_DEFAULT_TYPE: Final = "application/octet-stream"


class WebUi:
    """The UI at an address; `key` is what its filter verifies tokens with, as it is configured."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._host: Final = parts.hostname or "127.0.0.1"
        self._port: Final = parts.port or 80
        self._token: Final = _token(base64.urlsafe_b64decode(key + "=" * (-len(key) % 4)))

    def read(self, path: str, root: str) -> EngineUiPage:
        """Return the response to a GET request; its links begin with `root`. Raises Unavailable, Refused."""
        if not path.startswith("/") or any(not " " < character <= "~" for character in path + root):
            raise Refused(f"{path[:200]!r} is no path of Spark's UI")
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "X-Forwarded-Context": root}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read(MAX_UI_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"Spark's UI does not respond: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if len(body) > MAX_UI_BYTES:
            raise Refused(f"the page has more than {MAX_UI_BYTES >> 20} MiB: Spark's UI shows too many tasks on it")
        redirected = response.status in _REDIRECTIONS
        return EngineUiPage(
            status=response.status,
            content_type=response.getheader("Content-Type", _DEFAULT_TYPE),
            body=body,
            location=_below(root, response.getheader("Location", "")) if redirected else "",
        )


def _below(root: str, location: str) -> str:
    """Return a location of Spark's UI as a path below the root. Spark names its own address."""
    parts = urlsplit(location)
    path = parts.path if parts.path.startswith(f"{root}/") else f"{root}/{parts.path.lstrip('/')}"
    return f"{path}?{parts.query}" if parts.query else path


def _token(key: bytes) -> str:
    """Return a JSON Web Token without claims. PyJWT, which would make it too, is only there for OpenID Connect."""
    head = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, {}))
    return f"{head}.{_encoded(hmac.digest(key, head.encode(), hashlib.sha256))}"


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).decode().rstrip("=")
