"""Browsers: a link that works once, a session that no foreign page can use."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.unit.rest.rest_harness import RestHarness
from tests.unit.rest.test_access import bearer, send
from tests.unit.rest.test_forwarding import JobManagerPair, run_scenario

from flintlock.security.sessions import CODE_LIFETIME_MS, LIFETIME_MS

OWN_PAGE = {"Origin": "http://flintlock:8081", "Sec-Fetch-Site": "same-origin"}


def code_of(rest: RestHarness, **arguments: Any) -> str:
    made = rest.call("POST", "/login/codes", **arguments)
    assert made.status_code == 201, made.text
    return made.json()["path"].removeprefix("/login#")


def log_in(rest: RestHarness, code: str) -> httpx.Response:
    return send_json(rest, code, OWN_PAGE)


def send_json(rest: RestHarness, code: str, headers: dict[str, str]) -> httpx.Response:
    return rest.call("POST", "/login", json={"code": code}, headers={"Host": "flintlock:8081", **headers})


def session(rest: RestHarness, **arguments: Any) -> dict[str, str]:
    cookie = log_in(rest, code_of(rest, **arguments)).headers["set-cookie"]
    return {"Cookie": cookie.partition(";")[0]}


def test_a_link_is_exchanged_for_a_cookie_that_pages_cannot_read() -> None:
    rest = RestHarness()
    answer = log_in(rest, code_of(rest))
    assert answer.status_code == 200
    assert answer.json()["name"] == "maria"
    assert "maria" not in answer.headers["set-cookie"].partition("=")[0]
    for part in ("HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={LIFETIME_MS // 1000}"):
        assert part in answer.headers["set-cookie"]


def test_behind_a_proxy_with_tls_the_cookie_is_sent_with_tls_only() -> None:
    rest = RestHarness()
    assert "Secure" not in log_in(rest, code_of(rest)).headers["set-cookie"]
    behind = send_json(rest, code_of(rest), {**OWN_PAGE, "X-Forwarded-Proto": "https"})
    assert behind.headers["set-cookie"].endswith("; Secure")


def test_a_link_works_once_and_not_after_its_end() -> None:
    rest = RestHarness()
    code = code_of(rest)
    assert log_in(rest, code).status_code == 200
    again = log_in(rest, code)
    assert (again.status_code, "flintlock dashboard" in again.text) == (401, True)
    late = code_of(rest)
    rest.now_ms += CODE_LIFETIME_MS
    assert log_in(rest, late).status_code == 401
    assert log_in(rest, "nonsense").status_code == 401


def test_a_session_reads_and_ends() -> None:
    rest = RestHarness()
    cookie = session(rest)
    assert send(rest.app, "GET", "/jobs", cookie).status_code == 200
    rest.now_ms += LIFETIME_MS
    assert send(rest.app, "GET", "/jobs", cookie).status_code == 401
    assert send(rest.app, "GET", "/jobs", {"Cookie": cookie["Cookie"][:-1] + "x"}).status_code == 401


def test_a_session_alone_changes_nothing_without_the_origin_of_an_own_page() -> None:
    rest = RestHarness()
    cookie = session(rest)
    for headers in ({}, {"Sec-Fetch-Site": "none"}):
        refused = send(rest.app, "DELETE", "/cluster", {**cookie, **headers})
        assert (refused.status_code, "a session alone" in refused.text) == (403, True)
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
        assert send(rest.app, "DELETE", "/cluster", {**cookie, **headers}).status_code == 403
    assert not rest.dispatcher.shut_downs
    assert send(rest.app, "DELETE", "/cluster", {**cookie, **OWN_PAGE}).status_code == 200
    assert rest.dispatcher.shut_downs


def test_the_session_of_a_token_has_its_role_and_ends_with_it() -> None:
    rest = RestHarness()
    made = rest.call("POST", "/tokens", json={"name": "eve", "role": "viewer"}).json()
    cookie = session(rest, headers=bearer(made["token"]))
    assert send(rest.app, "GET", "/whoami", cookie).json()["name"] == "eve"
    assert send(rest.app, "DELETE", "/cluster", {**cookie, **OWN_PAGE}).status_code == 403
    rest.call("DELETE", f"/tokens/{made['id']}")
    gone = send(rest.app, "GET", "/whoami", cookie)
    assert (gone.status_code, "revoked" in gone.text) == (401, True)


def test_the_page_holds_nothing_and_runs_only_its_own_script() -> None:
    page = RestHarness().call("GET", "/login", headers={"Authorization": ""})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]


def test_logging_out_removes_the_cookie() -> None:
    rest = RestHarness()
    answer = send(rest.app, "POST", "/logout", {**session(rest), **OWN_PAGE})
    assert "Max-Age=0" in answer.headers["set-cookie"]


@pytest.mark.parametrize("through", ["leader", "standby"])
def test_a_link_and_a_session_work_at_every_jobmanager(through: str) -> None:
    async def scenario(pair: JobManagerPair, client: httpx.AsyncClient) -> None:
        made = (await client.post("/login/codes")).json()["path"].removeprefix("/login#")
        first, other = pair.first.url, pair.second.url
        url = first if through == "leader" else other
        headers = {"Origin": url}
        async with httpx.AsyncClient(trust_env=False) as browser:
            answer = await browser.post(f"{url}/login", json={"code": made}, headers=headers)
            assert answer.status_code == 200, answer.text
            cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
            for address in (first, other):
                assert (await browser.get(f"{address}/jobs/overview", headers=cookie)).status_code == 200
                shut = await browser.delete(f"{address}/cluster", headers={**cookie, "Origin": address})
                assert shut.status_code == 200
                assert (await browser.delete(f"{address}/cluster", headers=cookie)).status_code == 403

    run_scenario(scenario)
