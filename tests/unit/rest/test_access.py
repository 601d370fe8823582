"""Who is served: every route of the table, with and without a credential, and for every role."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from msgspec import structs
from tests.unit.rest.rest_harness import SECRET, T0, A, RestHarness, graph, running

from flintlock.model.access.principals import Principal, Role
from flintlock.model.errors import Unauthenticated
from flintlock.rest.server.access import AccessControl
from flintlock.rest.server.app import TableRouter
from flintlock.rest.server.http import HttpResponse
from flintlock.rest.server.route import Route
from flintlock.rest.server.routes import ROUTES
from flintlock.rest.server.web_pages import WebPolicy
from flintlock.security.authentication import Authentication
from flintlock.security.cluster_secret import ClusterSecret
from flintlock.security.local_credentials import LIFETIME_MS, LocalAuthenticator, local_credential

CLOSED = [row for row in ROUTES if row.role is not None]
OPEN = [row for row in ROUTES if row.role is None]


def named(rows: Iterable[Route]) -> Any:
    return pytest.mark.parametrize("row", rows, ids=lambda row: f"{row.method} {row.path}")


def path_of(row: Route) -> str:
    return re.sub(r"{\w+}", A, row.path)


class Roles:
    """Authenticates `<name>:<role>`."""

    async def authenticate(self, credential: str, now_ms: int) -> Principal | None:
        name, _, role = credential.partition(":")
        if role == "revoked":
            raise Unauthenticated("the token is revoked")
        return Principal(name=name, role=Role(role), kind="test") if role else None


class CountingApp:
    """Counts what reaches the application."""

    def __init__(self) -> None:
        self.served: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.served.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def behind(app: Any, *, web: WebPolicy | None = None) -> AccessControl:
    authentication = Authentication((LocalAuthenticator(SECRET), Roles()), lambda: T0)
    return AccessControl(app, authentication=authentication, web=web or WebPolicy(hosts=frozenset({"flintlock"})))


def send(app: Any, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://flintlock:8081") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(main())


def bearer(credential: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {credential}"}


def test_only_the_probes_of_a_service_manager_the_login_and_the_files_of_the_dashboard_are_open() -> None:
    probes = {("GET", "/healthz"), ("GET", "/readyz")}
    login = {("GET", "/login"), ("POST", "/login")}  # a page without data, and the exchange of a code
    dashboard = {("GET", "/"), ("GET", "/assets/{asset}")}  # the same files everywhere, without data
    with_a_pass = {("GET", "/spark-ui/{pass}")}  # which its path contains
    assert {(row.method, row.path) for row in OPEN} == probes | login | dashboard | with_a_pass
    app = CountingApp()
    for row in OPEN:
        assert send(behind(app), row.method, row.path).status_code == 200


WRONG: list[tuple[str | None, str]] = [
    (None, "no credential.*flintlock token create"),
    ("nonsense", "does not belong to this cluster"),
    (local_credential(ClusterSecret(b"another" * 5), "eve", T0), "secret of another cluster"),
    (local_credential(SECRET, "eve", T0 - LIFETIME_MS), "expired"),
    (local_credential(SECRET, "eve", T0)[:-1] + "x", "secret of another cluster"),
    ("eve:revoked", "revoked"),
    ("x" * 9000, "too long"),
]


@named(CLOSED)
def test_no_route_is_served_without_a_valid_credential(row: Route) -> None:
    app = CountingApp()
    for credential, says in WRONG:
        response = send(behind(app), row.method, path_of(row), {} if credential is None else bearer(credential))
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == 'Bearer realm="flintlock"'
        assert re.search(says, response.json()["errors"][0])
    assert not app.served


@named(CLOSED)
def test_every_route_is_served_to_its_role_and_those_above_it_only(row: Route) -> None:
    needed = row.role
    assert needed is not None
    for role in Role:
        app = CountingApp()
        response = send(behind(app), row.method, path_of(row), bearer(f"eve:{role}"))
        if list(Role).index(role) >= list(Role).index(needed):
            assert response.status_code == 200
        else:
            assert response.status_code == 403
            assert f"eve has the role {role}; this needs the role {needed}" in response.json()["errors"][0]
            assert not app.served


def test_what_changes_something_needs_more_than_a_viewer_and_is_no_get() -> None:
    of_the_caller = {"/login", "/logout", "/login/codes"}
    for row in ROUTES:
        if row.method != "GET" and row.path not in of_the_caller:
            assert row.role is not None
            assert row.role.includes(Role.SUBMITTER)


@pytest.mark.parametrize("path", ["/nowhere", "/v1/jobs", "/jobs//", "/jobs/", "/healthz/x"])
def test_a_path_that_is_no_open_route_needs_a_credential(path: str) -> None:
    app = CountingApp()
    assert send(behind(app), "GET", path).status_code == 401
    assert not app.served


def test_other_methods_of_an_open_path_change_nothing() -> None:
    rest = RestHarness()
    assert send(rest.app, "POST", "/healthz").status_code == 405


@pytest.mark.parametrize("value", ["Basic bWFyaWE6eA==", "Bearer", "", "bearer"])
def test_a_header_of_another_form_is_no_credential(value: str) -> None:
    assert send(behind(CountingApp()), "GET", "/jobs", {"Authorization": value}).status_code == 401


OWNED = [row for row in ROUTES if row.of_own_job]


def test_every_change_of_a_job_is_limited_to_the_own_ones_or_to_operators() -> None:
    changes = [row for row in ROUTES if row.method != "GET" and "{jobid}" in row.path]
    assert changes
    for row in changes:
        assert row.of_own_job or (row.role is not None and row.role.includes(Role.OPERATOR))


@named(OWNED)
def test_a_submitter_may_change_only_jobs_of_the_own_name(row: Route) -> None:
    rest = RestHarness()
    rest.dispatcher.put(structs.replace(running(A), graph=structs.replace(graph(A), submitted_by="maria")))
    app = behind(rest.bare_app)
    kind = {"Content-Type": row.body[0]} if row.body else {}
    foreign = send(app, row.method, path_of(row), {**bearer("eve:submitter"), **kind})
    assert foreign.status_code == 403
    assert "was submitted by maria" in foreign.json()["errors"][0]
    assert not rest.dispatcher.cancelled
    assert not rest.dispatcher.client_heartbeats
    for caller in ("maria:submitter", "eve:operator"):
        assert send(app, row.method, path_of(row), {**bearer(caller), **kind}).status_code != 403


def test_a_job_of_an_older_version_belongs_to_no_submitter() -> None:
    rest = RestHarness()
    rest.dispatcher.put(running(A))
    response = send(behind(rest.bare_app), "PATCH", f"/jobs/{A}", bearer("eve:submitter"))
    assert response.status_code == 403
    assert "an unknown caller" in response.json()["errors"][0]


def test_the_submitter_is_recorded_with_the_job() -> None:
    rest = RestHarness()
    spec: dict[str, Any] = {"name": "x", "steps": {"n": {"sql": "SELECT 1"}, "top": {"result": {}, "inputs": ["n"]}}}
    assert rest.call("POST", "/jobs", json={**spec, "submittedBy": "eve"}).status_code == 400
    assert rest.call("POST", "/jobs", json=spec).status_code == 202
    (submission,) = rest.dispatcher.submissions
    assert submission.graph.submitted_by == "maria"


@pytest.mark.parametrize("path", ["/jobs/", "/v1/jobs/", f"/jobs/{A}/plan/"])
def test_a_slash_at_the_end_makes_no_other_route(path: str) -> None:
    """Access control and the application find the same row: there is one table, and one path."""
    rest = RestHarness()
    rest.dispatcher.put(running(A))
    assert rest.call("GET", path).status_code == 200
    assert rest.call("GET", path, headers={"Authorization": "Bearer flt_x"}).status_code == 401
    for other in (f"{path}/", f"/v1{path}" if path.startswith("/v1") else f"/v2{path}"):
        assert rest.refused(404, "GET", other) == [f"{other} was not found"]


def test_a_handler_with_a_bug_ends_one_request_and_shows_nothing_of_it() -> None:
    async def broken(_: object) -> HttpResponse:
        raise RuntimeError("the bug")

    app = behind(TableRouter({"/jobs": {"GET": broken}}))
    failed = send(app, "GET", "/jobs", bearer("eve:admin"))
    assert failed.status_code == 500
    assert failed.json() == {"errors": ["internal error; the JobManager's log has the details"]}
    assert send(app, "DELETE", "/jobs", bearer("eve:admin")).headers["allow"] == "GET, HEAD"
