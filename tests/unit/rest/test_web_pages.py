"""A web page that the user has open reads and changes nothing, with whatever the browser attaches."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.rest.rest_harness import SECRET, T0, RestHarness
from tests.unit.rest.test_access import CLOSED, CountingApp, bearer, behind, named, path_of, send

from flintlock.config.configuration import Configuration
from flintlock.rest.server.route import Route
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.local_credentials import local_credential

ADMIN = bearer(local_credential(SECRET, "maria", T0))
FOREIGN = [
    {"Host": "evil.example:8081"},
    {"Host": "flintlock.evil.example"},
    {"Host": ""},
    {"Host": "127.0.0.1.evil.example"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://flintlock:9999"},
    {"Origin": "http://flintlock"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "anything"},
]


@named(CLOSED)
def test_a_foreign_page_is_refused_everywhere_even_with_a_valid_credential(row: Route) -> None:
    app = CountingApp()
    for headers in FOREIGN:
        response = send(behind(app), row.method, path_of(row), {**ADMIN, **headers})
        assert response.status_code == 403
        assert response.json()["errors"][0]
        assert not any(name.startswith("access-control-") for name in response.headers)
    assert not app.served


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_foreign_page_cannot_even_probe(headers: dict[str, str]) -> None:
    assert send(behind(CountingApp()), "GET", "/healthz", headers).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://flintlock:8081", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Host": "localhost:1", "Origin": "http://localhost:1"},
        {"Host": "127.0.0.1"},
        {"Host": "[::1]:8081"},
        {"Host": "192.168.0.7:8081"},
        {"Host": "portal.example", "Origin": "https://portal.example"},
    ],
    ids=str,
)
def test_own_pages_and_other_clients_are_served(headers: dict[str, str]) -> None:
    configuration = Configuration({"rest.address": "flintlock", "security.allowed-hosts": "portal.example"})
    app = CountingApp()
    assert send(behind(app, web=WebPolicy.of(configuration)), "POST", "/jobs", {**ADMIN, **headers}).status_code == 200


def test_the_leader_gets_no_header_of_a_browser() -> None:
    app = CountingApp()
    browser = {
        "Origin": "http://flintlock:8081",
        "Sec-Fetch-Site": "same-origin",
        "Sec-Fetch-Mode": "cors",
        "Cookie": "a=b",
    }
    send(behind(app), "GET", "/jobs", {**ADMIN, **browser})
    (scope,) = app.served
    assert not {b"origin", b"cookie", b"sec-fetch-site", b"sec-fetch-mode"} & {name for name, _ in scope["headers"]}


def test_a_page_of_an_allowed_origin_is_served_and_may_read() -> None:
    web = WebPolicy.of(
        Configuration({"security.allowed-origins": "https://portal.example/", "rest.address": "flintlock"})
    )
    app = CountingApp()
    page = {"Origin": "https://portal.example", "Sec-Fetch-Site": "cross-site"}
    served = send(behind(app, web=web), "GET", "/jobs", {**ADMIN, **page})
    assert (served.status_code, served.headers["access-control-allow-origin"]) == (200, "https://portal.example")
    assert "access-control-allow-credentials" not in served.headers
    question = send(behind(app, web=web), "OPTIONS", "/jobs", {**page, "Access-Control-Request-Method": "POST"})
    assert question.status_code == 204
    assert "authorization" in question.headers["access-control-allow-headers"]
    assert send(behind(app, web=web), "GET", "/jobs", page).status_code == 401
    assert send(behind(app, web=web), "GET", "/jobs", {**ADMIN, "Origin": "https://other.example"}).status_code == 403


def test_two_hosts_or_two_credentials_are_refused() -> None:
    async def receive() -> object:
        return {"type": "http.request"}

    for twice in (b"host", b"authorization"):
        sent: list[dict[str, object]] = []

        async def send_message(message: dict[str, object], sent: list[dict[str, object]] = sent) -> None:
            sent.append(message)

        rest = RestHarness()
        headers = [*rest.raw_headers, *(header for header in rest.raw_headers if header[0] == twice)]
        scope = {"type": "http", "method": "GET", "path": "/jobs", "query_string": b"", "headers": headers}
        asyncio.run(rest.app(scope, receive, send_message))  # pyright: ignore[reportArgumentType]
        assert sent[0]["status"] == 403


def test_no_websocket_is_opened() -> None:
    sent: list[dict[str, object]] = []

    async def send_message(message: dict[str, object]) -> None:
        sent.append(message)

    app = CountingApp()
    asyncio.run(behind(app)({"type": "websocket", "headers": []}, None, send_message))  # pyright: ignore[reportArgumentType]
    assert [message["type"] for message in sent] == ["websocket.close"]
    assert not app.served
