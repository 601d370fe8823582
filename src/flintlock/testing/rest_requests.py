"""Requests to clusters of tests and benchmarks, with the credential that a client of this user has.

The functions are httpx's, and so is what they return.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import httpx

from flintlock.client.connection.credentials import ClientCredentials
from flintlock.config.configuration import Configuration
from flintlock.config.options import SECRET_FILE


class OwnCredential(httpx.Auth):
    """Adds the credential of a client of this user to each request, as the command line does."""

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._credentials: Final = ClientCredentials(configuration or Configuration({}), Path("/nowhere"))

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Send the request, and once more if the credential was that of another cluster at the same port."""
        url = f"{request.url.scheme}://{request.url.netloc.decode()}"
        for _ in range(2):
            credential = self._credentials.find(url, time.time_ns() // 1_000_000)
            if credential is not None:
                request.headers["Authorization"] = f"Bearer {credential}"
            response = yield request
            if response.status_code != 401 or not self._credentials.forget(url):
                return


OWN_CREDENTIAL: Final = OwnCredential()


def shared_secret(directory: Path) -> dict[str, str]:
    """Return the setting with which processes of several state directories are one cluster."""
    path = directory / "shared-secret"
    path.touch(mode=0o600)
    path.write_text("5e" * 32, "ascii")
    return {SECRET_FILE.key: str(path)}


def header(url: str) -> dict[str, str]:
    """Return the header for an address."""
    request = next(OWN_CREDENTIAL.auth_flow(httpx.Request("GET", url)))
    return {name: request.headers[name] for name in ("Authorization",) if name in request.headers}


def get(url: str, **arguments: Any) -> httpx.Response:
    """Send a GET request."""
    return httpx.get(url, auth=OWN_CREDENTIAL, **arguments)


def post(url: str, **arguments: Any) -> httpx.Response:
    """Send a POST request."""
    return httpx.post(url, auth=OWN_CREDENTIAL, **arguments)


def put(url: str, **arguments: Any) -> httpx.Response:
    """Send a PUT request."""
    return httpx.put(url, auth=OWN_CREDENTIAL, **arguments)


def patch(url: str, **arguments: Any) -> httpx.Response:
    """Send a PATCH request."""
    return httpx.patch(url, auth=OWN_CREDENTIAL, **arguments)


def delete(url: str, **arguments: Any) -> httpx.Response:
    """Send a DELETE request."""
    return httpx.delete(url, auth=OWN_CREDENTIAL, **arguments)


def stream(method: str, url: str, **arguments: Any) -> AbstractContextManager[httpx.Response]:
    """Send a request whose response is read piece by piece."""
    return httpx.stream(method, url, auth=OWN_CREDENTIAL, **arguments)
